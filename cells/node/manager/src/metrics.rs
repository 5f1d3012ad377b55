// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{Counter, CounterVec, Gauge, Metrics};
use skep_ipcache::Source;

/// What happens to nodes.
#[derive(Debug, Metrics)]
#[metrics(prefix = "nodes_all")]
pub struct NodeMetrics {
    /// Number of nodes in all clusters.
    #[metric(name = "num")]
    nodes: Gauge,
    /// Node events received.
    #[metric(name = "events_received_total", labels = ["event_type", "source"])]
    events: CounterVec,
    /// Periodic comparisons of a node with the datapath.
    #[metric(name = "datapath_validations_total")]
    validations: Counter,
}

impl NodeMetrics {
    pub(crate) fn event(&self, event: &str, source: Source) {
        self.events.with([event, source.as_str()]).inc();
    }

    pub(crate) fn validated(&self, nodes: usize) {
        self.validations.add(nodes as f64);
    }

    pub(crate) fn set_nodes(&self, count: usize) {
        self.nodes.set(count as f64);
    }
}
