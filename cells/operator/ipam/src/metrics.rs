// SPDX-License-Identifier: Apache-2.0

//! Cell: metrics of the allocation. Provides: an [`IpamRecorder`]. Names begin as Cilium's do; those of pools are our own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Members};
use parking_lot::Mutex;
use skep_base_metrics::{Counter, Gauge, GaugeVec, Histogram, MetricHandle, MetricSet, Metrics};

use crate::allocator::Family;
use crate::recorder::{IpamRecorder, PoolUsage};

hive::catalogue!(cell);

/// The metrics of the allocation.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("operator-ipam-metrics", "Metrics of pod CIDRs and their pools").provide(recorder)
}

#[derive(Debug, Metrics)]
#[metrics(prefix = "ipam")]
struct IpamMetrics {
    /// Nodes by category: `total`, and `in-deficit` with missing pod CIDRs.
    #[metric(labels = ["category"])]
    nodes: GaugeVec,
    /// Available pod CIDRs of a pool.
    #[metric(labels = ["pool", "family"])]
    pool_cidrs_available: GaugeVec,
    /// Allocated pod CIDRs of a pool.
    #[metric(labels = ["pool", "family"])]
    pool_cidrs_used: GaugeVec,
    /// Nodes queued for CiliumNode sync.
    k8s_sync_queued_total: Counter,
    /// Nodes handled by the last CiliumNode sync round.
    k8s_sync_folds: Gauge,
    /// Queueing latency of CiliumNode sync rounds.
    k8s_sync_latency_seconds: Histogram,
    /// Duration of CiliumNode sync rounds.
    k8s_sync_duration_seconds: Histogram,
}

/// Sets the metrics.
#[derive(Default)]
struct MetricRecorder {
    metrics: IpamMetrics,
    /// Pools and families that have series.
    shown: Mutex<BTreeSet<(String, Family)>>,
}

fn recorder() -> (Arc<dyn IpamRecorder>, Members<MetricHandle>) {
    let recorder = MetricRecorder::default();
    let metrics = Members(recorder.metrics.metrics());
    (Arc::new(recorder), metrics)
}

fn labels((pool, family): &(String, Family)) -> [&str; 2] {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    [pool, family]
}

impl IpamRecorder for MetricRecorder {
    fn queued(&self) {
        self.metrics.k8s_sync_queued_total.inc();
    }

    fn round(&self, nodes: usize, waited: Duration, took: Duration) {
        self.metrics.k8s_sync_folds.set(nodes as f64);
        self.metrics.k8s_sync_latency_seconds.observe_duration(waited);
        self.metrics.k8s_sync_duration_seconds.observe_duration(took);
    }

    fn nodes(&self, total: usize, in_deficit: usize) {
        let nodes = &self.metrics.nodes;
        nodes.with(["total"]).set(total as f64);
        nodes.with(["in-deficit"]).set(in_deficit as f64);
    }

    fn pools(&self, usage: &[PoolUsage]) {
        let mut shown = self.shown.lock();
        let mut now = BTreeSet::new();
        for usage in usage {
            let key = (usage.pool.clone(), usage.family);
            let (available, used) = (&self.metrics.pool_cidrs_available, &self.metrics.pool_cidrs_used);
            available.with(labels(&key)).set(usage.free as f64);
            used.with(labels(&key)).set(usage.held as f64);
            now.insert(key);
        }
        for gone in shown.difference(&now) {
            self.metrics.pool_cidrs_available.remove(labels(gone));
            self.metrics.pool_cidrs_used.remove(labels(gone));
        }
        *shown = now;
    }
}

#[cfg(test)]
mod tests;
