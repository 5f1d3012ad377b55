// SPDX-License-Identifier: Apache-2.0

//! Keys of nodes.

use hive::{Level, testing};

use super::world::{CILIUM_NODES, World, seconds, wait_health};
use crate::nodes::cell;

const NODES: &str = "cilium/state/nodes/v1/";

fn key(name: &str) -> String {
    format!("{NODES}{name}")
}

async fn put(world: &World, names: &[&str]) {
    for name in names {
        world.put(&[(&key(name), "{}")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_node_that_left_is_deleted_a_minute_after_it_was_seen() {
    let world = World::new().await;
    world.cilium_node("n1").await;
    put(&world, &["alder/n1", "alder/n2", "alder-2/n3"]).await;
    let running = world.start(cell(), &[]).await;

    seconds(59).await;
    assert_eq!(world.keys(NODES), ["alder-2/n3", "alder/n1", "alder/n2"]);
    put(&world, &["alder/n4"]).await;
    seconds(2).await;
    assert_eq!(world.keys(NODES), ["alder-2/n3", "alder/n1", "alder/n4"]);
    seconds(60).await;

    assert_eq!(world.keys(NODES), ["alder-2/n3", "alder/n1"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_node_is_deleted_with_its_cilium_node() {
    let world = World::new().await;
    for node in ["n1", "n2"] {
        world.cilium_node(node).await;
    }
    put(&world, &["alder/n1", "alder/n2"]).await;
    let running = world.start(cell(), &[]).await;
    seconds(600).await;
    assert_eq!(world.keys(NODES), ["alder/n1", "alder/n2"]);

    world.delete(&CILIUM_NODES, "", "n1").await;
    seconds(1).await;

    assert_eq!(world.keys(NODES), ["alder/n2"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_agent_runs_keeps_its_key() {
    let world = World::new().await;
    world.agent("cilium-1", "n1").await;
    world.agent("cilium-2", "n2").await;
    world.set_phase("cilium-2", "Failed").await;
    put(&world, &["alder/n1", "alder/n2"]).await;
    let running = world.start(cell(), &[]).await;
    seconds(900).await;
    assert_eq!(world.keys(NODES), ["alder/n1"]);

    world.set_phase("cilium-1", "Succeeded").await;
    seconds(121).await;

    assert_eq!(world.keys(NODES), [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_back_in_time_keeps_its_key() {
    let world = World::new().await;
    put(&world, &["alder/n1"]).await;
    let running = world.start(cell(), &[]).await;
    seconds(30).await;

    world.cilium_node("n1").await;
    seconds(600).await;

    assert_eq!(world.keys(NODES), ["alder/n1"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_retried_and_reported() {
    let world = World::new().await;
    put(&world, &["alder/n1"]).await;
    let running = world.start(cell(), &[]).await;
    seconds(1).await;
    world.faults.fail(1, 1.0);

    wait_health(&running, "kvstore-nodes-gc", Level::Degraded, "node `n1`").await;
    world.faults.fail(1, 0.0);
    wait_health(&running, "kvstore-nodes-gc", Level::Ok, "in sync").await;

    assert_eq!(world.keys(NODES), [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn keys_stay_where_nodes_are_not_synchronized() {
    let world = World::new().await;
    put(&world, &["alder/n1"]).await;
    let running = world.start(cell(), &["--synchronize-k8s-nodes=false"]).await;

    seconds(600).await;

    assert_eq!(world.keys(NODES), ["alder/n1"]);
    testing::stop(running).await;
}
