// SPDX-License-Identifier: Apache-2.0

//! What the operator does with the state of remote clusters.

use std::sync::Arc;

use hive::{Cell, HookCtx, Lifecycle};
use skep_clustermesh_mesh::{ClusterMesh, ClusterMeshSettings};
use skep_operator_api::RemoteClusters;

/// The remote clusters, and what the leader makes of them. Nothing is connected if none of the features is enabled.
pub(crate) fn leader_cells() -> Cell {
    Cell::group([
        skep_clustermesh_mesh::operator_cell(),
        skep_operator_mesh::mcsapi::cell(),
        skep_operator_mesh::mirror::cell(),
        status(),
    ])
    .when(|settings: &ClusterMeshSettings| !settings.clustermesh_config.as_os_str().is_empty())
}

hive::catalogue!(status);

/// Shows the remote clusters at the operator's API, as long as this replica leads.
fn status() -> Cell {
    Cell::module("clustermesh-status", "Shows the remote clusters at the API").run(show)
}

fn show(mesh: Arc<ClusterMesh>, clusters: Arc<RemoteClusters>, lifecycle: Lifecycle) {
    let shown = clusters.clone();
    let hook = hive::Hook::new("show")
        .on_start(move |_: HookCtx| {
            let mesh = mesh.clone();
            // The model has no maps whose keys are no strings: it can always be written.
            shown.set(move || serde_json::to_value(mesh.status()).unwrap_or_default());
            async {}
        })
        .on_stop(move |_: HookCtx| {
            clusters.clear();
            async {}
        });
    lifecycle.add(hook);
}
