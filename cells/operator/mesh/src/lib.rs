// SPDX-License-Identifier: Apache-2.0

//! Cluster mesh in the operator.
//!
//! - [`mcsapi`]: the multi-cluster services API: ServiceExports of all clusters become ServiceImports;
//! - [`mirror`]: backends of remote clusters become EndpointSlices;
//! - `skep-clustermesh-mesh` connects to the remote clusters; nothing is connected if none of the cells here is enabled.

mod diff;
pub mod mcsapi;
pub mod mirror;
mod namespace;
mod object;
mod remote;
mod slices;
mod write;

use std::sync::Arc;

use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::Kind;

/// Waits for remote clusters, or until `clustermesh-sync-timeout` is over.
async fn synced(mesh: Arc<ClusterMesh>, kinds: &'static [Kind]) {
    if let Err(error) = mesh.wait_synced(kinds).await {
        tracing::warn!(
            error = hive::error_chain(&error),
            "Timed out waiting for remote clusters, continuing without their services"
        );
    }
}

#[cfg(test)]
mod tests;
