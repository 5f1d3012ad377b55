// SPDX-License-Identifier: Apache-2.0

//! Reports that the values of all remote clusters are complete, or that this takes too long: what was before a restart may be
//! deleted from the maps then.

use std::sync::Arc;

use hive::{Health, JobCtx, Jobs, SpawnError};
use skep_clustermesh_types::Kind;

use crate::mesh::ClusterMesh;

pub(crate) struct InitialSync<F> {
    pub(crate) kinds: &'static [Kind],
    /// Their name for people, such as `Nodes of remote clusters`.
    pub(crate) what: &'static str,
    pub(crate) done: F,
}

impl<F: Fn() -> Result<(), statedb::Error> + Send + Sync + 'static> InitialSync<F> {
    pub(crate) fn spawn(
        self,
        mesh: Arc<ClusterMesh>,
        jobs: &Jobs,
        name: &'static str,
        health: Health,
    ) -> Result<(), SpawnError> {
        jobs.keep(name, (self, mesh, health), Self::complete)
    }

    async fn complete(
        (awaited, mesh, health): &(Self, Arc<ClusterMesh>, Health),
        _: &JobCtx,
    ) -> Result<(), statedb::Error> {
        match mesh.wait_synced(awaited.kinds).await {
            Ok(()) => health.ok(format!("{} are complete", awaited.what)),
            // The report is logged, with the error.
            Err(error) => health.degraded(
                "Failed waiting for clustermesh synchronization, expect possible disruption of cross-cluster connections",
                &error,
            ),
        }
        (awaited.done)()
    }
}
