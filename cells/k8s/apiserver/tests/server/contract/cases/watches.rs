// SPDX-License-Identifier: Apache-2.0

//! Watches: order, resumption, bookmarks, history that is gone.

use skep_k8s_types::Kind;
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Change, ListOptions, Patch, RawEvent, RawWatch, WatchOptions};

use super::{Space, config, name, value, version};

async fn next(watch: &mut RawWatch) -> Result<RawEvent, ApiError> {
    tokio::time::timeout(Duration::from_secs(30), watch.next())
        .await
        .expect("no event")
        .expect("watch ended")
}

async fn change(watch: &mut RawWatch) -> (Change, Value) {
    loop {
        if let RawEvent::Object(change, object) = next(watch).await.unwrap() {
            return (change, value(&object));
        }
    }
}

fn from(version: &str) -> WatchOptions {
    WatchOptions {
        resource_version: version.into(),
        ..WatchOptions::default()
    }
}

pub(super) async fn changes(space: &Space<'_>) {
    let start = space
        .list(&ListOptions::default())
        .await
        .unwrap()
        .resource_version;
    space.config("a", "1").await;
    let mut watch = space.watch(&from(&start)).await.unwrap();

    let (added, first) = change(&mut watch).await;
    space.update(&Kind::CONFIG_MAP, config("a", "2")).await.unwrap();
    let (modified, second) = change(&mut watch).await;
    space.delete(&Kind::CONFIG_MAP, "a").await.unwrap();
    let (deleted, last) = change(&mut watch).await;

    assert_eq!(
        (added, modified, deleted),
        (Change::Added, Change::Modified, Change::Deleted)
    );
    assert_eq!(
        (&first["data"]["k"], &second["data"]["k"], &last["data"]["k"]),
        (&json!("1"), &json!("2"), &json!("2"))
    );
    let number = |o: &Value| version(o).parse::<u64>().unwrap();
    assert!(number(&first) < number(&second) && number(&second) < number(&last));

    // A watch from an event's version goes on behind that event.
    let mut resumed = space.watch(&from(version(&first))).await.unwrap();
    assert_eq!(change(&mut resumed).await.0, Change::Modified);

    // Objects that start or cease to match appear and disappear.
    let selective = WatchOptions {
        labels: "app=x".parse().unwrap(),
        ..from(version(&last))
    };
    let mut watch = space.watch(&selective).await.unwrap();
    space.config("b", "").await;
    for label in ["x", "y"] {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "app": label } } }));
        space.patch(&Kind::CONFIG_MAP, "b", patch).await.unwrap();
    }
    assert_eq!(change(&mut watch).await.0, Change::Added);
    assert_eq!(change(&mut watch).await.0, Change::Deleted);
}

pub(super) async fn bookmarks(space: &Space<'_>, is_real: bool) {
    space.config("a", "1").await;
    let options = WatchOptions {
        bookmarks: true,
        initial_events: true,
        ..WatchOptions::default()
    };
    let mut watch = match space.watch(&options).await {
        Ok(watch) => watch,
        // A server whose etcd cannot report progress (before 3.4.25 and 3.5.8) refuses; clients list and watch.
        Err(error) if is_real && error.status().is_some_and(|status| status.code == 500) => return,
        Err(error) => panic!("{error}"),
    };

    // Real servers make an object of their own in each namespace.
    let mut seen = Vec::new();
    loop {
        match next(&mut watch).await.unwrap() {
            RawEvent::Object(change, object) => {
                assert_eq!(change, Change::Added);
                seen.push(name(&value(&object)).to_owned());
            }
            RawEvent::Bookmark {
                initial_events_end: true,
                resource_version,
            } => {
                assert!(!resource_version.is_empty());
                break;
            }
            RawEvent::Bookmark { .. } => {}
        }
    }

    assert!(seen.contains(&"a".to_owned()));
}

pub(super) async fn gone(space: &Space<'_>, compact: &(dyn Fn() + Send + Sync)) {
    let start = space
        .list(&ListOptions::default())
        .await
        .unwrap()
        .resource_version;
    space.config("a", "1").await;
    space.config("b", "1").await;
    let one = ListOptions {
        limit: 1,
        ..ListOptions::default()
    };
    let page = space.list(&one).await.unwrap();
    space.config("c", "1").await;
    compact();

    let error = match space.watch(&from(&start)).await {
        Ok(mut watch) => next(&mut watch).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.is_expired(), "{error}");
    let rest = ListOptions {
        continue_token: page.continue_token,
        ..ListOptions::default()
    };
    assert!(space.list(&rest).await.unwrap_err().is_expired());
}
