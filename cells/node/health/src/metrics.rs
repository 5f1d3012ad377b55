// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names. The local node does not count.

use std::time::Duration;

use skep_base_metrics::{Gauge, GaugeVec, HistogramVec, Metrics};

use crate::{
    probe::TIMEOUT,
    round::{PathKind, Target},
};

/// Connectivity to other nodes.
#[derive(Debug, Metrics)]
pub struct HealthMetrics {
    /// Number of nodes and health endpoints, by their connectivity.
    #[metric(name = "node_health_connectivity_status", labels = ["type", "status"])]
    status: GaugeVec,
    /// Round-trip time of probes; that of failed ones is the timeout.
    #[metric(
        name = "node_health_connectivity_latency_seconds",
        labels = ["type", "protocol", "address_type"],
        buckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    )]
    latency: HistogramVec,
    /// Number of unreachable nodes.
    #[metric(name = "unreachable_nodes")]
    nodes: Gauge,
    /// Number of unreachable health endpoints.
    #[metric(name = "unreachable_health_endpoints")]
    endpoints: Gauge,
}

/// Connectivity of a node or of its health endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reachability {
    Reachable,
    Unreachable,
    /// Not probed yet.
    Unknown,
}

impl HealthMetrics {
    pub(crate) fn probed(&self, kind: PathKind, protocol: &str, is_primary: bool, latency: Option<Duration>) {
        let address = if is_primary { "primary" } else { "secondary" };
        self.latency
            .with([kind.as_str(), protocol, address])
            .observe_duration(latency.unwrap_or(TIMEOUT));
    }

    /// Counts all other nodes.
    pub(crate) fn count(
        &self,
        targets: &[Target],
        reachability: impl Fn(&Target, PathKind) -> Option<Reachability>,
    ) {
        for kind in [PathKind::Node, PathKind::Endpoint] {
            let others = targets.iter().filter(|target| !target.is_local);
            let found: Vec<Reachability> = others.filter_map(|target| reachability(target, kind)).collect();
            let count = |wanted| found.iter().filter(|one| **one == wanted).count() as f64;
            for (wanted, name) in [
                (Reachability::Reachable, "reachable"),
                (Reachability::Unreachable, "unreachable"),
                (Reachability::Unknown, "unknown"),
            ] {
                self.status.with([kind.as_str(), name]).set(count(wanted));
            }
            let unreachable = match kind {
                PathKind::Node => &self.nodes,
                PathKind::Endpoint => &self.endpoints,
            };
            unreachable.set(count(Reachability::Unreachable));
        }
    }
}
