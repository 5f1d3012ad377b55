// SPDX-License-Identifier: Apache-2.0

//! Pods without an endpoint.

use hive::testing;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::world::{ENDPOINTS, PODS, World, minutes, seconds};
use crate::pods::cell;

async fn dns(world: &World, name: &str, more: Value) {
    // A little later than the watcher, so that the time that the set-up takes does not count.
    let start = Timestamp::now() + SignedDuration::from_secs(5);
    let mut pod = json!({
        "metadata": { "labels": { "k8s-app": "kube-dns" } },
        "status": { "startTime": start.to_string() },
    });
    for (key, value) in more.as_object().unwrap() {
        pod[key] = value.clone();
    }
    world.pod("kube-system", name, pod).await;
}

#[tokio::test(start_paused = true)]
async fn restarts_one_pod_at_a_time_when_it_ran_for_a_while() {
    let world = World::new().await;
    dns(&world, "dns-a", json!({})).await;
    dns(&world, "dns-b", json!({})).await;
    dns(
        &world,
        "dns-host",
        json!({ "spec": { "hostNetwork": true, "containers": [{ "name": "c", "image": "i" }] } }),
    )
    .await;
    dns(&world, "dns-managed", json!({})).await;
    dns(
        &world,
        "other",
        json!({ "metadata": { "labels": { "k8s-app": "web" } } }),
    )
    .await;
    world
        .create(
            &ENDPOINTS,
            json!({ "metadata": { "name": "dns-managed", "namespace": "kube-system" } }),
        )
        .await;
    let running = world.start(cell(), &[]).await;

    seconds(29).await;
    assert_eq!(world.names(&PODS).await.len(), 5, "all are young");
    seconds(17).await;
    assert_eq!(world.names(&PODS).await.len(), 4);
    seconds(15).await;

    assert_eq!(world.names(&PODS).await, ["dns-host", "dns-managed", "other"]);
    minutes(10).await;
    assert_eq!(world.names(&PODS).await, ["dns-host", "dns-managed", "other"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_left_alone_for_five_minutes() {
    let world = World::new().await;
    dns(&world, "dns-0", json!({})).await;
    let running = world.start(cell(), &[]).await;
    seconds(46).await;
    assert_eq!(world.names(&PODS).await, [""; 0]);
    dns(&world, "dns-0", json!({})).await;

    minutes(4).await;
    assert_eq!(world.names(&PODS).await, ["dns-0"]);
    minutes(2).await;
    assert_eq!(world.names(&PODS).await, [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn is_off_with_zero_and_without_endpoints() {
    for flag in ["--unmanaged-pod-watcher-interval=0", "--disable-endpoint-crd"] {
        let world = World::new().await;
        dns(&world, "dns-a", json!({})).await;
        let running = world.start(cell(), &[flag]).await;

        minutes(10).await;

        assert_eq!(world.names(&PODS).await, ["dns-a"], "{flag}");
        testing::stop(running).await;
    }
}
