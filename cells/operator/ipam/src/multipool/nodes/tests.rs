// SPDX-License-Identifier: Apache-2.0

//! CiliumNodes and CiliumPodIPPools on the embedded API server, and the cell.

use std::time::Duration;

use hive::Running;
use serde_json::{Value, json};
use skep_k8s_client::testing::{Fault, Verb};

use crate::world::World;

async fn start(world: &World, flags: &[&str]) -> Running {
    world.operator(&[&["--ipam=multi-pool"], flags].concat()).await
}

fn asks(pool: &str, v4: u32) -> Value {
    json!({ "requested": [{ "pool": pool, "needed": { "ipv4-addrs": v4 } }] })
}

fn v4(cidrs: &[&str], mask_size: u8) -> Value {
    json!({ "ipv4": { "cidrs": cidrs, "maskSize": mask_size } })
}

async fn add(world: &World, name: &str, pools: Value) {
    world.add(name, &[]).await;
    change(world, name, pools).await;
}

async fn change(world: &World, name: &str, pools: Value) {
    world
        .change(name, |object| object["spec"]["ipam"] = json!({ "pools": pools }))
        .await;
}

/// Waits until a node has these networks, as `pool=cidr+cidr`, and an error that ends with this.
async fn wait(world: &World, name: &str, expected: &str, error: &str) {
    world
        .until(|| async {
            let object = world.read(name).await;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            let shown = list(&object["spec"]["ipam"]["pools"]["allocated"])
                .into_iter()
                .map(|entry| {
                    let cidrs = list(&entry["cidrs"]);
                    let cidrs: Vec<String> = cidrs.iter().map(text).collect();
                    format!("{}={}", text(&entry["pool"]), cidrs.join("+"))
                });
            let shown: Vec<String> = shown.collect();
            let has = text(&object["status"]["ipam"]["operator-status"]["error"]);
            let fits =
                shown.join(" ") == expected && has.is_empty() == error.is_empty() && has.ends_with(error);
            (fits, format!("{object:#}"))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn answers_requests_as_pools_come_and_change() {
    let world = World::new().await;
    add(&world, "n1", asks("blue", 10)).await;
    let running = start(&world, &[]).await;
    let missing = "ipam-multi-pool-sync allocation failed: cannot allocate from non-existing pool: blue";
    wait(&world, "n1", "", missing).await;

    world.add_pool("blue", v4(&["10.0.0.0/28"], 28)).await;
    wait(&world, "n1", "blue=10.0.0.0/28", "").await;
    let object = world.read("n1").await;
    assert_eq!(
        object["spec"]["ipam"]["pools"]["requested"][0]["needed"]["ipv4-addrs"],
        10
    );

    add(&world, "n2", asks("blue", 10)).await;
    let empty = "unable to allocate from pool blue (family v4): pool empty";
    wait(&world, "n2", "", empty).await;
    world
        .change_pool("blue", v4(&["10.0.0.0/28", "10.0.1.0/28"], 28))
        .await;
    wait(&world, "n2", "blue=10.0.1.0/28", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_removes_goes_to_the_node_that_waits() {
    let world = World::new().await;
    world.add_pool("p", v4(&["10.0.0.0/28"], 28)).await;
    add(&world, "n1", asks("p", 1)).await;
    let running = start(&world, &[]).await;
    wait(&world, "n1", "p=10.0.0.0/28", "").await;
    add(&world, "n2", asks("p", 1)).await;
    wait(&world, "n2", "", "pool empty").await;

    change(&world, "n1", json!({})).await;

    wait(&world, "n2", "p=10.0.0.0/28", "").await;
    wait(&world, "n1", "", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_and_a_removed_pool_change_nothing() {
    let world = World::new().await;
    world.add_pool("p", v4(&["10.0.0.0/24"], 28)).await;
    for name in ["n1", "n2"] {
        add(&world, name, asks("p", 1)).await;
    }
    let running = start(&world, &[]).await;
    wait(&world, "n1", "p=10.0.0.0/28", "").await;
    wait(&world, "n2", "p=10.0.0.16/28", "").await;
    hive::testing::stop(running).await;
    world.delete_pool("p").await;
    world.client.forget();

    let running = start(&world, &[]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.client.count(Verb::Update), 0);

    world.add_pool("p", v4(&["10.0.0.0/24"], 28)).await;
    add(&world, "n3", asks("p", 1)).await;
    wait(&world, "n3", "p=10.0.0.32/28", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_change_of_a_pool_is_reported_and_not_made() {
    let world = World::new().await;
    world.add_pool("p", v4(&["10.0.0.0/24"], 28)).await;
    add(&world, "n1", asks("p", 1)).await;
    let running = start(&world, &[]).await;
    wait(&world, "n1", "p=10.0.0.0/28", "").await;

    world
        .change_pool("p", v4(&["10.0.0.0/24", "10.0.0.128/25"], 28))
        .await;

    let fault = "pool `p`: network 10.0.0.128/25 overlaps 10.0.0.0/24";
    let reported = async |fault: &str| {
        world
            .until(|| async {
                let entries = running.health().entries();
                let errors = entries.iter().filter_map(|entry| entry.error.clone());
                let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
                (
                    errors.join(" ").contains(fault) && errors.is_empty() == fault.is_empty(),
                    format!("{entries:?}"),
                )
            })
            .await;
    };
    reported(fault).await;
    add(&world, "n2", asks("p", 1)).await;
    wait(&world, "n2", "p=10.0.0.16/28", "").await;
    world.delete_pool("p").await;
    reported("").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_allocated_before_the_pools_are_listed() {
    let world = World::new().await;
    world.add_pool("p", v4(&["10.0.0.0/24"], 28)).await;
    add(&world, "n1", asks("p", 1)).await;
    let pools = |verb, plural: &str| verb == Verb::List && plural == "ciliumpodippools";
    world
        .client
        .inject(move |request| pools(request.verb, &request.plural).then_some(Fault::Unreachable));
    let running = start(&world, &[]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    wait(&world, "n1", "", "").await;

    world.client.heal();

    wait(&world, "n1", "p=10.0.0.0/28", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_flag_creates_pools_once_the_server_accepts_them() {
    let world = World::new().await;
    add(&world, "n1", asks("default", 1)).await;
    world.client.fail_times(3, Verb::Create, Fault::forbidden());

    let flag =
        "--auto-create-cilium-pod-ip-pools=default=ipv4-cidrs:10.0.0.0/16,10.1.0.0/16;ipv4-mask-size:24";
    let running = start(&world, &[flag]).await;

    wait(&world, "n1", "default=10.0.0.0/24", "").await;
    let cidrs = world.pool("default").await["spec"]["ipv4"]["cidrs"].clone();
    assert_eq!(cidrs, json!(["10.0.0.0/16", "10.1.0.0/16"]));
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn pod_cidrs_become_networks_of_the_default_pool() {
    let world = World::new().await;
    world.add_pool("blue", v4(&["10.0.0.0/16"], 24)).await;
    world.add("n1", &["10.0.0.0/24"]).await;
    world.add("n2", &["10.0.1.0/25"]).await;
    world.add("n3", &["192.168.0.0/24"]).await;
    add(&world, "a", asks("blue", 1)).await;
    let flags = [
        "--enable-cluster-pool-to-multi-pool-migration",
        "--ipam-default-ip-pool=blue",
    ];

    let running = start(&world, &flags).await;

    wait(&world, "n1", "blue=10.0.0.0/24", "").await;
    let spec = world.read("n1").await["spec"]["ipam"].clone();
    assert_eq!(
        spec,
        json!({ "pools": { "allocated": [{ "pool": "blue", "cidrs": ["10.0.0.0/24"] }] } })
    );
    let failed = "migration to multi-pool IPAM failed: CIDR 10.0.1.0/25 is no network of pool `blue` and its mask size";
    wait(&world, "n2", "", failed).await;
    assert_eq!(
        world.read("n2").await["spec"]["ipam"]["podCIDRs"],
        json!(["10.0.1.0/25"])
    );
    wait(
        &world,
        "n3",
        "",
        "CIDR 192.168.0.0/24 is no network of pool `blue` and its mask size",
    )
    .await;
    wait(&world, "a", "blue=10.0.2.0/24", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_pod_cidrs_stay() {
    let world = World::new().await;
    world.add_pool("default", v4(&["10.0.0.0/16"], 24)).await;
    world.add("n1", &["10.0.0.0/24"]).await;
    add(&world, "n2", asks("default", 1)).await;
    let running = start(&world, &[]).await;

    wait(&world, "n2", "default=10.0.0.0/24", "").await;

    assert_eq!(
        world.read("n1").await["spec"]["ipam"]["podCIDRs"],
        json!(["10.0.0.0/24"])
    );
    hive::testing::stop(running).await;
}
