// SPDX-License-Identifier: Apache-2.0

//! Metrics of clients, with Cilium's names.

use std::time::Duration;

use skep_metrics::{CounterVec, HistogramVec, Metrics};

use crate::keys;
use crate::operation::{OperationRecord, Recorder};

/// What clients of key-value stores do.
#[derive(Debug, Metrics)]
#[metrics(prefix = "kvstore")]
pub struct KvstoreMetrics {
    /// Durations of operations on the store.
    #[metric(name = "operations_duration_seconds", labels = ["scope", "kind", "action", "outcome"])]
    operations: HistogramVec,
    /// Time that events of watches waited for their consumer.
    #[metric(name = "events_queue_seconds", labels = ["scope", "action"], buckets = [0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0])]
    events: HistogramVec,
    /// Quorum checks that failed.
    #[metric(name = "quorum_errors_total", labels = ["error"])]
    quorum_errors: CounterVec,
}

impl Recorder for KvstoreMetrics {
    fn operation(&self, record: &OperationRecord<'_>) {
        let outcome = if record.is_success { "success" } else { "fail" };
        self.operations
            .with([
                keys::scope(record.key),
                record.operation.kind(record.if_locked),
                record.operation.action(),
                outcome,
            ])
            .observe(record.took.as_secs_f64());
    }

    fn event(&self, prefix: &str, action: &'static str, waited: Duration) {
        self.events
            .with([keys::scope(prefix), action])
            .observe(waited.as_secs_f64());
    }

    fn quorum_error(&self, reason: &'static str) {
        self.quorum_errors.with([reason]).inc();
    }
}
