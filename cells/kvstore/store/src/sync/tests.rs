// SPDX-License-Identifier: Apache-2.0

mod adopt;
mod batch;
mod lag;

use std::time::Duration;

use skep_kvstore_client::LeaseId;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::{FaultyBackend, RunningClient, event_texts};

use super::*;
use crate::testing::{Log, delete, end_lease, golden, item, items, memory, settle};

const PREFIX: &str = "cilium/state/nodes/v1";
const CANARY: &str = "cilium/synced/alder/cilium/state/nodes/v1";

fn options() -> SyncStoreOptions {
    SyncStoreOptions::new("alder", PREFIX)
}

/// Runs a store while `actions` run.
async fn during(store: &SyncStore, actions: impl Future<Output = ()>) {
    tokio::select! {
        () = store.run() => {}
        () = actions => {}
    }
}

#[test]
fn canaries_have_the_keys_that_cilium_writes() {
    let prefixes = [
        ("alder", "cilium/state/nodes/v1"),
        ("alder", "cilium/state/ip/v1"),
        ("alder", "cilium/state/identities/v1"),
        ("alder", "cilium/state/services/v1"),
        ("alder", "cilium/state/serviceexports/v1/"),
        ("alder", "cilium/state/endpointslices/v1"),
        ("birch", "cilium/state/services/v1"),
        ("alder", "cilium/cache/nodes/v1"),
        ("alder", "cilium/cache/ip/v1"),
        ("alder", "cilium/cache/identities/v1"),
    ];

    let keys: Vec<String> = prefixes
        .iter()
        .map(|(cluster, prefix)| SyncStoreOptions::new(*cluster, prefix).canary())
        .collect();

    assert_eq!(keys, golden("canaries"));
}

#[tokio::test(start_paused = true)]
async fn writes_and_deletes_what_differs() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    nodes.upsert("alder/a", "1");

    during(&nodes, async {
        nodes.upsert("alder/b", "1");
        settle().await;
        assert_eq!(
            items(&memory, PREFIX),
            [
                "cilium/state/nodes/v1/alder/a=1",
                "cilium/state/nodes/v1/alder/b=1"
            ]
        );
        let written = item(&memory, "cilium/state/nodes/v1/alder/a").expect("it is written");
        assert_ne!(written.lease, LeaseId::NONE);

        let before = memory.header();
        nodes.upsert("alder/a", "1");
        nodes.delete("alder/unknown");
        settle().await;
        assert_eq!(memory.header(), before, "nothing differs");

        nodes.upsert("alder/a", "2");
        nodes.upsert("alder/a", "3");
        nodes.delete("alder/b");
        settle().await;
        assert_eq!(items(&memory, PREFIX), ["cilium/state/nodes/v1/alder/a=3"]);
        let written = item(&memory, "cilium/state/nodes/v1/alder/a").expect("it exists");
        assert_eq!(written.version, 2, "what was pending is written once");

        nodes.upsert("alder/b", "1");
        settle().await;
        assert_eq!(items(&memory, PREFIX).len(), 2, "it is new again");
        assert_eq!(nodes.pending(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_canary_follows_what_was_upserted_before() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for name in ["alder/a", "alder/b"] {
        nodes.upsert(name, "1");
    }
    nodes.delete("alder/b");
    nodes.set_synced();
    nodes.upsert("alder/late", "1");
    let mut watcher = client.list_and_watch("cilium/s");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    during(&nodes, async {
        nodes.wait_synced().await;
        let mut keys: Vec<String> = event_texts(&mut watcher, 3).await;
        let canary = keys.pop().expect("there are three");
        assert!(canary.starts_with(&format!("create {CANARY}=20")), "{canary}");
        assert!(
            canary.ends_with('Z') && canary.len() == CANARY.len() + 28,
            "{canary}"
        );
        assert!(keys[0].ends_with("alder/a=1"), "{keys:?}");
        assert!(nodes.is_synced());
    })
    .await;

    assert_ne!(item(&memory, CANARY).expect("it is written").lease, LeaseId::NONE);
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_has_a_canary_as_well() {
    let (memory, client) = memory();
    let ips = SyncStore::new(
        client.clone(),
        SyncStoreOptions::new("alder", "cilium/state/ip/v1/default/").canary_prefix("cilium/state/ip/v1"),
    );

    during(&ips, async {
        settle().await;
        assert!(!ips.is_synced());
        ips.set_synced();
        ips.wait_synced().await;
    })
    .await;

    assert!(item(&memory, "cilium/synced/alder/cilium/state/ip/v1").is_some());
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_lease_that_ended_are_written_again_and_the_canary_last() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for number in 0..20 {
        nodes.upsert(&format!("alder/n{number}"), "1");
    }
    nodes.delete("alder/n7");
    nodes.set_synced();

    during(&nodes, async {
        nodes.wait_synced().await;
        let first = item(&memory, CANARY).expect("it is written");
        let mut watcher = client.list_and_watch("cilium/s");
        event_texts(&mut watcher, 21).await;

        end_lease(&memory, CANARY).await;
        tokio::time::sleep(Duration::from_secs(600)).await;

        let events = event_texts(&mut watcher, 40).await;
        let (deleted, created) = events.split_at(20);
        assert!(
            deleted.iter().all(|event| event.starts_with("delete")),
            "{deleted:?}"
        );
        assert!(
            created.iter().all(|event| event.starts_with("create")),
            "{created:?}"
        );
        assert!(created[19].contains(CANARY), "{created:?}");
        let again = item(&memory, CANARY).expect("it is written again");
        assert_eq!(again.value, first.value, "the time of the first completion");
        assert_eq!(item(&memory, "cilium/state/nodes/v1/alder/n7"), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_while_the_store_does_not_run_is_not_missed() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    nodes.upsert("alder/a", "1");
    nodes.set_synced();
    during(&nodes, nodes.wait_synced()).await;

    end_lease(&memory, CANARY).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(items(&memory, "cilium/s").len(), 0);

    during(&nodes, settle()).await;
    assert_eq!(items(&memory, "cilium/s").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn everything_is_written_in_spite_of_failures() {
    let memory = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(memory.clone()));
    let client = RunningClient::full(faulty.clone());
    let records = Log::default();
    let nodes = SyncStore::new(client.clone(), options().recorder(Arc::new(records.clone())));
    faulty.fail(1, 0.5);

    during(&nodes, async {
        for number in 0..50 {
            nodes.upsert(&format!("alder/n{number}"), "1");
        }
        nodes.set_synced();
        nodes.wait_synced().await;
    })
    .await;

    assert_eq!(items(&memory, PREFIX).len(), 50);
    let records = records.take();
    let error = "error cilium/state/nodes/v1/ alder";
    assert!(records.contains(&error.to_owned()));
    assert!(records.contains(&"queue cilium/state/nodes/v1/ alder 50".to_owned()));
    assert_eq!(
        &records[records.len() - 2..],
        [
            "write cilium/state/nodes/v1/ alder true",
            "queue cilium/state/nodes/v1/ alder 0"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_dropped_is_done_by_the_next_run() {
    let memory = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(memory.clone()));
    let client = RunningClient::full(faulty.clone());
    let nodes = SyncStore::new(client.clone(), options());
    nodes.upsert("alder/a", "1");
    faulty.partition(true);
    during(&nodes, settle()).await;
    faulty.partition(false);
    assert_eq!(items(&memory, PREFIX).len(), 0);

    during(&nodes, settle()).await;

    assert_eq!(items(&memory, PREFIX).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn reclaims_what_it_wants_and_refreshes_only_differences() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options().write(WriteMode::IfDifferent));
    nodes.upsert("alder/a", "1");

    during(&nodes, async {
        settle().await;
        let before = memory.header();
        nodes.refresh();
        settle().await;
        assert_eq!(memory.header(), before);

        delete(&client, "cilium/state/nodes/v1/alder/a").await;
        assert!(nodes.reclaim("alder/a"));
        assert!(!nodes.reclaim("alder/b"));
        settle().await;
        assert_eq!(items(&memory, PREFIX), ["cilium/state/nodes/v1/alder/a=1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_runs() {
    let nodes = SyncStore::new(Client::disabled(), options());
    nodes.upsert("alder/a", "1");

    during(&nodes, tokio::time::sleep(Duration::from_secs(60))).await;

    assert_eq!(nodes.pending(), 1);
}
