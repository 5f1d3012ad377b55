// SPDX-License-Identifier: Apache-2.0

//! CiliumNodes.

use hive::testing;
use serde_json::{Value, json};
use skep_k8s_client::testing::{Fault, Verb};

use super::world::{CILIUM_NODES, NODES, World, minutes, until};
use crate::nodes::cell;

fn cilium_node(name: &str, metadata: Value) -> Value {
    let mut node = json!({ "metadata": metadata, "spec": {} });
    node["metadata"]["name"] = name.into();
    node
}

async fn world() -> World {
    let world = World::new().await;
    world
        .create(&NODES, json!({ "metadata": { "name": "alive" } }))
        .await;
    world.create(&CILIUM_NODES, cilium_node("alive", json!({}))).await;
    world.create(&CILIUM_NODES, cilium_node("gone", json!({}))).await;
    let kept = json!({ "annotations": { "cilium.io/do-not-gc": "true" } });
    world.create(&CILIUM_NODES, cilium_node("kept", kept)).await;
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": "x", "uid": "u-1" }]);
    world
        .create(
            &CILIUM_NODES,
            cilium_node("owned", json!({ "ownerReferences": owner })),
        )
        .await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_node_is_deleted_in_the_pass_after_the_one_that_missed_it() {
    let world = world().await;
    let running = world.start(cell(), &[]).await;

    minutes(4).await;
    assert_eq!(world.names(&CILIUM_NODES).await.len(), 4);
    minutes(2).await;

    assert_eq!(world.names(&CILIUM_NODES).await, ["alive", "kept", "owned"]);
    world.remove(&NODES, "", "alive").await;
    minutes(5).await;
    assert!(world.names(&CILIUM_NODES).await.contains(&"alive".to_owned()));
    until(async || world.names(&CILIUM_NODES).await == ["kept", "owned"]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_is_no_candidate_any_more() {
    let world = world().await;
    let running = world.start(cell(), &[]).await;
    minutes(1).await;
    world
        .create(&NODES, json!({ "metadata": { "name": "gone" } }))
        .await;
    minutes(5).await;
    world.remove(&NODES, "", "gone").await;

    minutes(5).await;

    assert!(world.names(&CILIUM_NODES).await.contains(&"gone".to_owned()));
    minutes(6).await;
    assert!(!world.names(&CILIUM_NODES).await.contains(&"gone".to_owned()));
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn zero_keeps_all_and_without_the_kind_in_use_all_go() {
    let keeping = world().await;
    let running = keeping.start(cell(), &["--nodes-gc-interval=0"]).await;
    minutes(60).await;
    assert_eq!(keeping.names(&CILIUM_NODES).await.len(), 4);
    testing::stop(running).await;

    let unused = world().await;
    let running = unused.start(cell(), &["--enable-ciliumnode-crd=false"]).await;
    until(async || unused.names(&CILIUM_NODES).await.is_empty()).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_be_deleted_keeps_no_other() {
    let world = world().await;
    world
        .create(&CILIUM_NODES, cilium_node("a-first", json!({})))
        .await;
    world
        .faults
        .inject(|request| (request.verb == Verb::Delete && request.name == "a-first").then(Fault::forbidden));
    let running = world.start(cell(), &[]).await;

    minutes(11).await;

    assert_eq!(
        world.names(&CILIUM_NODES).await,
        ["a-first", "alive", "kept", "owned"]
    );
    testing::stop(running).await;
}
