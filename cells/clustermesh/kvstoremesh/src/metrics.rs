// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{CounterVec, Gauge, GaugeVec, Metrics};
use skep_clustermesh_mesh::RemoteClusterStatus;

/// What is known of remote clusters, and of this program.
#[derive(Debug, Metrics)]
pub struct KvstoreMeshMetrics {
    /// Configured remote clusters.
    #[metric(name = "remote_clusters")]
    clusters: Gauge,
    /// Connection failures of a remote cluster.
    #[metric(name = "remote_cluster_failures", labels = ["target_cluster"])]
    failures: GaugeVec,
    /// Unix timestamp of the last connection failure of a remote cluster.
    #[metric(name = "remote_cluster_last_failure_ts", labels = ["target_cluster"])]
    last_failure: GaugeVec,
    /// Readiness of a remote cluster: 1 or 0.
    #[metric(name = "remote_cluster_readiness_status", labels = ["target_cluster"])]
    ready: GaugeVec,
    /// Cache revocations of a remote cluster: its services were removed after `clustermesh-cache-ttl`.
    #[metric(name = "remote_cluster_cache_revocations", labels = ["target_cluster"])]
    pub(crate) revocations: CounterVec,
    /// Duration of the initial synchronization of all remote clusters.
    #[metric(name = "bootstrap_seconds")]
    pub(crate) bootstrap: Gauge,
    /// Leader: 1 or 0.
    #[metric(name = "leader_election_master_status", labels = ["name"])]
    pub(crate) leads: GaugeVec,
}

impl KvstoreMeshMetrics {
    /// Takes over how remote clusters are.
    pub(crate) fn update(&self, clusters: &[RemoteClusterStatus]) {
        self.clusters.set(clusters.len() as f64);
        for status in clusters {
            let cluster = [status.name.as_str()];
            self.ready.with(cluster).set(f64::from(u8::from(status.ready)));
            self.failures.with(cluster).set(status.num_failures as f64);
            if let Some(at) = status.last_failure {
                self.last_failure.with(cluster).set(at.as_second() as f64);
            }
        }
    }

    /// Forgets a remote cluster that was removed.
    pub(crate) fn remove(&self, cluster: &str) {
        for gauge in [&self.failures, &self.last_failure, &self.ready] {
            gauge.remove([cluster]);
        }
        self.revocations.remove([cluster]);
    }
}
