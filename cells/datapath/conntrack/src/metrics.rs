// SPDX-License-Identifier: Apache-2.0

//! What passes and signals count, with Cilium's names.

use std::time::Duration;

use skep_base_metrics::{CounterVec, GaugeVec, HistogramVec, Metrics};
use skep_bpf_maps::collect::{Collected, FlowMap, Purged};

/// Metrics of the garbage collection.
#[derive(Debug, Metrics)]
#[metrics(prefix = "datapath")]
pub(crate) struct ConntrackMetrics {
    /// Conntrack garbage collection runs.
    #[metric(name = "conntrack_gc_runs_total", labels = ["family", "protocol", "status"])]
    runs: CounterVec,
    /// Conntrack entries of the last garbage collection, alive and deleted.
    #[metric(name = "conntrack_gc_entries", labels = ["family", "protocol", "status"])]
    entries: GaugeVec,
    /// Duration of conntrack garbage collection.
    #[metric(name = "conntrack_gc_duration_seconds", labels = ["family", "protocol", "status"])]
    duration: HistogramVec,
    /// Interval of conntrack garbage collection.
    #[metric(name = "conntrack_gc_interval_seconds", labels = ["global"])]
    interval: GaugeVec,
    /// NAT entries of the last garbage collection, alive and deleted.
    #[metric(name = "nat_gc_entries", labels = ["family", "direction", "status"], disabled)]
    nat_entries: GaugeVec,
    /// Packets dropped because no SNAT source port was free.
    #[metric(name = "nat_port_allocation_failures_total", labels = ["family"])]
    port_failures: CounterVec,
    /// Handled signals of BPF programs.
    #[metric(name = "signals_handled_total", labels = ["signal", "data", "status"])]
    signals: CounterVec,
}

pub(crate) const fn family(is_ipv6: bool) -> &'static str {
    if is_ipv6 { "ipv6" } else { "ipv4" }
}

const fn protocol(map: FlowMap) -> &'static str {
    if map.is_tcp() { "TCP" } else { "non-TCP" }
}

impl ConntrackMetrics {
    /// A pass over a map ended; `None`: before its end.
    pub(crate) fn pass(&self, map: FlowMap, done: Option<&Collected>, took: Duration) {
        let (family, protocol) = (family(map.is_ipv6()), protocol(map));
        let status = if done.is_some() {
            "completed"
        } else {
            "uncompleted"
        };
        self.runs.with([family, protocol, status]).inc();
        self.duration
            .with([family, protocol, status])
            .observe(took.as_secs_f64());
        if let Some(done) = done {
            for (status, entries) in [("alive", done.alive), ("deleted", done.deleted)] {
                self.entries.with([family, protocol, status]).set(entries as f64);
            }
        }
    }

    /// NAT entries that nothing tracks were deleted.
    pub(crate) fn purge(&self, is_ipv6: bool, done: &Purged) {
        for (status, count) in [("alive", done.alive), ("deleted", done.deleted)] {
            for (direction, entries) in [("egress", count.forward), ("ingress", count.reverse)] {
                let labels = [family(is_ipv6), direction, status];
                self.nat_entries.with(labels).set(entries as f64);
            }
        }
    }

    /// The time until the next pass changed.
    pub(crate) fn interval(&self, interval: Duration) {
        self.interval.with(["global"]).set(interval.as_secs_f64());
    }

    pub(crate) fn port_failures(&self, is_ipv6: bool, packets: u64) {
        self.port_failures.with([family(is_ipv6)]).add(packets as f64);
    }

    /// A signal of this name came.
    pub(crate) fn signal(&self, name: &'static str, is_ipv6: bool) {
        let labels = [name, family(is_ipv6), "received"];
        self.signals.with(labels).inc();
    }
}
