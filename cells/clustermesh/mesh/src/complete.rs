// SPDX-License-Identifier: Apache-2.0

//! Reports that the values of all remote clusters are complete, or that this takes too long: what was before a restart may be
//! deleted from the maps then.

use std::sync::Arc;

use hive::{Health, Job, JobCtx, Jobs, SpawnError};
use skep_clustermesh_types::Kind;

use crate::mesh::ClusterMesh;

/// Why values of remote clusters cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Another cell has the name of the source.
    #[error("cannot register remote clusters as a source")]
    Source(#[from] statedb::Error),
}

pub(crate) struct Awaited<F> {
    pub(crate) kinds: &'static [Kind],
    /// Their name for people, such as `Nodes of remote clusters`.
    pub(crate) what: &'static str,
    pub(crate) done: F,
}

impl<F: Fn() -> Result<(), statedb::Error> + Send + Sync + 'static> Awaited<F> {
    pub(crate) fn spawn(
        self,
        mesh: Arc<ClusterMesh>,
        jobs: &Jobs,
        name: &'static str,
        health: Health,
    ) -> Result<(), SpawnError> {
        let awaited = Arc::new(self);
        jobs.spawn(Job::once(name, move |cx: JobCtx| {
            let (mesh, awaited, health) = (mesh.clone(), awaited.clone(), health.clone());
            async move {
                let waited = cx.until_cancelled(awaited.complete(&mesh, &health)).await;
                waited.unwrap_or(Ok(()))
            }
        }))
    }

    async fn complete(&self, mesh: &ClusterMesh, health: &Health) -> Result<(), statedb::Error> {
        match mesh.wait_synced(self.kinds).await {
            Ok(()) => health.ok(format!("{} are complete", self.what)),
            // The report is logged, with the error.
            Err(error) => health.degraded(
                "Failed waiting for clustermesh synchronization, expect possible disruption of cross-cluster connections",
                &error,
            ),
        }
        (self.done)()
    }
}
