// SPDX-License-Identifier: Apache-2.0

//! Metrics of the controller.

use std::time::Duration;

use skep_base_metrics::{CounterVec, Gauge, HistogramVec, Metrics};

const IDENTITIES: &str = "cilium_identity";

/// What was created, and what is left.
#[derive(Debug, Metrics)]
#[metrics(prefix = "cid_controller")]
pub(crate) struct IdentityMetrics {
    /// CiliumIdentity creations.
    #[metric(name = "work_queue_event_count", labels = ["resource", "outcome"])]
    pub(crate) events: CounterVec,
    /// Latency of CiliumIdentity creation: queueing (`enqueued`) and processing.
    #[metric(name = "work_queue_latency", labels = ["resource", "phase"], buckets = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0])]
    pub(crate) latency: HistogramVec,
    /// Free identity ids of the cluster.
    pub(crate) free_ids: Gauge,
}

impl IdentityMetrics {
    /// A request was sent after a label set had waited for it.
    pub(crate) fn sent(&self, waited: Duration) {
        let latency = self.latency.with([IDENTITIES, "enqueued"]);
        latency.observe(waited.as_secs_f64());
    }

    pub(crate) fn ended(&self, is_success: bool, took: Duration) {
        let outcome = if is_success { "success" } else { "fail" };
        self.events.with([IDENTITIES, outcome]).inc();
        let latency = self.latency.with([IDENTITIES, "processing"]);
        latency.observe(took.as_secs_f64());
    }
}
