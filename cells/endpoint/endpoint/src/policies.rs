// SPDX-License-Identifier: Apache-2.0

//! Table `policy-maps` → table `endpoints`: an endpoint is written once its policy is realized.

use hive::JobCtx;
use skep_policy_maps::EndpointPolicy;
use statedb::{Change, ChangeIterator};

use crate::Endpoints;

/// A job.
pub(crate) async fn follow(endpoints: &Endpoints, cx: &JobCtx) -> Result<(), statedb::Error> {
    cx.health.ok("Running");
    let changes = endpoints.policies().table().follow(endpoints.db());
    take_over(endpoints, changes).await
}

/// Takes over what is realized, until dropped.
pub(crate) async fn take_over(
    endpoints: &Endpoints,
    mut changes: ChangeIterator<EndpointPolicy>,
) -> Result<(), statedb::Error> {
    loop {
        let snapshot = endpoints.db().read();
        let (round, changed) = changes.next_watch(&snapshot);
        let rows: Vec<_> = round
            .filter_map(|change| match change {
                Change::Upsert(row) => Some(row),
                Change::Delete { .. } | Change::Relist => None,
            })
            .collect();
        drop(snapshot);
        let gone = endpoints.set_policies(rows)?;
        if !gone.is_empty() {
            endpoints.policies().release(gone).await?;
        }
        changed.closed().await;
    }
}
