// SPDX-License-Identifier: Apache-2.0

//! Real etcds on both sides.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh::testing::FakeCluster;
use skep_clustermesh_types::Kind;
use skep_kvstore_etcd::testing::EtcdServer;
use tokio::time::sleep;

use crate::fixture::{Place, World, canaries, copies, everything};

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
