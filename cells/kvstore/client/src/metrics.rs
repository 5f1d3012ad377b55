// SPDX-License-Identifier: Apache-2.0

//! Metrics of clients, with Cilium's names.

use std::time::Duration;

use skep_metrics::{CounterVec, GaugeVec, HistogramVec, MetricHandle, MetricSet, Metrics};

use crate::keys;
use crate::operation::{LimiterUsage, Limits, OperationRecord, Recorder};

/// What clients of key-value stores do.
#[derive(Debug, Default)]
pub struct KvstoreMetrics {
    clients: ClientMetrics,
    limiters: LimiterMetrics,
}

impl MetricSet for KvstoreMetrics {
    fn metrics(&self) -> Vec<MetricHandle> {
        let mut metrics = self.clients.metrics();
        metrics.extend(self.limiters.metrics());
        metrics
    }
}

#[derive(Debug, Metrics)]
#[metrics(prefix = "kvstore")]
struct ClientMetrics {
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

/// The limits of clients: `api_call` is the name of the client.
#[derive(Debug, Metrics)]
#[metrics(prefix = "api_limiter", labels = ["api_call", "value"])]
struct LimiterMetrics {
    /// Operations that the limits of a client admitted and that have ended.
    #[metric(name = "processed_requests_total", labels = ["api_call", "outcome"])]
    processed: CounterVec,
    /// How long the last ten operations of a client took, on average.
    #[metric(name = "processing_duration_seconds")]
    processing: GaugeVec,
    /// How long the last ten operations of a client waited for its limits, on average.
    #[metric(name = "wait_duration_seconds")]
    wait: GaugeVec,
    /// Operations of a client under way, and the most there may be.
    #[metric(name = "requests_in_flight")]
    in_flight: GaugeVec,
    /// Operations of a client a second at most, and how many may go at once after a pause.
    #[metric(name = "rate_limit")]
    rate: GaugeVec,
}

fn set(family: &GaugeVec, client: &str, value: &str, to: f64) {
    family.with([client, value]).set(to);
}

impl Recorder for KvstoreMetrics {
    fn operation(&self, record: &OperationRecord<'_>) {
        let outcome = if record.is_success { "success" } else { "fail" };
        let processed = &self.limiters.processed;
        processed.with([record.client, outcome]).inc();
        self.clients
            .operations
            .with([
                keys::scope(record.key),
                record.operation.kind(record.if_locked),
                record.operation.action(),
                outcome,
            ])
            .observe(record.took.as_secs_f64());
    }

    fn event(&self, prefix: &str, action: &'static str, waited: Duration) {
        self.clients
            .events
            .with([keys::scope(prefix), action])
            .observe(waited.as_secs_f64());
    }

    fn quorum_error(&self, reason: &'static str) {
        self.clients.quorum_errors.with([reason]).inc();
    }

    fn limits(&self, client: &str, limits: &Limits) {
        let limiters = &self.limiters;
        if let Some(most) = limits.in_flight {
            set(&limiters.in_flight, client, "limit", f64::from(most));
        }
        // 0 is no limit.
        if limits.rate > 0.0 {
            set(&limiters.rate, client, "limit", limits.rate);
            set(&limiters.rate, client, "burst", limits.burst);
        }
    }

    fn usage(&self, client: &str, usage: &LimiterUsage) {
        let limiters = &self.limiters;
        let processing = usage.mean_processing.as_secs_f64();
        set(&limiters.processing, client, "mean", processing);
        set(&limiters.wait, client, "mean", usage.mean_wait.as_secs_f64());
        let in_flight = f64::from(usage.in_flight);
        set(&limiters.in_flight, client, "in-flight", in_flight);
    }
}
