// SPDX-License-Identifier: Apache-2.0

//! A store that outlives the program.

use serde_json::json;
use skep_kvstore_client::Backend;

use crate::world::{ENDPOINTS, NODES, World, endpoint, eventually};

fn revisions(world: &World, prefix: &str) -> Vec<(String, i64)> {
    let items = world.memory.items().into_iter();
    items
        .filter(|item| item.key.starts_with(prefix))
        .map(|item| (item.key.to_string(), item.mod_revision.0))
        .collect()
}

#[tokio::test]
async fn right_keys_are_not_written_again_and_stale_ones_are_deleted() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.apply(&NODES, json!({ "metadata": { "name": name } })).await;
    }
    world
        .apply(&ENDPOINTS, endpoint("p", 458_753, &["10.4.1.1"]))
        .await;
    let program = world.start(&[]).await;
    program.synced().await;
    program.stop().await;
    let before = revisions(&world, "cilium/state/");
    world.delete(&NODES, "", "b").await;

    let program = world.start(&[]).await;
    program.synced().await;

    let expected: Vec<_> = before
        .into_iter()
        .filter(|(key, _)| key != "cilium/state/nodes/v1/alder/b")
        .collect();
    assert_eq!(revisions(&world, "cilium/state/"), expected);
    program.stop().await;
}

#[tokio::test]
async fn keys_whose_lease_ends_are_written_again() {
    let world = World::new().await;
    world.apply(&NODES, json!({ "metadata": { "name": "a" } })).await;
    let program = world.start(&[]).await;
    program.synced().await;
    eventually("all is there", || {
        world.names("cilium/cluster-config/") == ["alder"]
    })
    .await;
    let before = world.names("cilium/");

    let leases: std::collections::BTreeSet<_> =
        world.memory.items().into_iter().map(|item| item.lease).collect();
    for lease in leases {
        let _ = world.memory.revoke_lease(lease).await;
    }
    // A write finds out that the lease has ended.
    world.apply(&NODES, json!({ "metadata": { "name": "b" } })).await;

    eventually("all is there again", || {
        let now = world.names("cilium/");
        before.iter().all(|key| now.contains(key)) && now.len() > before.len()
    })
    .await;
    program.stop().await;
}
