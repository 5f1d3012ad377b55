// SPDX-License-Identifier: Apache-2.0

//! Metrics of redirect policies.

use std::sync::Arc;

use hive::Members;
use skep_base_metrics::{Counter, CounterVec, Gauge, Histogram, MetricHandle, Metrics, supply};

/// How much work policies are, and how many there were.
#[derive(Debug, Metrics)]
pub(crate) struct PolicyMetrics {
    /// Time it took to bring all local redirect policies into force.
    #[metric(name = "localredirectpolicy_controller_duration_seconds")]
    pub(crate) look: Histogram,
    /// Whether local redirect policies are served.
    #[metric(name = "feature_network_policies_local_redirect_policy_enabled")]
    is_enabled: Gauge,
    /// Local redirect policies that came and went.
    #[metric(name = "feature_network_policies_local_redirect_policies_total", labels = ["action"])]
    ingested: CounterVec,
}

impl PolicyMetrics {
    pub(crate) fn came(&self) -> Counter {
        self.ingested.with(["add"])
    }

    pub(crate) fn went(&self) -> Counter {
        self.ingested.with(["delete"])
    }
}

/// The metrics, for the registry and for the controller.
pub(crate) fn supply_metrics() -> (Arc<PolicyMetrics>, Members<MetricHandle>) {
    let metrics = PolicyMetrics::default();
    metrics.is_enabled.set(1.0);
    supply(metrics)
}
