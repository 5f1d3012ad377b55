// SPDX-License-Identifier: Apache-2.0

//! Metrics of the mesh, with Cilium's names.

use skep_clustermesh_types::Kind;
use skep_metrics::{CounterVec, Gauge, GaugeVec, HistogramVec, Metrics};

use crate::state::RemoteState;

/// What is known of remote clusters.
#[derive(Debug, Metrics)]
#[metrics(prefix = "clustermesh")]
pub struct ClusterMeshMetrics {
    /// Remote clusters that are configured.
    #[metric(name = "remote_clusters")]
    pub(crate) clusters: Gauge,
    /// Failed connections of a remote cluster.
    #[metric(name = "remote_cluster_failures", labels = ["target_cluster"])]
    pub(crate) failures: GaugeVec,
    /// When the connection of a remote cluster failed last, in seconds since 1970.
    #[metric(name = "remote_cluster_last_failure_ts", labels = ["target_cluster"])]
    pub(crate) last_failure: GaugeVec,
    /// Whether a remote cluster is ready: 1 or 0.
    #[metric(name = "remote_cluster_readiness_status", labels = ["target_cluster"])]
    pub(crate) ready: GaugeVec,
    /// How often services of a remote cluster were withdrawn because it could not be reached.
    #[metric(name = "remote_cluster_cache_revocations", labels = ["target_cluster"])]
    pub(crate) revocations: CounterVec,
    /// Nodes of a remote cluster.
    #[metric(name = "remote_cluster_nodes", labels = ["target_cluster"])]
    nodes: GaugeVec,
    /// Services of a remote cluster.
    #[metric(name = "remote_cluster_services", labels = ["target_cluster"])]
    services: GaugeVec,
    /// Addresses of a remote cluster.
    #[metric(name = "remote_cluster_endpoints", labels = ["target_cluster"])]
    endpoints: GaugeVec,
    /// Endpoint slices of a remote cluster.
    #[metric(name = "remote_cluster_endpoint_slices", labels = ["target_cluster"])]
    endpoint_slices: GaugeVec,
    /// Service exports of a remote cluster.
    #[metric(name = "remote_cluster_service_exports", labels = ["target_cluster"])]
    service_exports: GaugeVec,
    /// Seconds from when a change of a remote cluster has arrived to when it is in the maps; of nodes and identities, in the
    /// tables.
    #[metric(name = "remote_change_duration_seconds", labels = ["kind"])]
    pub(crate) change_duration: HistogramVec,
}

impl ClusterMeshMetrics {
    /// Takes over what is known of a remote cluster.
    pub(crate) fn update(&self, state: &RemoteState) {
        let status = state.status();
        let cluster = [state.name.as_str()];
        self.ready.with(cluster).set(f64::from(u8::from(status.ready)));
        self.failures.with(cluster).set(status.num_failures as f64);
        if let Some(at) = status.last_failure {
            self.last_failure.with(cluster).set(at.as_second() as f64);
        }
        for (gauge, kind) in self.counts() {
            gauge.with(cluster).set(state.entries(kind) as f64);
        }
    }

    /// Forgets a remote cluster that was removed.
    pub(crate) fn remove(&self, cluster: &str) {
        for gauge in [&self.failures, &self.last_failure, &self.ready] {
            gauge.remove([cluster]);
        }
        for (gauge, _) in self.counts() {
            gauge.remove([cluster]);
        }
        self.revocations.remove([cluster]);
    }

    fn counts(&self) -> [(&GaugeVec, Kind); 5] {
        [
            (&self.nodes, Kind::Nodes),
            (&self.services, Kind::Services),
            (&self.endpoints, Kind::Ips),
            (&self.endpoint_slices, Kind::EndpointSlices),
            (&self.service_exports, Kind::ServiceExports),
        ]
    }
}
