// SPDX-License-Identifier: Apache-2.0

//! Metrics of the controller.

use skep_metrics::{CounterVec, Gauge, Metrics};

/// What was created, and what is left.
#[derive(Debug, Metrics)]
#[metrics(prefix = "operator_cid_controller")]
pub(crate) struct IdentityMetrics {
    /// Requests to create identities.
    #[metric(name = "work_queue_event_count", labels = ["resource", "outcome"])]
    pub(crate) events: CounterVec,
    /// Ids of the cluster that no CiliumIdentity has.
    pub(crate) free_ids: Gauge,
}

impl IdentityMetrics {
    /// Counts a request.
    pub(crate) fn created(&self, is_success: bool) {
        let outcome = if is_success { "success" } else { "fail" };
        self.events.with(["cilium_identity", outcome]).inc();
    }
}
