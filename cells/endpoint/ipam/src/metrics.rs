// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use std::sync::Arc;

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

/// Addresses in use.
#[derive(Debug, Metrics)]
#[metrics(prefix = "ip")]
pub struct AddressMetrics {
    /// Number of allocated addresses.
    #[metric(labels = ["family"])]
    addresses: GaugeVec,
}

/// All metrics of [`Ipam`](crate::Ipam).
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) ipam: Arc<IpamMetrics>,
    pub(crate) addresses: Arc<AddressMetrics>,
}

impl Recorder {
    pub(crate) fn addresses(&self, family: Family, count: usize) {
        let gauge = self.addresses.addresses.with([family.as_str()]);
        gauge.set(count as f64);
    }

    pub(crate) fn count(&self, action: &str, family: Family, allocator: &Allocator) {
        self.ipam.events_total.with([action, family.as_str()]).inc();
        let cidr = match allocator.has_pools() {
            true => String::new(),
            false => allocator.network(""),
        };
        self.ipam
            .capacity
            .with([family.as_str(), cidr.as_str()])
            .set(allocator.capacity());
    }
}
