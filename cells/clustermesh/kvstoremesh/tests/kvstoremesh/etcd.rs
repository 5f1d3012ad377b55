// SPDX-License-Identifier: Apache-2.0

//! Real etcds on both sides.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{Kind, keys};
use skep_kvstore_etcd::testing::EtcdServer;
use tokio::time::sleep;

use crate::fixture::{Place, World, canaries, copies, eventually, everything};

#[tokio::test]
async fn a_cluster_is_copied_between_etcds_and_taken_over_after_a_restart() {
    let (mut remote, local) = (EtcdServer::start().await, EtcdServer::start().await);
    let alder = Arc::new(FakeCluster::in_store("alder", 7, remote.backend()).await);
    alder.configure(everything()).await;
    for at in 0..250 {
        alder.put(Kind::Ips, &format!("10.4.1.{at}"), "1").await;
    }
    let place = Place::new(local.backend());
    place.write("alder", &format!("http://127.0.0.1:{}", remote.port()));
    let world = World::start_etcd(place.clone()).await;
    world.ready("alder").await;
    let names: Vec<String> = (0..250).map(|at| format!("10.4.1.{at}")).collect();
    let mut expected: Vec<_> = names.iter().map(|name| (Kind::Ips, name.as_str(), "1")).collect();
    place.copied(copies("alder", &expected)).await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));

    remote.kill();
    remote.restart().await;
    alder.delete(Kind::Ips, "10.4.1.249").await;
    expected.pop();
    place.copied(copies("alder", &expected)).await;

    world.stop().await;
    alder.delete(Kind::Ips, "10.4.1.248").await;
    expected.pop();
    let before = place.items("cilium/cache/").await;
    let world = World::start_etcd(place.clone()).await;
    world.readiness.wait().await;
    place.copied(copies("alder", &expected)).await;
    let after = place.items("cilium/cache/").await;
    for item in &after {
        assert!(before.contains(item), "{} is written again", item.key);
    }

    let lease = after[0].lease;
    place.local.revoke_lease(lease).await.expect("it is revoked");
    // The next write finds that the lease has ended.
    alder.put(Kind::Nodes, "n1", "1").await;
    expected.push((Kind::Nodes, "n1", "1"));
    place.copied(copies("alder", &expected)).await;
    while place.keys("cilium/synced/").await != canaries("alder") {
        sleep(Duration::from_millis(20)).await;
    }
    world.stop().await;
}

/// The copy was deleted and its canaries stayed, so that agents withdrew all of the cluster.
#[tokio::test]
async fn copies_and_canaries_stay_when_an_etcd_is_wiped_under_its_id() {
    let (mut remote, mut local) = (EtcdServer::start().await, EtcdServer::start().await);
    let alder = Arc::new(FakeCluster::in_store("alder", 7, remote.backend()).await);
    alder.configure(everything()).await;
    for name in ["10.4.1.1", "10.4.1.2"] {
        alder.put(Kind::Ips, name, "1").await;
    }
    let place = Place::new(local.backend());
    place.write("alder", &format!("http://127.0.0.1:{}", remote.port()));
    let world = World::start_etcd(place.clone()).await;
    let both = copies(
        "alder",
        &[(Kind::Ips, "10.4.1.1", "1"), (Kind::Ips, "10.4.1.2", "1")],
    );
    place.copied(both.clone()).await;
    world.ready("alder").await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    let config = place.item(&keys::cluster_config("alder")).await;

    remote.wipe_under_its_id();
    remote.restart().await;
    eventually("another store is noticed, and its configuration missed", || {
        world.status("alder").is_some_and(|status| {
            let missing = "remote cluster configuration required but not found";
            status.num_failures > 0 && status.status.contains(missing)
        })
    })
    .await;
    assert_eq!(place.values().await, both);
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    assert_eq!(place.item(&keys::cluster_config("alder")).await, config);

    alder.beat().await;
    alder.configure(everything()).await;
    alder.put(Kind::Ips, "10.4.1.2", "1").await;
    for kind in Kind::ALL {
        alder.put_key(&keys::canary("alder", kind, false), "now").await;
    }
    let one = copies("alder", &[(Kind::Ips, "10.4.1.2", "1")]);
    place.copied(one.clone()).await;
    world.ready("alder").await;

    // The own store, too, while the cluster cannot be reached: the lock of the program is lost, which ends. There are no canaries
    // without the copy.
    remote.kill();
    hive::testing::expect_failure(&world.running, "leader election lost");
    local.wipe_under_its_id();
    local.restart().await;
    let ended = tokio::time::timeout(Duration::from_secs(120), world.running.wait());
    ended.await.expect("it ends");
    let _ = world.running.stop().await;
    let world = World::start_etcd(place.clone()).await;
    eventually("it tries to read the cluster", || world.status("alder").is_some()).await;
    if !place.keys("cilium/synced/").await.is_empty() {
        assert_eq!(place.values().await, one);
    }
    remote.restart().await;
    place.copied(one).await;
    world.ready("alder").await;
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    world.stop().await;
}
