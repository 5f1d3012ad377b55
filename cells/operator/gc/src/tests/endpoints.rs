// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints.

use hive::testing;
use serde_json::json;
use skep_k8s_client::testing::{Fault, Verb};

use super::world::{ENDPOINTS, PODS, World, minutes, until};
use crate::endpoints::cell;

fn endpoint(name: &str, owner: Option<(&str, &str)>) -> serde_json::Value {
    let owners: Vec<_> = owner
        .into_iter()
        .map(|(kind, name)| json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": "u-1" }))
        .collect();
    json!({ "metadata": { "name": name, "namespace": "shop", "ownerReferences": owners }, "status": {} })
}

#[tokio::test(start_paused = true)]
async fn endpoints_go_with_their_pods_when_they_are_old_enough() {
    let world = World::new().await;
    for pod in ["runs", "ends", "owner"] {
        world.pod("shop", pod, json!({})).await;
    }
    world
        .pod("shop", "failed", json!({ "status": { "phase": "Failed" } }))
        .await;
    for name in ["runs", "ends", "failed", "gone"] {
        world.create(&ENDPOINTS, endpoint(name, None)).await;
    }
    world
        .create(&ENDPOINTS, endpoint("of-pod", Some(("Pod", "owner"))))
        .await;
    world
        .create(&ENDPOINTS, endpoint("of-lost-pod", Some(("Pod", "lost"))))
        .await;
    world
        .create(&ENDPOINTS, endpoint("of-other", Some(("CiliumTest", "lost"))))
        .await;
    let running = world.start(cell(), &[]).await;

    minutes(4).await;
    assert_eq!(world.names(&ENDPOINTS).await.len(), 7, "all are young");
    minutes(7).await;

    assert_eq!(
        world.names(&ENDPOINTS).await,
        ["ends", "of-other", "of-pod", "runs"]
    );
    world
        .patch(
            &PODS,
            "shop",
            "ends",
            true,
            json!({ "status": { "phase": "Succeeded" } }),
        )
        .await;
    until(async || world.names(&ENDPOINTS).await.len() == 3).await;
    world.remove(&PODS, "shop", "owner").await;
    until(async || world.names(&ENDPOINTS).await == ["of-other", "runs"]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn all_are_deleted_once_where_they_are_not_used() {
    for flag in ["--cilium-endpoint-gc-interval=0", "--disable-endpoint-crd"] {
        let world = World::new().await;
        world.pod("shop", "runs", json!({})).await;
        world.create(&ENDPOINTS, endpoint("runs", None)).await;
        let running = world.start(cell(), &[flag]).await;

        until(async || world.names(&ENDPOINTS).await.is_empty()).await;

        world.create(&ENDPOINTS, endpoint("runs", None)).await;
        minutes(30).await;
        assert_eq!(world.names(&ENDPOINTS).await, ["runs"], "{flag}: once");
        testing::stop(running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_may_not_be_deleted_keeps_no_other() {
    let world = World::new().await;
    for name in ["a-first", "gone"] {
        world.create(&ENDPOINTS, endpoint(name, None)).await;
    }
    world
        .faults
        .inject(|request| (request.verb == Verb::Delete && request.name == "a-first").then(Fault::forbidden));
    let running = world.start(cell(), &[]).await;

    minutes(11).await;

    assert_eq!(world.names(&ENDPOINTS).await, ["a-first"]);
    testing::stop(running).await;
}
