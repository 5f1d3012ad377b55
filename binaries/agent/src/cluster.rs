// SPDX-License-Identifier: Apache-2.0

//! Cells: the cluster mesh, the name of the local cluster, and their status.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Cfg, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{ClusterMeshStatus, Status, StatusResponse};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_mesh::ClusterMesh;
use skep_node_local::LocalNodeStore;

hive::catalogue!(name);
hive::catalogue!(status);

/// Reads remote clusters: services, nodes, addresses, identities. Nothing happens without `--clustermesh-config`.
pub(crate) fn mesh() -> Cell {
    Cell::group([
        skep_base_settings::cluster::cell(),
        skep_kvstore_client::cell::metrics(),
        skep_kvstore_store::metrics(),
        skep_kvstore_etcd::cell(),
        skep_kvstore_client::probe::cell(),
        skep_kvstore_client::command::cell(),
        skep_clustermesh_types::command::cell(),
        skep_clustermesh_mesh::resolver::cell(),
        skep_clustermesh_mesh::cell(),
        skep_clustermesh_mesh::services::cell(),
        skep_clustermesh_mesh::nodes::cell(),
        skep_clustermesh_mesh::ipcache::cell(),
        skep_clustermesh_mesh::identities::cell(),
        skep_clustermesh_register::cell(),
        name(),
        crate::troubleshoot::cell(),
        status(),
    ])
}

/// Makes the name of the cluster that of the local node: nodes of the mesh are known by both.
fn name() -> Cell {
    Cell::module("cluster-name", "Cluster of the local node").run(set_name)
}

/// Before the start: what follows the local node sees no other name.
fn set_name(node: LocalNodeStore, settings: Cfg<ClusterSettings>) -> Result<(), statedb::Error> {
    let name = settings.info().name;
    if name.is_default() {
        return Ok(());
    }
    node.update(|node| node.cluster = name.as_str().into())
}

fn status() -> Cell {
    Cell::module("clustermesh-status", "Status of the cluster mesh").provide(clusters)
}

struct Clusters(Arc<ClusterMesh>);

/// Part `cluster-mesh`.
fn clusters(mesh: Arc<ClusterMesh>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Clusters(mesh)))
}

#[async_trait]
impl StatusProbe for Clusters {
    fn name(&self) -> &'static str {
        "cluster-mesh"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        if self.0.is_enabled() {
            response.cluster_mesh = Some(ClusterMeshStatus {
                clusters: self.0.status(),
            });
        }
        None
    }
}
