// SPDX-License-Identifier: Apache-2.0

//! CiliumIdentities.

use hive::testing;
use serde_json::{Value, json};
use skep_k8s_client::testing::{Fault, Verb};
use skep_k8s_types::Kind;

use super::world::{ENDPOINTS, IDENTITIES, World, minutes, seconds};
use crate::HEARTBEAT;
use crate::identities::cell;

const SLICES: Kind = Kind::new(
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
);
const CRD: &str = "--identity-allocation-mode=crd";

fn identity(id: u32) -> Value {
    json!({
        "metadata": { "name": id.to_string(), "labels": { "app": "cart" } },
        "security-labels": { "k8s:app": "cart" },
    })
}

async fn mark(world: &World, id: u32) -> Option<String> {
    let object = world.get(&IDENTITIES, "", &id.to_string()).await;
    object["metadata"]["annotations"][HEARTBEAT]
        .as_str()
        .map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn an_unused_identity_is_marked_then_deleted() {
    let world = World::new().await;
    for id in [1000, 2000] {
        world.create(&IDENTITIES, identity(id)).await;
    }
    let endpoint = json!({
        "metadata": { "name": "cart-0", "namespace": "shop" },
        "status": { "identity": { "id": 2000 } },
    });
    world.create(&ENDPOINTS, endpoint).await;
    let running = world.start(cell(), &[CRD]).await;

    minutes(29).await;
    assert_eq!(mark(&world, 1000).await, None);
    minutes(3).await;
    let time = mark(&world, 1000).await.expect("marked");
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    assert_eq!(
        world.get(&IDENTITIES, "", "1000").await["security-labels"],
        json!({ "k8s:app": "cart" })
    );
    minutes(27).await;
    assert_eq!(
        world.names(&IDENTITIES).await.len(),
        2,
        "the mark is a sign of life, too"
    );
    minutes(20).await;

    assert_eq!(world.names(&IDENTITIES).await, ["2000"]);
    minutes(600).await;
    assert_eq!(mark(&world, 2000).await, None);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_removes_the_mark_keeps_the_identity() {
    let world = World::new().await;
    world.create(&IDENTITIES, identity(1000)).await;
    let running = world.start(cell(), &[CRD]).await;
    for _ in 0..60 {
        minutes(10).await;
        if mark(&world, 1000).await.is_some() {
            let patch = json!({ "metadata": { "annotations": { HEARTBEAT: null } } });
            world.patch(&IDENTITIES, "", "1000", false, patch).await;
        }
    }

    assert_eq!(world.names(&IDENTITIES).await, ["1000"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_slices_use_identities_where_they_are_on() {
    let world = World::new().await;
    for id in [1000, 2000] {
        world.create(&IDENTITIES, identity(id)).await;
    }
    let slice = json!({
        "metadata": { "name": "ces-a" }, "namespace": "shop", "endpoints": [{ "name": "cart-0", "id": 1000 }],
    });
    world.create(&SLICES, slice).await;
    let running = world
        .start(cell(), &[CRD, "--enable-cilium-endpoint-slice"])
        .await;

    minutes(120).await;

    assert_eq!(world.names(&IDENTITIES).await, ["1000"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn clusters_without_endpoint_slices_are_well() {
    let world = World::without_slices().await;
    world.create(&IDENTITIES, identity(1000)).await;
    let running = world.start(cell(), &[CRD]).await;

    minutes(120).await;

    assert!(world.names(&IDENTITIES).await.is_empty());
    let entries = running.health().entries();
    let degraded: Vec<_> = entries
        .iter()
        .map(|entry| format!("{entry:?}"))
        .filter(|text| text.contains("Degraded"))
        .collect();
    assert_eq!(degraded, [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn deletions_are_limited_in_rate() {
    let world = World::new().await;
    for id in 1000..1030 {
        world.create(&IDENTITIES, identity(id)).await;
    }
    let flags = [
        CRD,
        "--identity-gc-interval=20s",
        "--identity-heartbeat-timeout=30s",
        "--identity-gc-rate-limit=10",
        "--identity-gc-rate-interval=1m",
    ];
    let running = world.start(cell(), &flags).await;
    seconds(79).await;
    assert_eq!(world.names(&IDENTITIES).await.len(), 30);

    seconds(2).await;
    assert_eq!(world.names(&IDENTITIES).await.len(), 20);
    seconds(60).await;
    assert_eq!(world.names(&IDENTITIES).await.len(), 10);
    seconds(60).await;
    assert_eq!(world.names(&IDENTITIES).await.len(), 0);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_may_not_be_deleted_keeps_no_other() {
    let world = World::new().await;
    for id in [1000, 2000, 3000] {
        world.create(&IDENTITIES, identity(id)).await;
    }
    world
        .faults
        .inject(|request| (request.verb == Verb::Delete && request.name == "1000").then(Fault::forbidden));
    let running = world.start(cell(), &[CRD]).await;

    minutes(120).await;

    assert_eq!(world.names(&IDENTITIES).await, ["1000"]);
    world.faults.heal();
    minutes(20).await;
    assert_eq!(world.names(&IDENTITIES).await, [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_ends_if_the_server_cannot_be_reached() {
    let world = World::new().await;
    for id in 1000..1030 {
        world.create(&IDENTITIES, identity(id)).await;
    }
    let running = world.start(cell(), &[CRD, "--identity-gc-interval=1h"]).await;
    world
        .faults
        .inject(|request| (request.verb == Verb::Update).then_some(Fault::Unreachable));

    minutes(70).await;

    assert_eq!(world.faults.count_failed(Verb::Update), 1);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn identities_of_the_kvstore_and_zero_are_left_alone() {
    for flags in [vec![], vec![CRD, "--identity-gc-interval=0"]] {
        let world = World::new().await;
        world.create(&IDENTITIES, identity(1000)).await;
        let running = world.start(cell(), &flags).await;

        minutes(300).await;

        assert_eq!(mark(&world, 1000).await, None, "{flags:?}");
        testing::stop(running).await;
    }
}
