// SPDX-License-Identifier: Apache-2.0

//! Conflicts between clusters and between writers, and writes that are denied.

use serde_json::json;
use skep_k8s_client::testing::Verb;

use super::world::{World, denied, exports, faults, imports, publish, remote_export, services};

const MCS: &str = "--clustermesh-enable-mcs-api";
const DERIVED: &str = "derived-bsqa4s8pq5";

#[tokio::test(start_paused = true)]
async fn clusters_that_disagree_are_named_in_the_condition() {
    let world = World::new();
    let (alder, cedar) = (world.cluster("alder", 7).await, world.cluster("cedar", 8).await);
    let mut export = remote_export(&alder, "cart", 80);
    publish(&alder, &export).await;
    export = remote_export(&cedar, "cart", 80);
    publish(&cedar, &export).await;
    world.join("alder");
    world.join("cedar");
    world.service(
        "cart",
        json!({ "clusterIP": "None", "ports": [{ "name": "p80", "port": 81 }] }),
    );
    world.export("cart", json!({}));
    let operator = world.operator(&[MCS]).await;

    world
        .until(
            "Conflict=True PortConflict, Ready=True Ready, Valid=True Valid".to_owned(),
            |w| w.conditions(&exports(), "cart"),
        )
        .await;

    let export = world.get(&exports(), "cart");
    let conditions = export["status"]["conditions"].as_array().unwrap();
    let conflict = conditions.iter().find(|c| c["type"] == "Conflict").unwrap();
    assert_eq!(
        conflict["message"],
        "Using the properties of the oldest export, of cluster `alder`; conflicting ports: 1/3 clusters disagree; conflicting type: 1/3 clusters disagree"
    );
    world.settle().await;
    assert_eq!(world.get(&imports(), "cart")["spec"]["type"], "ClusterSetIP");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn denied_writes_are_named_and_retried_and_cost_others_nothing() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    publish(&alder, &remote_export(&alder, "web", 80)).await;
    world.join("alder");
    world
        .client
        .inject(|request| ((&*request.plural, &*request.name) == ("services", DERIVED)).then(denied));
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=True Ready".to_owned(), |w| w.conditions(&imports(), "web"))
        .await;
    world
        .until("Ready=False Pending".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    let expected = format!("`shop/cart`: cannot create Service `shop/{DERIVED}`: no rights");
    world.until(true, |_| faults(&operator).contains(&expected)).await;

    world.client.heal();
    world
        .until("Ready=True Ready".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    world
        .until(false, |_| faults(&operator).contains("no rights"))
        .await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changes_of_other_writers_are_undone_in_their_newest_version() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    let operator = world.operator(&[MCS]).await;
    world
        .until("Ready=True Ready".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    world.settle().await;

    // Another writer comes between each comparison and the first writes that follow.
    let api = world.api.clone();
    let left = std::sync::atomic::AtomicI32::new(2);
    world.client.inject(move |request| {
        if request.verb == Verb::Patch
            && request.plural == "services"
            && left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) > 0
        {
            let patch = json!({ "metadata": { "labels": { "other": format!("{left:?}") } } });
            let patch = skep_k8s_memory::Patch::Merge(patch);
            let part = skep_k8s_memory::Subresource::None;
            api.patch(
                &services(),
                "shop",
                &request.name,
                part,
                &patch,
                &Default::default(),
            )
            .unwrap();
        }
        None
    });
    world.patch(
        &services(),
        "shop",
        DERIVED,
        json!({ "spec": { "sessionAffinity": "ClientIP" } }),
    );

    world
        .until(json!("None"), |w| {
            w.get(&services(), DERIVED)["spec"]["sessionAffinity"].clone()
        })
        .await;
    world
        .until(
            json!({ "multicluster.kubernetes.io/service-name": "cart" }),
            |w| w.get(&services(), DERIVED)["metadata"]["labels"].clone(),
        )
        .await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_derived_is_not_touched() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    world.service(DERIVED, json!({ "ports": [{ "port": 99 }] }));
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=False Pending".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    world
        .until(true, |_| faults(&operator).contains("exists and is not derived"))
        .await;
    assert_eq!(world.get(&services(), DERIVED)["spec"]["ports"][0]["port"], 99);

    world.delete(&services(), "shop", DERIVED);
    world
        .until("Ready=True Ready".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    operator.stop().await.unwrap();
}
