// SPDX-License-Identifier: Apache-2.0

//! What the monitor counts.

use skep_base_metrics::{Counter, CounterVec, Gauge, Metrics};

/// Metrics of the monitor.
#[derive(Debug, Metrics)]
#[metrics(prefix = "monitor")]
pub(crate) struct MonitorMetrics {
    /// Events that the monitor sent to its listeners.
    #[metric(name = "events_total")]
    pub(crate) events: Counter,
    /// Events that were lost: since a ring was full (ring), or for a listener that was too slow (listener).
    #[metric(name = "lost_events_total", labels = ["source"])]
    pub(crate) lost: CounterVec,
    /// Listeners of the monitor.
    #[metric(name = "listeners")]
    pub(crate) listeners: Gauge,
}
