// SPDX-License-Identifier: Apache-2.0

//! One replica takes over from another.

use std::time::Duration;

use super::world::World;

const LEASE: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_leads_when_the_lease_of_a_killed_one_ends() {
    let world = World::start().await;
    let mut first = world.operator("first", &[]);
    let (leader, _) = world.next_leader("").await;
    let second = world.operator("second", &[]);
    second.wait_healthz("200 ok").await;

    first.kill();
    let (next, took) = world.next_leader(&leader).await;

    assert!(took < LEASE + SECOND, "{took:?} from {leader} to {next}");
    // It stays.
    tokio::time::sleep(LEASE).await;
    assert_eq!(world.leader().await, next);
    drop(second);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_leads_at_once_when_the_leader_stops() {
    let world = World::start().await;
    let mut first = world.operator("first", &[]);
    let (leader, _) = world.next_leader("").await;
    let second = world.operator("second", &[]);
    // It answers, and follows.
    first.wait_healthz("200 ok").await;
    second.wait_healthz("200 ok").await;

    first.terminate();
    let (next, took) = world.next_leader(&leader).await;

    assert!(took < SECOND, "{took:?} from {leader} to {next}");
    assert_eq!(first.wait_exit().await, Some(0), "{}", first.log());
    drop(second);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_shows_the_remote_clusters() {
    let world = World::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = "endpoints: [\"http://127.0.0.1:1\"]";
    std::fs::write(folder.path().join("alder"), file).unwrap();
    let config = format!("--clustermesh-config={}", folder.path().display());
    let flags = [
        "--cluster-name=birch",
        "--cluster-id=9",
        "--clustermesh-enable-endpoint-sync",
        config.as_str(),
    ];
    let first = world.operator("first", &flags);
    let (leader, _) = world.next_leader("").await;
    let second = world.operator("second", &flags);

    first
        .wait_clusters("ClusterMesh:\t0/1 remote clusters ready\n   alder: not-ready, ")
        .await;
    second
        .wait_clusters("ClusterMesh:\t0/0 remote clusters ready\n")
        .await;

    first.terminate();
    world.next_leader(&leader).await;
    second.wait_clusters("\n   alder: not-ready, ").await;
    drop(second);
    world.stop().await;
}
