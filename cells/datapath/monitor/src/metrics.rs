// SPDX-License-Identifier: Apache-2.0

//! What the monitor counts.

use skep_base_metrics::{Counter, CounterVec, Gauge, Metrics};

/// Metrics of the monitor.
#[derive(Debug, Metrics)]
#[metrics(prefix = "monitor")]
pub(crate) struct MonitorMetrics {
    /// Events sent to monitor listeners.
    #[metric(name = "events_total")]
    pub(crate) events: Counter,
    /// Lost monitor events: ring buffer full (ring) or queue of a listener full (listener).
    #[metric(name = "lost_events_total", labels = ["source"])]
    pub(crate) lost: CounterVec,
    /// Monitor listeners.
    #[metric(name = "listeners")]
    pub(crate) listeners: Gauge,
}
