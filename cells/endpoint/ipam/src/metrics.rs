// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{CounterVec, GaugeVec, Metrics};

use crate::{Family, allocator::Allocator};

/// Addresses of the node.
#[derive(Debug, Metrics)]
#[metrics(prefix = "ipam")]
pub struct IpamMetrics {
    /// Number of allocations and releases of addresses.
    #[metric(labels = ["action", "family"])]
    events_total: CounterVec,
    /// Number of addresses that can be allocated: all of a pod CIDR, free ones of pools.
    #[metric(labels = ["family", "cidr"])]
    capacity: GaugeVec,
}

impl IpamMetrics {
    pub(crate) fn count(&self, action: &str, family: Family, allocator: &Allocator) {
        self.events_total.with([action, family.as_str()]).inc();
        let cidr = match allocator.has_pools() {
            true => String::new(),
            false => allocator.network(""),
        };
        self.capacity
            .with([family.as_str(), cidr.as_str()])
            .set(allocator.capacity());
    }
}
