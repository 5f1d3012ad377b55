// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{Gauge, GaugeVec, HistogramVec, Metrics};

use crate::engine::Pass;

/// Pools and services of LB-IPAM.
#[derive(Debug, Metrics)]
#[metrics(prefix = "lbipam")]
pub(crate) struct LbIpamMetrics {
    /// Pools in conflict with an older one.
    conflicting_pools: Gauge,
    /// Available addresses of a pool.
    #[metric(labels = ["pool"])]
    ips_available: GaugeVec,
    /// Used and reserved addresses of a pool.
    #[metric(labels = ["pool"])]
    ips_used: GaugeVec,
    /// Services handled by LB-IPAM.
    services_matching: Gauge,
    /// Services without all requested addresses.
    services_unsatisfied: Gauge,
    /// Processing time of events.
    #[metric(name = "event_processing_time_seconds", labels = ["action", "resource"])]
    pub(crate) event_processing_time: HistogramVec,
}

impl LbIpamMetrics {
    pub(crate) fn update(&self, pass: &Pass) {
        self.conflicting_pools.set(pass.conflicting_pools as f64);
        self.services_matching.set(pass.matching as f64);
        self.services_unsatisfied.set(pass.unsatisfied as f64);
        self.ips_available.clear();
        self.ips_used.clear();
        for (pool, usage) in &pass.pools {
            self.ips_available
                .with([pool.as_str()])
                .set(usage.available() as f64);
            self.ips_used.with([pool.as_str()]).set(usage.used as f64);
        }
    }
}
