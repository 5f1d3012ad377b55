// SPDX-License-Identifier: Apache-2.0

use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::RunningClient;

use super::*;
use crate::testing::{Log, Words, delete, memory, put, settle};

const DELAY: Duration = Duration::from_secs(30);

fn store(log: &Log, options: WatchStoreOptions) -> WatchStore<Words, Log> {
    WatchStore::new(Words, log.clone(), options)
}

fn delayed() -> WatchStoreOptions {
    WatchStoreOptions {
        delete_delay: DELAY,
        ..WatchStoreOptions::new("alder")
    }
}

/// Watches while `actions` run.
async fn during(
    store: &mut WatchStore<Words, Log>,
    client: &Client,
    prefix: &str,
    actions: impl Future<Output = ()>,
) {
    tokio::select! {
        () = store.watch(client, prefix) => {}
        () = actions => {}
    }
}

#[tokio::test(start_paused = true)]
async fn reports_what_is_there_then_what_changes() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, WatchStoreOptions::new("alder"));
    let status = words.status();
    put(&client, "w/alder/a", "1").await;
    put(&client, "w/alder-2/a", "other").await;

    during(&mut words, &client, "w/alder", async {
        assert_eq!(log.wait(2).await, ["upsert a=1", "synced"]);
        assert!(status.is_synced());

        put(&client, "w/alder/a", "2").await;
        put(&client, "w/alder/b/c", "3").await;
        delete(&client, "w/alder/a").await;

        assert_eq!(log.wait(3).await, ["upsert a=2", "upsert b/c=3", "delete a=2"]);
        assert_eq!(status.entries(), 1);
    })
    .await;

    assert!(!status.is_synced(), "it is not watched any more");
    assert_eq!(words.entries().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn reports_bad_values_and_keeps_the_last_good_one() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, WatchStoreOptions::new("alder"));
    put(&client, "w/new", "bad").await;
    put(&client, "w/old", "1").await;

    during(&mut words, &client, "w", async {
        let invalid = "value of `w/new` is invalid: the word is bad";
        assert_eq!(log.wait(3).await, [invalid, "upsert old=1", "synced"]);

        put(&client, "w/old", "bad").await;
        delete(&client, "w/new").await;
        let invalid = "value of `w/old` is invalid: the word is bad";
        assert_eq!(log.wait(1).await, [invalid]);
    })
    .await;
    assert_eq!(words.entries().count(), 1);

    // The key exists, so a new list does not delete the entry.
    during(&mut words, &client, "w", async {
        assert_eq!(
            log.wait(1).await,
            ["value of `w/old` is invalid: the word is bad"]
        );
        settle().await;
        assert_eq!(log.take(), [""; 0]);

        delete(&client, "w/old").await;
        assert_eq!(log.wait(1).await, ["delete old=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_watch_reports_what_vanished_between_also_under_another_prefix() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, WatchStoreOptions::new("alder"));
    for key in ["state/a", "state/b", "cache/b", "cache/c"] {
        put(&client, key, "1").await;
    }
    during(&mut words, &client, "state", async {
        log.wait(3).await;
    })
    .await;

    during(&mut words, &client, "cache", async {
        assert_eq!(log.wait(3).await, ["upsert b=1", "upsert c=1", "delete a=1"]);
    })
    .await;
    assert_eq!(words.entries().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn drain_deletes_everything_also_for_the_next_watch() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, WatchStoreOptions::new("alder"));
    put(&client, "w/b", "1").await;
    put(&client, "w/a", "1").await;
    during(&mut words, &client, "w", async {
        log.wait(3).await;
    })
    .await;

    words.drain();

    assert_eq!(log.take(), ["delete a=1", "delete b=1"]);
    assert_eq!(words.status().entries(), 0);
    during(&mut words, &client, "w", async {
        assert_eq!(log.wait(2).await, ["upsert a=1", "upsert b=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn deletions_are_delayed_unless_the_key_comes_back() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, delayed());
    put(&client, "w/a", "1").await;
    put(&client, "w/b", "1").await;

    during(&mut words, &client, "w", async {
        log.wait(3).await;
        delete(&client, "w/a").await;
        delete(&client, "w/b").await;
        tokio::time::sleep(DELAY / 2).await;
        put(&client, "w/b", "2").await;
        assert_eq!(log.wait(1).await, ["upsert b=2"]);
        tokio::time::sleep(DELAY / 2 - Duration::from_secs(1)).await;
        assert_eq!(log.take(), [""; 0]);

        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(log.take(), ["delete a=1"]);
        tokio::time::sleep(DELAY).await;
        assert_eq!(log.take(), [""; 0], "b exists again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_deletion_waits_for_the_list_of_the_next_watch() {
    let (_store, client) = memory();
    let log = Log::default();
    let mut words = store(&log, delayed());
    put(&client, "w/a", "1").await;
    during(&mut words, &client, "w", async {
        log.wait(2).await;
        delete(&client, "w/a").await;
        settle().await;
    })
    .await;
    put(&client, "w/a", "1").await;
    tokio::time::sleep(DELAY * 2).await;

    during(&mut words, &client, "w", async {
        assert_eq!(log.wait(1).await, ["upsert a=1"]);
        tokio::time::sleep(DELAY * 2).await;
        assert_eq!(log.take(), [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_set_up_anew_deletes_what_it_lacks() {
    let memory = Memory::new();
    let client = RunningClient::full(Arc::new(memory.clone()));
    let log = Log::default();
    let mut words = store(&log, WatchStoreOptions::new("alder"));
    put(&client, "w/a", "1").await;

    during(&mut words, &client, "w", async {
        log.wait(2).await;
        memory.reset();
        put(&client, "w/b", "1").await;
        let mut lines = log.wait(2).await;
        lines.sort_unstable();
        assert_eq!(lines, ["delete a=1", "upsert b=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn records_whether_the_list_is_read() {
    let (_store, client) = memory();
    let records = Log::default();
    let mut words = store(
        &Log::default(),
        WatchStoreOptions {
            recorder: Arc::new(records.clone()),
            ..WatchStoreOptions::new("alder")
        },
    );

    during(&mut words, &client, "w", async {
        assert_eq!(
            records.wait(2).await,
            ["read w/ alder false", "read w/ alder true"]
        );
    })
    .await;

    assert_eq!(records.take(), ["read w/ alder false"]);
}
