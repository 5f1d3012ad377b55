// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpointSlices that are not in use.

use hive::testing;
use serde_json::json;
use skep_k8s_client::testing::{Fault, Verb};
use skep_k8s_types::Kind;

use super::world::{World, seconds, until};
use crate::slices::cell;

const SLICES: Kind = Kind::new(
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
);

async fn world() -> World {
    let world = World::new().await;
    for name in ["ces-a", "ces-b"] {
        let slice = json!({ "metadata": { "name": name }, "namespace": "shop", "endpoints": [] });
        world.create(&SLICES, slice).await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn slices_are_deleted_where_they_are_off() {
    let world = world().await;
    world.faults.fail_times(1, Verb::Delete, Fault::Unreachable);
    let running = world.start(cell(), &[]).await;

    until(async || world.names(&SLICES).await.is_empty()).await;

    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn slices_in_use_are_kept() {
    let world = world().await;
    let running = world.start(cell(), &["--enable-cilium-endpoint-slice"]).await;

    seconds(600).await;

    assert_eq!(world.names(&SLICES).await, ["ces-a", "ces-b"]);
    testing::stop(running).await;
}
