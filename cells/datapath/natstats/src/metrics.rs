// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{GaugeVec, Metrics};

/// How full the source ports are.
#[derive(Debug, Metrics)]
#[metrics(prefix = "nat")]
pub(crate) struct NatMetrics {
    /// Used SNAT source ports of the most used destination, in percent.
    #[metric(name = "endpoint_max_connection", labels = ["family"])]
    fullest: GaugeVec,
}

impl NatMetrics {
    pub(crate) fn fullest(&self, is_ipv6: bool, percentage: f64) {
        self.fullest.with([family(is_ipv6)]).set(percentage);
    }
}

pub(crate) const fn family(is_ipv6: bool) -> &'static str {
    if is_ipv6 { "ipv6" } else { "ipv4" }
}
