// SPDX-License-Identifier: Apache-2.0

//! A remote cluster that is slow, flaps or lies, next to one that is fine.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_types::{Capabilities, Kind, keys};
use skep_kvstore_client::Backend;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use tokio::time::{Instant, sleep};

use crate::fixture::{Place, World, copies, eventually, everything};

/// How long a change of a cluster takes until it is copied.
async fn delay(place: &Place, cluster: &skep_clustermesh_mesh::testing::FakeCluster, name: &str) -> Duration {
    let started = Instant::now();
    cluster.put(Kind::Nodes, name, "1").await;
    let key = Kind::Nodes.key(&cluster.name, true, name);
    while place.item(&key).await.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn clusters_that_flap_hang_or_lie_cost_the_others_nothing() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    let mut faults = Vec::new();
    for (name, id) in [("flaps", 8), ("hangs", 10)] {
        let store: Arc<dyn Backend> = Arc::new(Memory::new());
        let faulty = FaultyBackend::new(store.clone());
        place.cluster_via(name, id, store, faulty.clone()).await;
        faults.push(faulty);
    }
    let lies = place.cluster("lies", 7).await;
    lies.put_key(&keys::cluster_config("lies"), "no JSON").await;
    for name in ["alder", "flaps", "hangs", "lies", "no-store"] {
        place.join(name);
    }
    faults[1].partition(true);
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;

    for round in 0..100 {
        faults[0].fail(round, 0.5);
        faults[0].cut_watches();
        let took = delay(&place, &alder, &format!("n{round}")).await;
        assert!(took < Duration::from_millis(100), "round {round}: {took:?}");
        sleep(Duration::from_secs(round % 10)).await;
    }

    let status = |name: &str| world.status(name).expect("it is configured");
    assert_eq!(status("alder").num_failures, 0);
    assert!(!status("hangs").ready && !status("lies").ready && !status("no-store").ready);
    let health = |name: &str| {
        let id = format!("kvstoremesh.{name}");
        world.running.health().get(&id).map(|entry| format!("{entry:?}"))
    };
    assert!(
        health("alder").is_some_and(|entry| entry.contains("Ready")),
        "{:?}",
        health("alder")
    );
    assert!(
        health("lies").is_some_and(|entry| entry.contains("lies")),
        "{:?}",
        health("lies")
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ids_are_not_checked_and_values_stay_below_the_prefix_of_their_cluster() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    let twin = place.cluster("twin", 7).await;
    alder.put(Kind::Nodes, "n1", "alder").await;
    for name in ["../alder/n1", "/alder/n1", "alder/n1"] {
        twin.put(Kind::Nodes, name, "twin").await;
    }
    for name in ["alder", "twin"] {
        place.join(name);
    }
    let world = World::start_at(place.clone(), &[]).await;

    let mut expected = copies("alder", &[(Kind::Nodes, "n1", "alder")]);
    expected.extend(copies(
        "twin",
        &["../alder/n1", "/alder/n1", "alder/n1"].map(|name| (Kind::Nodes, name, "twin")),
    ));
    place.copied(expected).await;
    world.ready("twin").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_is_copied_with_the_next_connection() {
    let (_, place) = Place::in_memory();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let faulty = FaultyBackend::new(store.clone());
    let alder = place.cluster_via("alder", 7, store, faulty.clone()).await;
    for kind in [Kind::Nodes, Kind::ServiceExports] {
        alder.put(kind, "x", "1").await;
    }
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;

    let capabilities = Capabilities {
        service_exports_enabled: None,
        ..everything()
    };
    alder.configure(capabilities).await;
    faulty.partition(true);
    eventually("the outage is noticed", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;
    faulty.partition(false);

    place.copied(copies("alder", &[(Kind::Nodes, "x", "1")])).await;
    let config = place
        .item("cilium/cluster-config/alder")
        .await
        .expect("it is written");
    let text = String::from_utf8_lossy(&config.value).into_owned();
    assert!(!text.contains("serviceExportsEnabled"), "{text}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_written_again_when_its_lease_ends() {
    let (local, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    for at in 0..150 {
        alder.put(Kind::Ips, &format!("10.4.1.{at}"), "1").await;
    }
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    let values = place.values().await;
    let canaries = place.keys("cilium/synced/").await;

    let lease = place.items("cilium/cache/").await[0].lease;
    local.revoke_lease(lease).await.expect("it is revoked");
    assert!(place.values().await.is_empty());

    place.copied(values).await;
    while place.keys("cilium/synced/").await != canaries {
        sleep(Duration::from_millis(20)).await;
    }
    world.stop().await;
}
