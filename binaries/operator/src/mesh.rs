// SPDX-License-Identifier: Apache-2.0

//! What the operator does with the state of remote clusters.

use hive::Cell;
use skep_clustermesh::ClusterMeshSettings;

/// The remote clusters, and what the leader makes of them. Nothing is connected if none of the features is enabled.
pub(crate) fn leader_cells() -> Cell {
    Cell::group([
        skep_clustermesh::cell(),
        skep_operator_mesh::mcsapi::cell(),
        skep_operator_mesh::mirror::cell(),
    ])
    .when(|settings: &ClusterMeshSettings| !settings.clustermesh_config.as_os_str().is_empty())
}
