// SPDX-License-Identifier: Apache-2.0

//! Metrics of redirect policies.

use std::sync::Arc;

use hive::Members;
use skep_metrics::{Counter, CounterVec, Gauge, Histogram, MetricHandle, Opts, metric_set, supply};

/// How much work policies are, and how many there were.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    pub(crate) look: Histogram,
    is_enabled: Gauge,
    ingested: CounterVec,
}

metric_set!(PolicyMetrics {
    look,
    is_enabled,
    ingested
});

impl PolicyMetrics {
    fn new() -> Self {
        let metrics = Self {
            look: Histogram::new(Opts::new(
                "localredirectpolicy_controller_duration_seconds",
                "Time it took to bring all local redirect policies into force",
            )),
            is_enabled: Gauge::new(Opts::new(
                "feature_network_policies_local_redirect_policy_enabled",
                "Whether local redirect policies are served",
            )),
            ingested: CounterVec::new(
                Opts::new(
                    "feature_network_policies_local_redirect_policies_total",
                    "Local redirect policies that came and went",
                ),
                ["action"],
            ),
        };
        metrics.is_enabled.set(1.0);
        metrics
    }

    pub(crate) fn came(&self) -> Counter {
        self.ingested.with(["add"])
    }

    pub(crate) fn went(&self) -> Counter {
        self.ingested.with(["del"])
    }
}

/// The metrics, for the registry and for the controller.
pub(crate) fn supply_metrics() -> (Arc<PolicyMetrics>, Members<MetricHandle>) {
    supply(PolicyMetrics::new())
}
