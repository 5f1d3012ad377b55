// SPDX-License-Identifier: Apache-2.0

//! Locks of identities.

use hive::{Level, testing};

use super::world::{World, seconds, wait_health};
use crate::locks::cell;

#[tokio::test(start_paused = true)]
async fn a_lock_whose_holder_hangs_is_deleted() {
    let world = World::new().await;
    let running = world.start(cell(), &[]).await;
    seconds(1).await;
    let path = "cilium/state/identities/v1/locks/k8s:app=cart;";
    let _held = world.node.lock(path).await.unwrap();
    assert_eq!(world.keys(path).len(), 1);

    seconds(51).await;

    assert_eq!(world.keys(path), [""; 0]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_reported() {
    let world = World::new().await;
    let running = world.start(cell(), &[]).await;
    seconds(1).await;
    world.faults.fail(1, 1.0);

    wait_health(&running, "stale-locks", Level::Degraded, "not checked").await;
    world.faults.fail(1, 0.0);
    wait_health(&running, "stale-locks", Level::Ok, "0 locks deleted").await;

    testing::stop(running).await;
}
