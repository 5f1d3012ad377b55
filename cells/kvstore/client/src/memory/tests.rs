// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use super::*;
use crate::backend::{KeyRange, Op};
use crate::types::Lifetime;

async fn put(store: &Memory, key: &str, value: &str, lease: LeaseId) -> Header {
    let op = Op::Put {
        key: key.into(),
        value: value.to_owned().into(),
        lease,
    };
    store.txn(Txn::one(op)).await.expect("the key is written").header
}

#[tokio::test(start_paused = true)]
async fn keeps_so_many_revisions() {
    let store = Memory::with_history(10);
    for at in 0..100 {
        put(&store, "a", &at.to_string(), LeaseId::NONE).await;
    }
    let read = |revision: i64| {
        let mut request = RangeRequest::new(KeyRange::key("a"));
        request.revision = Revision(revision);
        store.range(request)
    };

    assert_eq!(store.header().revision, Revision(101));
    assert_eq!(read(92).await.expect("it is kept").items[0].value, "90");
    let error = read(80).await.expect_err("it is compacted");
    assert!(matches!(error, BackendError::Compacted { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn leases_end_while_nothing_but_a_watch_looks() {
    let store = Memory::new();
    let lease = store
        .grant_lease(Duration::from_secs(60))
        .await
        .expect("it is granted")
        .id;
    let start = put(&store, "a", "", lease).await.revision.next();
    let request = WatchRequest {
        range: KeyRange::key("a"),
        start,
    };
    let mut watch = store.watch(request).await.expect("the watch is created");
    let granted = Instant::now();

    watch
        .next()
        .await
        .expect("it is created")
        .expect("it has no error");
    let response = watch.next().await.expect("it goes on").expect("it has no error");

    assert_eq!(response.events.len(), 1);
    assert_eq!(granted.elapsed().as_secs(), 60);
    assert_eq!(store.items(), []);
}

#[tokio::test(start_paused = true)]
async fn a_new_store_ends_watches_and_has_another_id() {
    let store = Memory::new();
    let request = WatchRequest {
        range: KeyRange::prefix(""),
        start: Revision::NONE,
    };
    let mut watch = store.watch(request).await.expect("the watch is created");
    watch
        .next()
        .await
        .expect("it is created")
        .expect("it has no error");
    let old = store.header();

    let (ended, ()) = tokio::join!(watch.next(), async {
        tokio::task::yield_now().await;
        store.reset();
    });

    assert!(ended.is_none());
    assert_ne!(store.header().cluster_id, old.cluster_id);
    assert_eq!(store.header().revision, Revision(1));
}

#[tokio::test(start_paused = true)]
async fn tells_when_it_has_changed() {
    let store = Memory::new();
    let seen = store.header();

    let (changed, written) = tokio::join!(store.changed(seen), put(&store, "a", "1", LeaseId::NONE));

    assert_eq!(changed, written);
    assert_eq!(store.items()[0].value, "1");
}

#[tokio::test]
async fn a_disabled_client_fails_and_says_so() {
    let client = crate::Client::disabled();

    let error = client
        .put("a", "1", Lifetime::Permanent)
        .await
        .expect_err("it is disabled");

    assert!(!client.is_enabled());
    assert!(matches!(error.backend(), Some(BackendError::Disabled)));
    assert_eq!(error.to_string(), "kvstore: cannot write `a`");
    assert_eq!(client.status().to_string(), "Disabled");
    let watched = tokio::time::timeout(Duration::from_millis(10), client.list_and_watch("").next()).await;
    assert!(watched.is_err());
}

struct Started(Arc<dyn Backend>);

impl Started {
    fn backend(&self) -> Arc<dyn Backend> {
        self.0.clone()
    }
}

async fn start() -> Started {
    Started(Arc::new(Memory::new()))
}

crate::contract_tests!(start);
