// SPDX-License-Identifier: Apache-2.0

//! Slices without CiliumEndpoints.

use hive::{Running, testing};
use serde_json::{Value, json};

use super::world::*;

const PODS: skep_k8s_types::Kind = skep_k8s_types::Kind::POD;
const IDENTITIES: skep_k8s_types::Kind =
    skep_k8s_types::Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);

const ACCOUNTS: skep_k8s_types::Kind = skep_k8s_types::Kind::SERVICE_ACCOUNT;

async fn world() -> World {
    let world = World::new().await;
    let account = json!({ "metadata": { "name": "cart", "namespace": "shop" } });
    world.create(&ACCOUNTS, account).await;
    world
}

async fn start(world: &World, flags: &[&str]) -> Running {
    let own = [
        "--ces-controller-mode=slim",
        "--cluster-name=alder",
        "--cluster-id=7",
    ];
    world.start(&[&own, flags].concat()).await
}

async fn node(world: &World, name: &str, addresses: Value) {
    let spec = json!({ "addresses": addresses, "encryption": { "key": 3 } });
    world
        .create(&NODES, json!({ "metadata": { "name": name }, "spec": spec }))
        .await;
}

async fn identity(world: &World, id: u32, app: &str) {
    identity_with(world, id, app, None).await;
}

/// An identity, perhaps with the label for named ports.
async fn identity_with(world: &World, id: u32, app: &str, ports: Option<&str>) {
    let mut labels = json!({
        "k8s:app": app,
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "shop",
        "k8s:io.cilium.k8s.policy.cluster": "alder",
        "k8s:io.cilium.k8s.policy.serviceaccount": "cart",
        "k8s:io.kubernetes.pod.namespace": "shop",
    });
    if let Some(ports) = ports {
        labels["gen:io.cilium.k8s.named-ports"] = ports.into();
    }
    let object = json!({ "metadata": { "name": id.to_string() }, "security-labels": labels });
    world.create(&IDENTITIES, object).await;
}

async fn pod(world: &World, name: &str, app: &str, host_network: bool) {
    let ports = json!([
        { "name": "web", "containerPort": 8080, "protocol": "TCP" },
        { "name": "dns", "containerPort": 53, "protocol": "UDP" },
        { "containerPort": 9000 },
    ]);
    let object = json!({
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": app, "pod-template-hash": "x" } },
        "spec": {
            "nodeName": "n1", "hostNetwork": host_network, "serviceAccountName": "cart",
            "containers": [{ "name": "c", "image": "i", "ports": ports }],
        },
    });
    world.create(&PODS, object).await;
    let status = json!({ "phase": "Running", "podIPs": [{ "ip": "10.0.2.8" }, { "ip": "fd00::8" }] });
    world.patch_status(&PODS, "shop", name, status).await;
}

/// Ids of the endpoints of all slices, by name.
async fn ids(world: &World) -> Vec<(String, i64)> {
    let slices = world.list(&SLICES).await;
    let entries = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
    let id = |entry: Value| {
        (
            entry["name"].as_str().unwrap().to_owned(),
            entry["id"].as_i64().unwrap(),
        )
    };
    let mut ids: Vec<(String, i64)> = entries.map(id).collect();
    ids.sort();
    ids
}

async fn become_ids(world: &World, expected: &[(&str, i64)]) {
    let expected: Vec<(String, i64)> = expected
        .iter()
        .map(|(name, id)| ((*name).to_owned(), *id))
        .collect();
    until(async || ids(world).await == expected).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_made_of_pods_identities_and_nodes() {
    let world = world().await;
    let addresses = json!([
        { "type": "CiliumInternalIP", "ip": "10.0.2.1" },
        { "type": "InternalIP", "ip": "fd00:50::21" },
        { "type": "InternalIP", "ip": "192.168.50.21" },
    ]);
    node(&world, "n1", addresses).await;
    identity(&world, 459_001, "cart").await;
    pod(&world, "cart-0", "cart", false).await;
    pod(&world, "on-the-host", "cart", true).await;
    let running = start(&world, &[]).await;

    become_ids(&world, &[("cart-0", 459_001)]).await;

    let entry = world.list(&SLICES).await[0]["endpoints"][0].clone();
    let uid = entry["pod-uid"].as_str().unwrap_or_default().to_owned();
    assert_ne!(uid, "");
    assert_eq!(
        entry,
        json!({
            "name": "cart-0",
            "id": 459_001,
            "pod-uid": uid,
            "service-account": "cart",
            "networking": { "node": "192.168.50.21", "addressing": [{ "ipv4": "10.0.2.8", "ipv6": "fd00::8" }] },
            "encryption": { "key": 3 },
            "named-ports": [
                { "name": "dns", "port": 53, "protocol": "UDP" },
                { "name": "web", "port": 8080, "protocol": "TCP" },
            ],
        })
    );
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_identity_with_the_named_ports_of_a_pod_has_precedence() {
    let world = world().await;
    node(
        &world,
        "n1",
        json!([{ "type": "InternalIP", "ip": "192.168.50.21" }]),
    )
    .await;
    identity_with(&world, 459_001, "cart", Some("dns.UDP.53_web.TCP.80")).await;
    identity_with(&world, 459_002, "cart", Some("dns.UDP.53_web.TCP.8080")).await;
    pod(&world, "cart-0", "cart", false).await;
    let running = start(&world, &[]).await;

    become_ids(&world, &[("cart-0", 459_002)]).await;
    identity(&world, 459_000, "cart").await;
    seconds(5).await;
    become_ids(&world, &[("cart-0", 459_002)]).await;
    world.delete(&IDENTITIES, "", "459002").await;

    become_ids(&world, &[("cart-0", 459_000)]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_waits_for_what_it_is_made_of_and_stays_while_that_changes() {
    let world = world().await;
    let running = start(&world, &[]).await;
    pod(&world, "cart-0", "cart", false).await;
    identity(&world, 459_001, "cart").await;
    seconds(5).await;
    become_ids(&world, &[]).await;
    node(
        &world,
        "n1",
        json!([{ "type": "InternalIP", "ip": "192.168.50.21" }]),
    )
    .await;
    become_ids(&world, &[("cart-0", 459_001)]).await;

    // Its new identity comes later.
    world
        .patch(
            &PODS,
            "shop",
            "cart-0",
            json!({ "metadata": { "labels": { "app": "till" } } }),
        )
        .await;
    seconds(5).await;
    become_ids(&world, &[("cart-0", 459_001)]).await;
    identity(&world, 459_002, "till").await;
    become_ids(&world, &[("cart-0", 459_002)]).await;

    // One that is gone for a moment, or exists twice.
    world.delete(&IDENTITIES, "", "459002").await;
    seconds(5).await;
    become_ids(&world, &[("cart-0", 459_002)]).await;
    identity(&world, 459_004, "till").await;
    identity(&world, 459_003, "till").await;
    become_ids(&world, &[("cart-0", 459_003)]).await;

    // A pod that has ended has no endpoint.
    world
        .patch_status(&PODS, "shop", "cart-0", json!({ "phase": "Succeeded" }))
        .await;
    become_ids(&world, &[]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_keeps_slices_and_removes_pods_that_are_gone() {
    let world = world().await;
    node(
        &world,
        "n1",
        json!([{ "type": "InternalIP", "ip": "192.168.50.21" }]),
    )
    .await;
    identity(&world, 459_001, "cart").await;
    for name in ["cart-0", "cart-1"] {
        pod(&world, name, "cart", false).await;
    }
    let running = start(&world, &[]).await;
    become_ids(&world, &[("cart-0", 459_001), ("cart-1", 459_001)]).await;
    let before: Vec<String> = world.slices().await.into_keys().collect();
    testing::stop(running).await;
    world.delete(&PODS, "shop", "cart-0").await;
    // CiliumEndpoints count for nothing.
    world.endpoint("shop", "other", 459_009).await;

    let running = start(&world, &["--disable-endpoint-crd"]).await;

    become_ids(&world, &[("cart-1", 459_001)]).await;
    let after: Vec<String> = world.slices().await.into_keys().collect();
    assert_eq!(after, before);
    testing::stop(running).await;
}
