// SPDX-License-Identifier: Apache-2.0

//! Taints and conditions of nodes.

use hive::testing;
use serde_json::{Value, json};

use super::world::{NODES, PODS, World, seconds, until};
use crate::taints::cell;

const KEY: &str = "node.cilium.io/agent-not-ready";

async fn node(world: &World, name: &str, taints: Value) {
    let node = json!({ "metadata": { "name": name }, "spec": { "taints": taints } });
    world.create(&NODES, node).await;
}

async fn agent(world: &World, name: &str, node: &str, ready: &str) {
    let pod = json!({
        "metadata": { "labels": { "k8s-app": "cilium" } },
        "spec": { "nodeName": node },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    });
    world.pod("kube-system", name, pod).await;
}

async fn taints(world: &World, name: &str) -> Vec<String> {
    let node = world.get(&NODES, "", name).await;
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .map(|taint| {
            format!(
                "{}:{}",
                taint["key"].as_str().unwrap(),
                taint["effect"].as_str().unwrap()
            )
        })
        .collect()
}

async fn condition(world: &World, name: &str) -> Option<Value> {
    let node = world.get(&NODES, "", name).await;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == "NetworkUnavailable")
}

const ON: [&str; 2] = ["--cilium-pod-namespace=kube-system", "--set-cilium-node-taints"];

#[tokio::test(start_paused = true)]
async fn a_ready_agent_frees_its_node() {
    let world = World::new().await;
    let both = json!([
        { "key": KEY, "effect": "NoExecute", "value": "x" },
        { "key": "mine", "effect": "NoSchedule" },
        { "key": KEY, "effect": "NoSchedule" },
    ]);
    node(&world, "a", both.clone()).await;
    node(&world, "b", both).await;
    agent(&world, "cilium-a", "a", "True").await;
    let running = world.start(cell(), &ON).await;

    until(async || condition(&world, "a").await.is_some()).await;

    assert_eq!(taints(&world, "a").await, ["mine:NoSchedule"]);
    let written = condition(&world, "a").await.unwrap();
    assert_eq!(written["status"], "False");
    assert_eq!(written["reason"], "CiliumIsUp");
    assert_eq!(written["message"], "Cilium is running on this node");
    assert!(written["lastHeartbeatTime"].is_string() && written["lastTransitionTime"].is_string());
    assert_eq!(taints(&world, "b").await.len(), 3, "no agent there");
    assert_eq!(condition(&world, "b").await, None);

    let before = world.get(&NODES, "", "a").await;
    world
        .patch(
            &PODS,
            "kube-system",
            "cilium-a",
            false,
            json!({ "metadata": { "labels": { "x": "y" } } }),
        )
        .await;
    seconds(60).await;
    assert_eq!(world.get(&NODES, "", "a").await, before, "written once");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_ready_taints_its_node() {
    let world = World::new().await;
    node(&world, "a", json!([])).await;
    node(&world, "b", json!([{ "key": "mine", "effect": "NoSchedule" }])).await;
    agent(&world, "cilium-a", "a", "False").await;
    agent(&world, "cilium-b", "b", "False").await;
    let running = world.start(cell(), &ON).await;

    let tainted = format!("{KEY}:NoSchedule");
    until(async || taints(&world, "a").await == [tainted.clone()]).await;
    until(async || taints(&world, "b").await == ["mine:NoSchedule".to_owned(), tainted.clone()]).await;
    assert_eq!(condition(&world, "a").await, None);

    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    world.patch(&PODS, "kube-system", "cilium-a", true, ready).await;
    until(async || taints(&world, "a").await.is_empty()).await;
    until(async || condition(&world, "a").await.is_some()).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn one_ready_agent_of_two_is_enough() {
    let world = World::new().await;
    node(&world, "a", json!([])).await;
    agent(&world, "old", "a", "False").await;
    agent(&world, "new", "a", "True").await;
    let running = world.start(cell(), &ON).await;

    until(async || condition(&world, "a").await.is_some()).await;
    seconds(10).await;

    assert_eq!(taints(&world, "a").await, [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn each_part_can_be_turned_off() {
    let world = World::new().await;
    node(&world, "ready", json!([{ "key": KEY, "effect": "NoSchedule" }])).await;
    node(&world, "not", json!([])).await;
    agent(&world, "cilium-a", "ready", "True").await;
    agent(&world, "cilium-b", "not", "False").await;
    let off = [
        "--k8s-namespace=kube-system",
        "--remove-cilium-node-taints=false",
        "--set-cilium-is-up-condition=true",
    ];
    let running = world.start(cell(), &off).await;

    until(async || condition(&world, "ready").await.is_some()).await;
    seconds(10).await;

    assert_eq!(taints(&world, "ready").await.len(), 1);
    assert_eq!(taints(&world, "not").await.len(), 0);
    testing::stop(running).await;
}
