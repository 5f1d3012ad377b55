// SPDX-License-Identifier: Apache-2.0

//! Metrics of the mesh, with Cilium's names.

use skep_base_metrics::{CounterVec, Gauge, GaugeVec, HistogramVec, MetricHandle, MetricSet, Metrics};
use skep_clustermesh_types::Kind;

use crate::state::RemoteState;

/// What is known of remote clusters: as a set all metrics, which is what an agent exports.
#[derive(Debug, Default)]
pub struct ClusterMeshMetrics {
    pub(crate) remotes: RemoteMetrics,
    pub(crate) agent: AgentMetrics,
}

/// What agents and operators export.
#[derive(Debug, Metrics)]
#[metrics(prefix = "clustermesh")]
pub(crate) struct RemoteMetrics {
    /// Configured remote clusters.
    #[metric(name = "remote_clusters")]
    pub(crate) clusters: Gauge,
    /// Connection failures of a remote cluster.
    #[metric(name = "remote_cluster_failures", labels = ["target_cluster"])]
    pub(crate) failures: GaugeVec,
    /// Unix timestamp of the last connection failure of a remote cluster.
    #[metric(name = "remote_cluster_last_failure_ts", labels = ["target_cluster"])]
    pub(crate) last_failure: GaugeVec,
    /// Readiness of a remote cluster: 1 or 0.
    #[metric(name = "remote_cluster_readiness_status", labels = ["target_cluster"])]
    pub(crate) ready: GaugeVec,
    /// Cache revocations of a remote cluster: its services were removed after `clustermesh-cache-ttl`.
    #[metric(name = "remote_cluster_cache_revocations", labels = ["target_cluster"])]
    pub(crate) revocations: CounterVec,
    /// Services of a remote cluster.
    #[metric(name = "remote_cluster_services", labels = ["target_cluster"])]
    services: GaugeVec,
    /// Endpoint slices of a remote cluster.
    #[metric(name = "remote_cluster_endpoint_slices", labels = ["target_cluster"])]
    endpoint_slices: GaugeVec,
    /// Service exports of a remote cluster.
    #[metric(name = "remote_cluster_service_exports", labels = ["target_cluster"])]
    service_exports: GaugeVec,
}

/// What only agents export: operators read neither nodes nor addresses, and write no maps.
#[derive(Debug, Metrics)]
#[metrics(prefix = "clustermesh")]
pub(crate) struct AgentMetrics {
    /// Nodes of a remote cluster.
    #[metric(name = "remote_cluster_nodes", labels = ["target_cluster"])]
    nodes: GaugeVec,
    /// Endpoints of a remote cluster.
    #[metric(name = "remote_cluster_endpoints", labels = ["target_cluster"])]
    endpoints: GaugeVec,
    /// Time from a received change of a remote cluster to the maps; of nodes and identities, to the tables.
    #[metric(name = "remote_change_duration_seconds", labels = ["kind"])]
    pub(crate) change_duration: HistogramVec,
}

impl MetricSet for ClusterMeshMetrics {
    fn metrics(&self) -> Vec<MetricHandle> {
        let mut all = self.remotes.metrics();
        all.extend(self.agent.metrics());
        all
    }
}

impl ClusterMeshMetrics {
    /// The metrics that an operator exports.
    pub(crate) fn of_operator(&self) -> Vec<MetricHandle> {
        self.remotes.metrics()
    }

    /// Takes over what is known of a remote cluster.
    pub(crate) fn update(&self, state: &RemoteState) {
        let status = state.status();
        let cluster = [state.name.as_str()];
        let remotes = &self.remotes;
        remotes.ready.with(cluster).set(f64::from(u8::from(status.ready)));
        remotes.failures.with(cluster).set(status.num_failures as f64);
        if let Some(at) = status.last_failure {
            remotes.last_failure.with(cluster).set(at.as_second() as f64);
        }
        for (gauge, kind) in self.counts() {
            gauge.with(cluster).set(state.entries(kind) as f64);
        }
    }

    /// Forgets a remote cluster that was removed.
    pub(crate) fn remove(&self, cluster: &str) {
        let remotes = &self.remotes;
        for gauge in [&remotes.failures, &remotes.last_failure, &remotes.ready] {
            gauge.remove([cluster]);
        }
        for (gauge, _) in self.counts() {
            gauge.remove([cluster]);
        }
        remotes.revocations.remove([cluster]);
    }

    fn counts(&self) -> [(&GaugeVec, Kind); 5] {
        [
            (&self.agent.nodes, Kind::Nodes),
            (&self.remotes.services, Kind::Services),
            (&self.agent.endpoints, Kind::Ips),
            (&self.remotes.endpoint_slices, Kind::EndpointSlices),
            (&self.remotes.service_exports, Kind::ServiceExports),
        ]
    }
}
