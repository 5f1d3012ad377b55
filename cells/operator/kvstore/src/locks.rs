// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes locks of identities whose holders hang. Requires: a client of the key-value store.

use hive::{Cell, JobCtx, Jobs, SpawnError};
use skep_identity_kvstore::{IdentityKeys, LockSweep, SWEEP_INTERVAL};
use skep_kvstore_client::Client;

hive::catalogue!(cell);

/// Deletes locks that are held for too long.
pub fn cell() -> Cell {
    Cell::module(
        "kvstore-stale-locks-sweeper",
        "Deletes locks of identities that are held for too long",
    )
    .run(start)
}

fn start(client: Client, jobs: Jobs) -> Result<(), SpawnError> {
    if !client.is_enabled() {
        return Ok(());
    }
    jobs.keep("sweep", client, run)
}

async fn run(client: &Client, cx: &JobCtx) {
    client.wait_connected().await;
    let mut sweep = LockSweep::new(client.clone(), IdentityKeys::default());
    loop {
        match sweep.round().await {
            Ok(deleted) => cx.health.ok(format!("{deleted} locks deleted in the last round")),
            Err(error) => cx.health.degraded("Locks of identities were not checked", &error),
        }
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}
