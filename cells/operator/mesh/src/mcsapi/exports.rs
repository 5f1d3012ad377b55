// SPDX-License-Identifier: Apache-2.0

//! Service exports of remote clusters.

use std::sync::Arc;

use skep_clustermesh_mesh::{ClusterMesh, ValueObserver};
use skep_clustermesh_types::{ClusterName, Kind, RemoteInfo, ServiceExport};
use skep_kvstore_client::Key;

use crate::remote::{Remote, key};

/// The exports of all remote clusters.
pub(crate) type RemoteExports = Remote<Arc<ServiceExport>>;

impl RemoteExports {
    /// Whether a cluster is configured and its exports were never complete.
    pub(crate) fn is_unknown(&self, cluster: &str, mesh: &ClusterMesh) -> bool {
        // A cluster without exports is complete when that is known.
        !self.was_synced(cluster, Kind::ServiceExports)
            && mesh
                .status()
                .into_iter()
                .any(|status| status.name == cluster && status.synced.service_exports == Some(false))
    }
}

impl ValueObserver<ServiceExport> for RemoteExports {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, export: &Arc<ServiceExport>) {
        let key = key(&export.namespace, &export.name);
        self.change(key, cluster.name.as_str(), |value| *value = Some(export.clone()));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        // Values with another name were rejected when they were decoded.
        if let Some((namespace, name)) = name.split_once('/') {
            self.change(key(namespace, name), cluster.name.as_str(), |value| *value = None);
        }
    }

    fn synced(&self, cluster: &ClusterName) {
        Remote::synced(self, cluster, Kind::ServiceExports);
    }
}
