// SPDX-License-Identifier: Apache-2.0

//! Service exports of remote clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use skep_clustermesh_mesh::{ClusterMesh, ValueObserver};
use skep_clustermesh_types::{ClusterName, RemoteInfo, ServiceExport};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;
use skep_kvstore_client::Key;
use tokio::sync::Notify;

/// The exports of all remote clusters, as their stores hold them.
#[derive(Debug, Default)]
pub(crate) struct RemoteExports {
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    exports: BTreeMap<ObjectKey, BTreeMap<String, Arc<ServiceExport>>>,
    /// Clusters whose exports were complete once.
    synced: BTreeSet<String>,
    changes: Changes,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) keys: BTreeSet<ObjectKey>,
    /// The exports of a cluster became complete.
    pub(crate) is_cluster_synced: bool,
}

impl RemoteExports {
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&self) -> Changes {
        std::mem::take(&mut self.known.lock().changes)
    }

    pub(crate) fn of(&self, key: &ObjectKey) -> Vec<Arc<ServiceExport>> {
        let known = self.known.lock();
        let exports = known.exports.get(key).into_iter().flat_map(BTreeMap::values);
        exports.cloned().collect()
    }

    /// All services that remote clusters export.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.known.lock().exports.keys().cloned().collect()
    }

    /// Clusters that are configured and whose exports were never complete: what they export is not known.
    pub(crate) fn unknown_clusters(&self, mesh: &ClusterMesh) -> BTreeSet<String> {
        let known = self.known.lock();
        let unknown = mesh.status().into_iter().filter(|status| {
            // A cluster without exports is complete when that is known.
            status.synced.service_exports == Some(false) && !known.synced.contains(&status.name)
        });
        unknown.map(|status| status.name).collect()
    }

    fn note(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock());
        self.changed.notify_one();
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: Str::new(namespace),
        name: Str::new(name),
    }
}

impl ValueObserver<ServiceExport> for RemoteExports {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, export: &Arc<ServiceExport>) {
        let key = key(&export.namespace, &export.name);
        self.note(|known| {
            let exports = known.exports.entry(key.clone()).or_default();
            exports.insert(cluster.name.to_string(), export.clone());
            known.changes.keys.insert(key);
        });
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        // Values with another name were rejected when they were decoded.
        let Some((namespace, name)) = name.split_once('/') else {
            return;
        };
        let key = key(namespace, name);
        self.note(|known| {
            if let Some(exports) = known.exports.get_mut(&key) {
                exports.remove(cluster.name.as_str());
                if exports.is_empty() {
                    known.exports.remove(&key);
                }
            }
            known.changes.keys.insert(key);
        });
    }

    fn synced(&self, cluster: &ClusterName) {
        self.note(|known| {
            known.synced.insert(cluster.to_string());
            known.changes.is_cluster_synced = true;
        });
    }
}
