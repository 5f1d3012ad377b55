// SPDX-License-Identifier: Apache-2.0

//! Connections that are lost, stores that are set up anew, clusters that lie.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_types::{Capabilities, Kind, keys};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use tokio::time::sleep;

use crate::fixture::{World, eventually, node};

#[tokio::test(start_paused = true)]
async fn entries_stay_when_a_store_is_set_up_anew_until_it_is_complete() {
    entries_stay(false).await;
}

#[tokio::test(start_paused = true)]
async fn entries_stay_when_a_store_is_wiped_under_its_id_until_it_is_complete() {
    entries_stay(true).await;
}

async fn entries_stay(is_under_its_id: bool) {
    let world = World::start().await;
    let store = Memory::new();
    let empty = store.snapshot();
    let alder = world
        .cluster_via("alder", 7, Arc::new(store.clone()), Arc::new(store.clone()))
        .await;
    for name in ["n1", "n2"] {
        alder.put(Kind::Nodes, name, node(&alder, name)).await;
    }
    world.join("alder");
    world.ready("alder").await;
    world.nodes.take_events();

    // Another etcd cluster, which is still being filled.
    if is_under_its_id {
        store.restore(&empty);
    } else {
        store.reset();
    }
    alder.beat().await;
    alder
        .configure(Capabilities {
            synced_canaries: true,
            ..Capabilities::default()
        })
        .await;
    eventually("the connection is made anew", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0 && status.connected)
    })
    .await;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(world.nodes.names(), ["alder/n1", "alder/n2"]);
    assert!(!world.is_ready("alder"));
    alder.put(Kind::Nodes, "n2", node(&alder, "n2")).await;
    alder.publish().await;
    world.ready("alder").await;

    assert_eq!(world.nodes.names(), ["alder/n2"]);
    let events = world.nodes.take_events();
    assert_eq!(
        events,
        ["upsert alder@7/n2", "delete alder@7/n1"],
        "synced comes once"
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_without_heartbeats_is_connected_anew_and_keeps_its_entries() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.join("alder");
    world.ready("alder").await;

    world.stop_beating();
    eventually("it fails", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures >= 1)
    })
    .await;

    assert_eq!(world.nodes.names(), ["alder/n1"]);
    eventually("it is connected anew", || world.is_ready("alder")).await;
    let status = world.status("alder").expect("it is configured");
    assert!(status.last_failure.is_some());
    assert_eq!(status.last_error, None);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_costs_other_clusters_nothing() {
    let world = World::start().await;
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let alder = world
        .cluster_via("alder", 7, Arc::new(store), faulty.clone())
        .await;
    let cedar = world.cluster("cedar", 8).await;
    for name in ["alder", "cedar"] {
        world.join(name);
        world.ready(name).await;
    }

    faulty.partition(true);
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    for at in 0..50 {
        let name = format!("n{at}");
        cedar.put(Kind::Nodes, &name, node(&cedar, &name)).await;
    }
    eventually("the other is read", || world.nodes.names().len() == 50).await;
    eventually("the failure is noticed", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;
    assert!(world.is_ready("cedar"));
    assert_eq!(world.status("cedar").expect("it is configured").num_failures, 0);
    assert!(!world.is_ready("alder"));

    faulty.partition(false);
    eventually("it is read again", || {
        world.nodes.names().contains(&"alder/n1".to_owned())
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failures_back_off() {
    let world = World::start().await;
    world.write("alder", "bad");
    eventually("it fails", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;

    sleep(Duration::from_secs(600)).await;

    // 1 s, 2 s, 4 s … then once a minute.
    let failures = world.status("alder").expect("it is configured").num_failures;
    assert!((11..=20).contains(&failures), "{failures}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_configuration_is_waited_for() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.delete_key(&keys::cluster_config("alder")).await;
    world.join("alder");
    eventually("it was asked for", || {
        world
            .status("alder")
            .is_some_and(|status| status.config.is_some())
    })
    .await;
    let config = world
        .status("alder")
        .and_then(|status| status.config)
        .expect("it was asked for");
    assert_eq!(config.to_string(), "expected=true, retrieved=false");
    assert_eq!(world.status("alder").expect("it is configured").num_failures, 0);

    eventually("that takes too long", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures == 1)
    })
    .await;
    let error = world
        .status("alder")
        .and_then(|status| status.last_error)
        .expect("there is an error");
    assert!(
        error.contains("remote cluster configuration required but not found"),
        "{error}"
    );

    alder
        .configure(Capabilities {
            synced_canaries: true,
            ..Capabilities::default()
        })
        .await;
    world.ready("alder").await;
    world.stop().await;
}

/// It was read again after up to 30 seconds.
#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_written_late_is_read_at_once() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.delete_key(&keys::cluster_config("alder")).await;
    world.join("alder");
    eventually("it was asked for", || {
        world
            .status("alder")
            .is_some_and(|status| status.config.is_some())
    })
    .await;
    // Pauses between reads are long by now.
    sleep(Duration::from_secs(70)).await;
    // A cluster whose name begins alike is none of its business.
    alder.put_key(&keys::cluster_config("alder2"), "{").await;
    let written = tokio::time::Instant::now();
    alder
        .configure(Capabilities {
            synced_canaries: true,
            ..Capabilities::default()
        })
        .await;

    world.ready("alder").await;

    let took = written.elapsed();
    assert!(took < Duration::from_secs(3), "it took {took:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_configuration_of_a_connected_cluster_is_noticed() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    world.join("alder");
    world.ready("alder").await;

    alder
        .configure(Capabilities {
            synced_canaries: true,
            max_connected_clusters: 255,
            service_exports_enabled: Some(true),
            ..Capabilities::default()
        })
        .await;

    eventually("it is read again", || {
        let config = world.status("alder").and_then(|status| status.config);
        config.is_some_and(|config| config.service_exports_enabled == Some(true))
    })
    .await;
    assert_eq!(world.status("alder").expect("it is configured").num_failures, 0);
    // One that is gone for a moment, or is garbage, changes nothing.
    alder.put_key(&keys::cluster_config("alder"), "{").await;
    sleep(Duration::from_secs(400)).await;
    alder.delete_key(&keys::cluster_config("alder")).await;
    sleep(Duration::from_secs(400)).await;
    assert!(world.is_ready("alder"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_that_go_at_once_are_gone() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    for at in 0..10_000 {
        alder
            .put_service(&alder.service(&format!("s{at}"), &["10.4.1.15"]))
            .await;
    }
    world.join("alder");
    eventually("all are there", || world.backends().len() == 10_000).await;

    alder.delete_prefix(&Kind::Services.prefix("alder", false)).await;

    eventually("all are gone", || world.backends().is_empty()).await;
    assert_eq!(
        world
            .status("alder")
            .expect("it is configured")
            .num_shared_services,
        0
    );
    world.stop().await;
}
