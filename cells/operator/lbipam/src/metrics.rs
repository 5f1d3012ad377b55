// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{Gauge, GaugeVec, HistogramVec, Metrics};

use crate::engine::Pass;

/// Pools and services of LB-IPAM.
#[derive(Debug, Metrics)]
#[metrics(prefix = "lbipam")]
pub(crate) struct LbIpamMetrics {
    /// Pools that overlap an older one.
    conflicting_pools: Gauge,
    /// Free addresses of a pool.
    #[metric(labels = ["pool"])]
    ips_available: GaugeVec,
    /// Addresses of a pool that are in use or held back.
    #[metric(labels = ["pool"])]
    ips_used: GaugeVec,
    /// Services that LB-IPAM is responsible for.
    services_matching: Gauge,
    /// Services of these that do not have all addresses that they want.
    services_unsatisfied: Gauge,
    /// Time from an event to the end of the pass that handles it.
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
