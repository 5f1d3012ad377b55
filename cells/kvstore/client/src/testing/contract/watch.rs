// SPDX-License-Identifier: Apache-2.0

//! Watches.

use super::*;

/// A watch answers when it stands, then delivers what is written.
pub async fn watches_deliver_changes_in_order(store: Store) {
    let store = &*store;
    let start = put(store, "watch/before", "").await.header.revision.next();
    let mut stream = watch(store, "watch/", start).await;
    let created = tokio::time::timeout(PATIENCE, stream.next())
        .await
        .expect("the watch answers")
        .expect("the watch goes on")
        .expect("the watch has no error");
    assert_eq!(created.events, []);
    assert!(created.header.revision.next() >= start);
    assert_ne!(created.header.cluster_id, 0);

    let first = put(store, "watch/a", "1").await.header.revision;
    let second = put(store, "watch/a", "2").await.header.revision;
    let third = delete(store, "watch/a").await.header.revision;

    assert_eq!(
        changes(&mut stream, 3).await,
        [
            ("put watch/a=1".to_owned(), first),
            ("put watch/a=2".to_owned(), second),
            ("delete watch/a".to_owned(), third),
        ]
    );
}

/// What was written since the start is delivered, in the same order.
pub async fn watches_begin_in_the_past(store: Store) {
    let store = &*store;
    put(store, "past/a", "0").await;
    let start = put(store, "past/a", "1").await.header.revision;
    put(store, "past/b", "1").await;
    delete(store, "past/a").await;

    let mut stream = watch(store, "past/", start).await;
    let past = changes(&mut stream, 3).await;
    assert_eq!(texts(&past), ["put past/a=1", "put past/b=1", "delete past/a"]);

    put(store, "past/c", "1").await;
    let present = changes(&mut stream, 1).await;
    assert_eq!(texts(&present), ["put past/c=1"]);
}

/// Other keys do not come, also not those whose names begin alike.
pub async fn watches_keep_to_their_range(store: Store) {
    let store = &*store;
    let start = put(store, "scope/before", "").await.header.revision.next();
    let mut prefix = watch(store, "scope/a/", start).await;
    let mut key = store
        .watch(WatchRequest {
            range: KeyRange::key("scope/a"),
            start,
        })
        .await
        .expect("the watch is created");

    for name in [
        "scope/a",
        "scope/a-2/x",
        "scope/a/1",
        "scope/b",
        "scope/a/2",
        "scope/a",
    ] {
        put(store, name, "").await;
    }

    assert_eq!(
        texts(&changes(&mut prefix, 2).await),
        ["put scope/a/1=", "put scope/a/2="]
    );
    assert_eq!(
        texts(&changes(&mut key, 2).await),
        ["put scope/a=", "put scope/a="]
    );
}

/// A watch whose start is compacted fails, and says so.
pub async fn watches_of_compacted_revisions_fail(store: Store) {
    let store = &*store;
    let start = put(store, "old/a", "1").await.header.revision;
    put(store, "old/a", "2").await;
    let last = put(store, "old/a", "3").await.header.revision;
    store.compact(last).await.expect("the store is compacted");

    let request = WatchRequest {
        range: KeyRange::prefix("old/"),
        start,
    };
    let error = match store.watch(request).await {
        Err(error) => error,
        Ok(mut stream) => loop {
            let response = tokio::time::timeout(PATIENCE, stream.next()).await;
            match response
                .expect("the watch answers")
                .expect("the watch says why it ends")
            {
                Ok(response) => assert_eq!(response.events, []),
                Err(error) => break error,
            }
        },
    };

    assert!(matches!(error, BackendError::Compacted { .. }), "{error:?}");
}

/// Nothing is lost when a watch has to catch up with much, while more is written.
pub async fn many_changes_arrive_in_order(store: Store) {
    let start = put(&*store, "many/before", "").await.header.revision.next();
    let mut expected = Vec::new();
    let write = |at: usize| (format!("many/{}", at % 7), at.to_string());
    for at in 0..1200 {
        let (key, value) = write(at);
        put(&*store, &key, &value).await;
        expected.push(format!("put {key}={value}"));
    }

    let mut stream = watch(&*store, "many/", start).await;
    let writer = async {
        for at in 1200..1500 {
            let (key, value) = write(at);
            put(&*store, &key, &value).await;
        }
    };
    expected.extend((1200..1500).map(|at| {
        let (key, value) = write(at);
        format!("put {key}={value}")
    }));
    let (found, ()) = tokio::join!(changes(&mut stream, expected.len()), writer);

    assert_eq!(texts(&found), expected);
    assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].1));
}
