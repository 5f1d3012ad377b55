// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::testing::{Log, Words, delete, end_lease, item, items, memory, put, settle};

const PREFIX: &str = "cilium/state/nodes/v1";
const OWN: &str = "cilium/state/nodes/v1/alder/own";
const OTHER: &str = "cilium/state/nodes/v1/alder/other";
const MINUTE: Duration = Duration::from_secs(60);

fn store(client: &Client, log: &Log) -> SharedStore<Words, Log> {
    let options = SharedStoreOptions::new("alder", PREFIX);
    SharedStore::new(client.clone(), Words, log.clone(), options)
}

async fn during(store: &SharedStore<Words, Log>, actions: impl Future<Output = ()>) {
    tokio::select! {
        () = store.run() => {}
        () = actions => {}
    }
}

#[tokio::test(start_paused = true)]
async fn own_and_other_keys_are_entries() {
    let (memory, client) = memory();
    let log = Log::default();
    let nodes = store(&client, &log);
    put(&client, OTHER, "1").await;

    during(&nodes, async {
        nodes.wait_listed().await.expect("it is listed");
        assert_eq!(log.take(), ["upsert alder/other=1", "synced"]);

        nodes.upsert("alder/own", "1");
        assert_eq!(log.wait(1).await, ["upsert alder/own=1"]);
        assert_ne!(item(&memory, OWN).expect("it is written").lease.0, 0);
        assert_eq!(nodes.status().entries(), 2);
        assert_eq!(nodes.pending(), 0);

        nodes.delete("alder/other");
        nodes.delete("alder/own");
        tokio::time::sleep(MINUTE).await;
        assert_eq!(log.take(), ["delete alder/own=1"]);
        assert_eq!(items(&memory, PREFIX), [format!("{OTHER}=1")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_own_key_that_another_deletes_is_written_again_and_stays_an_entry() {
    let (memory, client) = memory();
    let log = Log::default();
    let nodes = store(&client, &log);
    nodes.upsert("alder/own", "1");

    during(&nodes, async {
        settle().await;
        log.take();

        delete(&client, OWN).await;
        settle().await;

        assert_eq!(items(&memory, PREFIX), [format!("{OWN}=1")]);
        tokio::time::sleep(MINUTE).await;
        assert_eq!(log.take(), ["upsert alder/own=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn own_keys_are_written_again_when_their_lease_ends() {
    let (memory, client) = memory();
    let nodes = store(&client, &Log::default());
    nodes.upsert("alder/own", "1");

    during(&nodes, async {
        settle().await;
        end_lease(&memory, OWN).await;
        settle().await;
        assert_eq!(items(&memory, PREFIX), [format!("{OWN}=1")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn own_keys_that_another_changes_are_corrected_with_the_refresh() {
    let (memory, client) = memory();
    let nodes = store(&client, &Log::default());
    nodes.upsert("alder/own", "1");

    during(&nodes, async {
        tokio::time::sleep(MINUTE * 100).await;
        let own = item(&memory, OWN).expect("it exists");
        assert_eq!(own.version, 1, "it did not differ");

        put(&client, OWN, "2").await;
        tokio::time::sleep(MINUTE * 30).await;
        assert_eq!(items(&memory, PREFIX), [format!("{OWN}=1")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_of_others_vanish_after_half_a_minute() {
    let (_memory, client) = memory();
    let log = Log::default();
    let nodes = store(&client, &log);
    put(&client, OTHER, "1").await;

    during(&nodes, async {
        log.wait(2).await;
        delete(&client, OTHER).await;
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(log.take(), [""; 0]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(log.take(), ["delete alder/other=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_takes_too_long_is_an_error_with_its_prefix() {
    let (_memory, client) = memory();
    let nodes = store(&client, &Log::default());

    let error = nodes.wait_listed().await.expect_err("it does not run");

    assert_eq!(
        error.to_string(),
        "kvstore: cannot list `cilium/state/nodes/v1/` within 180s"
    );
}
