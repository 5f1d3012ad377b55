// SPDX-License-Identifier: Apache-2.0

//! What is copied, and when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{Capabilities, Kind, keys};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use skep_kvstore_client::{Backend, LeaseId};
use tokio::time::sleep;

use crate::fixture::{Place, World, canaries, copies, eventually, everything};

fn golden() -> serde_json::Value {
    serde_json::from_str(include_str!("../../testdata/golden.json")).expect("the file is JSON")
}

fn texts(value: &serde_json::Value) -> Vec<String> {
    let texts = value.as_array().expect("it is a list").iter();
    texts
        .map(|text| text.as_str().expect("it is a text").to_owned())
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("it is hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What Cilium's kvstoremesh wrote for `alder`.
fn golden_values() -> BTreeMap<String, Bytes> {
    let golden = golden();
    let cases = golden["values"].as_array().expect("it is a list").iter();
    let value = |case: &serde_json::Value| match (&case["value"], &case["value_hex"]) {
        (serde_json::Value::String(text), _) => text.clone().into(),
        (_, hex) => unhex(hex.as_str().expect("there is a value")).into(),
    };
    cases
        .map(|case| {
            (
                case["key"].as_str().expect("it has a key").to_owned(),
                value(case),
            )
        })
        .collect()
}

/// The cluster `alder`, which publishes what the copies are of.
async fn golden_cluster(place: &Place) -> Arc<FakeCluster> {
    let alder = place.cluster("alder", 7).await;
    for (key, value) in golden_values() {
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| key.starts_with(kind.cache_prefix()))
            .expect("it is of a kind");
        let name = &key[kind.prefix("alder", true).len() + 1..];
        alder.put(kind, name, value).await;
    }
    alder
}

#[tokio::test(start_paused = true)]
async fn copies_are_those_that_cilium_writes() {
    let (_, place) = Place::in_memory();
    let alder = golden_cluster(&place).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;

    world.ready("alder").await;

    place.copied(golden_values()).await;
    let config = place
        .item("cilium/cluster-config/alder")
        .await
        .expect("it is written");
    assert_eq!(
        config.value,
        golden()["copied-config"].as_str().expect("it is a text")
    );
    assert_eq!(place.keys("cilium/synced/alder/").await, canaries("alder"));
    for item in place.items("cilium/").await {
        assert!(item.lease != LeaseId::NONE, "{} has a lease", item.key);
    }
    let status = world.status("alder").expect("it is configured");
    assert_eq!(
        (status.num_nodes, status.num_endpoints, status.num_identities),
        (2, 3, 1)
    );
    assert_eq!(
        (
            status.num_shared_services,
            status.num_endpoint_slices,
            status.num_service_exports
        ),
        (2, 2, 1)
    );

    alder.put(Kind::Nodes, "alder/w3", "{}").await;
    alder.delete(Kind::Ips, "10.4.1.15").await;
    let mut expected = golden_values();
    expected.insert("cilium/cache/nodes/v1/alder/alder/w3".to_owned(), "{}".into());
    expected.remove("cilium/cache/ip/v1/alder/10.4.1.15");
    place.copied(expected).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn values_are_not_decoded() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder.put(Kind::Ips, "no address", vec![0xff, 0x00, 0xc0]).await;
    // Agents check the configuration; kvstoremesh copies it.
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;

    let expected = [(
        "cilium/cache/ip/v1/alder/no address".to_owned(),
        Bytes::from_static(&[0xff, 0x00, 0xc0]),
    )];
    place.copied(expected.into()).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_can_be_copied_again() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder
        .configure(Capabilities {
            cached: true,
            ..everything()
        })
        .await;
    for kind in Kind::ALL {
        alder.put_key(&kind.key("alder", true, "x"), kind.as_str()).await;
        alder
            .put_key(&keys::canary("alder", kind, true), "2026-06-01T10:00:00Z")
            .await;
        alder.put(kind, "own", "not this").await;
    }
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;

    let expected = Kind::ALL.map(|kind| (kind, "x", kind.as_str()));
    place.copied(copies("alder", &expected)).await;
    world.ready("alder").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kinds_that_a_cluster_does_not_publish_have_canaries_and_no_values() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder
        .configure(Capabilities {
            synced_canaries: true,
            ..Capabilities::default()
        })
        .await;
    for kind in Kind::ALL {
        alder.put(kind, "x", "1").await;
    }
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;

    world.readiness.wait().await;

    let published = [Kind::Nodes, Kind::Services, Kind::Ips, Kind::Identities];
    let expected = published.map(|kind| (kind, "x", "1"));
    place.copied(copies("alder", &expected)).await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_read_when_its_canary_is_there() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    let canary = keys::canary("alder", Kind::Ips, false);
    alder.delete_key(&canary).await;
    alder.put(Kind::Ips, "10.4.1.15", "1").await;
    alder.put(Kind::Nodes, "n1", "1").await;
    place.join("alder");
    let world = World::start_at(place.clone(), &["--global-ready-timeout=30s"]).await;

    place.copied(copies("alder", &[(Kind::Nodes, "n1", "1")])).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(place.item(&keys::canary("alder", Kind::Ips, true)).await, None);
    assert!(!world.readiness.is_ready());

    alder.put_key(&canary, "2026-06-01T10:00:00Z").await;
    let expected = [(Kind::Nodes, "n1", "1"), (Kind::Ips, "10.4.1.15", "1")];
    place.copied(copies("alder", &expected)).await;
    world.ready("alder").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn canaries_follow_all_values_in_spite_of_failures() {
    for seed in 0..10 {
        let (local, place) = Place::in_memory();
        let faulty = FaultyBackend::new(Arc::new(local.clone()));
        let alder = place.cluster("alder", 7).await;
        for at in 0..300 {
            alder.put(Kind::Ips, &format!("10.4.1.{at}"), "1").await;
        }
        place.join("alder");
        faulty.fail(seed, 0.3);
        let world = World::start_via(place.clone(), faulty.clone(), &[]).await;

        let canary = keys::canary("alder", Kind::Ips, true);
        let mut seen = local.header();
        while place.item(&canary).await.is_none() {
            seen = local.changed(seen).await;
        }
        let values = place.values().await.len();

        assert_eq!(values, 300, "seed {seed}");
        faulty.fail(seed, 0.0);
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_during_an_outage_is_copied_and_nothing_else_is_written() {
    let (local, place) = Place::in_memory();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let faulty = FaultyBackend::new(store.clone());
    let alder = place.cluster_via("alder", 7, store, faulty.clone()).await;
    for name in ["stays", "goes"] {
        alder.put(Kind::Nodes, name, "1").await;
    }
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    let canary = place.items("cilium/synced/").await;

    faulty.partition(true);
    eventually("the outage is noticed", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;
    alder.delete(Kind::Nodes, "goes").await;
    alder.put(Kind::Nodes, "comes", "1").await;
    sleep(Duration::from_secs(600)).await;
    let expected = [(Kind::Nodes, "stays", "1"), (Kind::Nodes, "goes", "1")];
    place.copied(copies("alder", &expected)).await;
    assert!(place.item("cilium/cluster-config/alder").await.is_some());

    faulty.partition(false);
    let expected = [(Kind::Nodes, "stays", "1"), (Kind::Nodes, "comes", "1")];
    place.copied(copies("alder", &expected)).await;
    let stays = place
        .item("cilium/cache/nodes/v1/alder/stays")
        .await
        .expect("it stays");
    assert_eq!(stays.version, 1);
    assert_eq!(
        place.items("cilium/synced/").await,
        canary,
        "the time of the first completion"
    );
    let _ = local;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_are_withdrawn_after_the_time_to_live() {
    let (_, place) = Place::in_memory();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let faulty = FaultyBackend::new(store.clone());
    let alder = golden_cluster(&place).await;
    // The same values, in a store that can fail.
    let other = place.cluster_via("alder", 7, store, faulty.clone()).await;
    for (key, value) in golden_values() {
        other.put_key(&state_key(&key), value).await;
    }
    drop(alder);
    place.join("alder");
    let world = World::start_at(place.clone(), &["--clustermesh-cache-ttl=45s"]).await;
    world.ready("alder").await;
    let canaries = place.items("cilium/synced/").await;

    faulty.partition(true);

    let withdrawn = texts(&golden()["withdrawal"]);
    let mut expected = golden_values();
    expected.retain(|key, _| !withdrawn.contains(key));
    place.copied(expected).await;
    assert_eq!(place.items("cilium/synced/").await, canaries);
    assert!(place.item("cilium/cluster-config/alder").await.is_some());

    faulty.partition(false);
    place.copied(golden_values()).await;
    world.stop().await;
}

/// The key that a copy is of.
fn state_key(key: &str) -> String {
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| key.starts_with(kind.cache_prefix()))
        .expect("it is of a kind");
    kind.key("alder", false, &key[kind.prefix("alder", true).len() + 1..])
}

#[tokio::test(start_paused = true)]
async fn the_configuration_is_written_again_when_another_changes_it() {
    let (local, place) = Place::in_memory();
    place.cluster("alder", 7).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    let key = "cilium/cluster-config/alder";
    let right = place.item(key).await.expect("it is written");

    // Another cluster of the same store, whose name begins alike, is no reason to write.
    let other = FakeCluster::in_store("alder-2", 8, Arc::new(local.clone())).await;
    other.put_key(key, "{}").await;
    let is_right = || {
        let items = local.items();
        let item = items.iter().find(|item| &*item.key == key);
        item.is_some_and(|item| item.value == right.value && item.lease != LeaseId::NONE)
    };
    eventually("it is written again", is_right).await;
    other.delete_key(key).await;
    eventually("it is written again", is_right).await;
    let lease = place.item(key).await.expect("it is written").lease;
    local.revoke_lease(lease).await.expect("it is revoked");
    eventually("it is written again", is_right).await;
    world.stop().await;
}
