// SPDX-License-Identifier: Apache-2.0

//! Stores of other clusters that are wiped or restored, and keep their id.

use super::*;
use crate::testing::next_event;

async fn put(store: &Memory, key: &str, value: &'static str) {
    let put = Op::Put {
        key: key.into(),
        value: value.into(),
        lease: LeaseId::NONE,
    };
    store.txn(Txn::one(put)).await.expect("it is written");
}

/// Fills the store with other keys, to more revisions than there were.
async fn outgrow(store: &Memory, seen: Revision) {
    while store.header().revision <= seen.next() {
        put(store, "others/a", "x").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mesh_client_fails_and_reports_nothing_when_its_store_is_wiped_or_restored() {
    // Whether the store is wiped or restored; whether others have outgrown what was seen; whether that is compacted.
    for (is_wiped, is_outgrown, is_compacted) in [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (false, true, true),
    ] {
        let case = format!("wiped {is_wiped}, outgrown {is_outgrown}, compacted {is_compacted}");
        let store = Memory::new();
        let empty = store.snapshot();
        heartbeat(&store).await;
        put(&store, "w/a", "1").await;
        put(&store, "w/b", "1").await;
        let old = store.snapshot();
        put(&store, "w/b", "2").await;
        let client = RunningClient::mesh(Arc::new(store.clone()));
        client.wait_connected().await;
        let mut watcher = client.list_and_watch("w/");
        assert_eq!(event_texts(&mut watcher, 3).await[2], "listDone");
        // A watch that stands has seen the newest revision.
        put(&store, "w/c", "1").await;
        assert_eq!(event_texts(&mut watcher, 1).await, ["create w/c=1"]);
        let seen = store.header().revision;

        store.restore(if is_wiped { &empty } else { &old });
        if is_outgrown {
            outgrow(&store, seen).await;
        }
        if is_compacted {
            put(&store, "w/c", "3").await;
            store
                .compact(store.header().revision)
                .await
                .expect("it is compacted");
            store.restore(&store.snapshot());
        }

        let event = tokio::time::timeout(MINUTE * 5, watcher.next()).await;
        if is_compacted {
            // What was read last was written again: nothing tells, and the watch is as if it had only lost its history.
            let event = event.expect("it goes on");
            assert!(
                matches!(event, Event::Modify(_) | Event::Create(_)),
                "{case}: {event:?}"
            );
            continue;
        }
        assert!(event.is_err(), "{case}: {event:?}");
        let failure = tokio::time::timeout(MINUTE, client.failed()).await.expect(&case);
        let ConnectionError::Store { cause, .. } = failure else {
            panic!("{case}: {failure:?}");
        };
        let text = cause.to_string();
        assert!(
            text.starts_with("the store was set up anew or restored: "),
            "{case}: {text}"
        );
        // Neither does a read of it tell what the cluster has.
        let error = client.list("w/").await;
        assert!(is_outgrown || error.is_err(), "{case}: {error:?}");
    }
}

/// Lost watches, compaction and deletions are no sign of another store.
#[tokio::test(start_paused = true)]
async fn a_mesh_client_stays_with_a_store_that_only_forgets_its_history() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    heartbeat(&store).await;
    put(&store, "w/a", "1").await;
    let client = RunningClient::mesh(faulty.clone());
    let mut watcher = client.list_and_watch("w/");
    assert_eq!(event_texts(&mut watcher, 2).await[1], "listDone");

    for at in 0..20 {
        faulty.cut_watches();
        let key = format!("w/k{at}");
        put(&store, &key, "1").await;
        if at % 2 == 0 {
            let delete = Txn::one(Op::Delete(KeyRange::key(&key)));
            store.txn(delete).await.expect("it is deleted");
        }
        if at % 3 == 0 {
            store
                .compact(store.header().revision)
                .await
                .expect("it is compacted");
        }
        put(&store, "w/a", "2").await;
        while next_event(&mut watcher).await
            != Event::Modify(
                store
                    .items()
                    .into_iter()
                    .find(|item| &*item.key == "w/a")
                    .expect("it is there"),
            )
        {}
        heartbeat(&store).await;
        tokio::time::sleep(MINUTE).await;
    }

    assert!(client.status().is_healthy(), "{}", client.status());
}

/// A store that was down for minutes was listed again up to a minute after it was back.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_listed_soon() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    faulty.set_down(true);
    let client = RunningClient::mesh(faulty.clone());
    tokio::time::sleep(MINUTE * 10).await;
    assert!(!client.status().is_healthy());

    faulty.set_down(false);
    let back = Instant::now();
    client.wait_connected().await;

    assert!(back.elapsed() <= Duration::from_secs(15), "{:?}", back.elapsed());
}
