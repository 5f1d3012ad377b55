// SPDX-License-Identifier: Apache-2.0

//! Clusters that leave, and programs that end.

use std::collections::BTreeMap;
use std::time::Duration;

use skep_clustermesh_types::Kind;
use skep_kvstore_client::testing::{RunningClient, event_texts};
use tokio::time::sleep;

use crate::fixture::{Place, World, canaries, copies, eventually};

/// `alder` with a value of each kind.
async fn alder(place: &Place) -> BTreeMap<String, bytes::Bytes> {
    let alder = place.cluster("alder", 7).await;
    for kind in Kind::ALL {
        alder.put(kind, "x", kind.as_str()).await;
    }
    copies("alder", &Kind::ALL.map(|kind| (kind, "x", kind.as_str())))
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_leaves_is_deleted_in_order_after_three_minutes() {
    let (_, place) = Place::in_memory();
    let values = alder(&place).await;
    // A name that begins alike is another cluster.
    let other = place.cluster("alder-2", 8).await;
    other.put(Kind::Nodes, "n1", "1").await;
    place.join("alder");
    place.join("alder-2");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    world.ready("alder-2").await;
    let client = RunningClient::mesh(place.local.clone());
    let mut watcher = client.list_and_watch("cilium/c");
    while event_texts(&mut watcher, 1).await != ["listDone"] {}
    let mut canaries_of = client.list_and_watch("cilium/synced/alder/");
    while event_texts(&mut canaries_of, 1).await != ["listDone"] {}

    // A thread of its own notices the file: a paused clock would not wait for it.
    tokio::time::resume();
    place.leave("alder");

    assert_eq!(
        event_texts(&mut watcher, 1).await,
        ["delete cilium/cluster-config/alder"]
    );
    tokio::time::pause();
    sleep(Duration::from_secs(179)).await;
    assert_eq!(
        place.keys("cilium/synced/alder/").await,
        canaries("alder"),
        "nothing else is deleted yet"
    );
    event_texts(&mut canaries_of, 6).await;
    let events = event_texts(&mut watcher, 6).await;
    let order = [
        "endpointslices",
        "ip",
        "identities",
        "nodes",
        "serviceexports",
        "services",
    ];
    for (event, kind) in events.iter().zip(order) {
        let expected = format!("delete cilium/cache/{kind}/v1/alder/");
        assert!(event.starts_with(&expected), "{event} is {expected}");
    }
    assert_eq!(values.len(), 6);
    place.copied(copies("alder-2", &[(Kind::Nodes, "n1", "1")])).await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder-2"));
    eventually("it is forgotten", || world.mesh.status().len() == 1).await;
    drop(client);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_returns_within_three_minutes_keeps_its_copy() {
    let (_, place) = Place::in_memory();
    let values = alder(&place).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    let before = place.items("cilium/cache/").await;

    place.leave("alder");
    let wait = async {
        while place.item("cilium/cluster-config/alder").await.is_some() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    wait.await;
    place.join("alder");

    world.ready("alder").await;
    sleep(Duration::from_secs(600)).await;
    place.copied(values).await;
    assert_eq!(
        place.items("cilium/cache/").await,
        before,
        "nothing is written again"
    );
    assert!(place.item("cilium/cluster-config/alder").await.is_some());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_returns_later_is_copied_anew() {
    let (_, place) = Place::in_memory();
    let values = alder(&place).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;

    place.leave("alder");
    eventually("it is forgotten", || world.mesh.status().is_empty()).await;
    assert_eq!(place.keys("cilium/c").await, [""; 0]);
    place.join("alder");

    place.copied(values).await;
    world.ready("alder").await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_can_be_kept() {
    let (_, place) = Place::in_memory();
    let values = alder(&place).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &["--disable-drain-on-disconnection"]).await;
    world.ready("alder").await;

    place.leave("alder");
    eventually("it is forgotten", || world.mesh.status().is_empty()).await;
    sleep(Duration::from_secs(600)).await;

    place.copied(values).await;
    assert!(place.item("cilium/cluster-config/alder").await.is_some());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_program_takes_over_and_writes_only_what_differs() {
    let (_, place) = Place::in_memory();
    let remote = place.cluster("alder", 7).await;
    for name in ["same", "other", "stale"] {
        remote.put(Kind::Nodes, name, "1").await;
    }
    place.join("alder");
    let world = World::start_at(place, &[]).await;
    world.ready("alder").await;
    let place = world.stop().await;
    assert_eq!(place.values().await.len(), 3, "a stop deletes nothing");

    remote.put(Kind::Nodes, "other", "2").await;
    remote.delete(Kind::Nodes, "stale").await;
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;

    let expected = [(Kind::Nodes, "same", "1"), (Kind::Nodes, "other", "2")];
    place.copied(copies("alder", &expected)).await;
    let same = place
        .item("cilium/cache/nodes/v1/alder/same")
        .await
        .expect("it stays");
    assert_eq!(same.version, 1, "it was right");
    sleep(Duration::from_secs(3600)).await;
    place.copied(copies("alder", &expected)).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn clusters_that_left_while_no_program_ran_are_deleted() {
    let (_, place) = Place::in_memory();
    alder(&place).await;
    let maple = place.cluster("maple", 8).await;
    maple.put(Kind::Nodes, "n1", "1").await;
    place.join("alder");
    place.join("maple");
    let world = World::start_at(place, &[]).await;
    world.ready("alder").await;
    world.ready("maple").await;
    let place = world.stop().await;
    // What the own cluster publishes is no copy.
    let own = skep_clustermesh_mesh::testing::FakeCluster::in_store("birch", 9, place.local.clone()).await;
    own.put(Kind::Nodes, "n1", "1").await;
    let published = place.keys("cilium/state/").await;

    place.leave("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("maple").await;

    place.copied(copies("maple", &[(Kind::Nodes, "n1", "1")])).await;
    assert_eq!(place.item("cilium/cluster-config/alder").await, None);
    assert_eq!(place.keys("cilium/synced/alder/").await, [""; 0]);
    assert_eq!(place.keys("cilium/synced/maple/").await, canaries("maple"));
    assert_eq!(place.keys("cilium/state/").await, published);
    assert!(place.item("cilium/cluster-config/birch").await.is_some());
    assert_eq!(place.keys("cilium/synced/birch/").await.len(), 6);
    world.stop().await;
}
