// SPDX-License-Identifier: Apache-2.0

//! Metrics of clients, with Cilium's names.

use std::sync::Arc;
use std::time::Duration;

use hive::Members;
use skep_base_limiter::{LimiterMetrics, LimiterUsage, Limits, Parameters, Recorder as _};
use skep_base_metrics::{CounterVec, HistogramVec, MetricHandle, MetricSet, Metrics};

use crate::keys;
use crate::operation::{OperationRecord, Recorder};

/// What clients of key-value stores do.
#[derive(Debug, Default)]
pub struct KvstoreMetrics {
    clients: ClientMetrics,
    limiters: Arc<LimiterMetrics>,
}

impl KvstoreMetrics {
    /// Metrics of clients; their limiters count in `limiters`, as all of the program do.
    pub fn new(limiters: Arc<LimiterMetrics>) -> Self {
        Self {
            clients: ClientMetrics::default(),
            limiters,
        }
    }

    pub(crate) fn provided(limiters: Arc<LimiterMetrics>) -> (Arc<Self>, Members<MetricHandle>) {
        let metrics = Self::new(limiters);
        let handles = Members(metrics.metrics());
        (Arc::new(metrics), handles)
    }
}

/// Those of clients; those of limiters are [`LimiterMetrics`].
impl MetricSet for KvstoreMetrics {
    fn metrics(&self) -> Vec<MetricHandle> {
        self.clients.metrics()
    }
}

#[derive(Debug, Metrics)]
#[metrics(prefix = "kvstore")]
struct ClientMetrics {
    /// Duration of key-value store operations.
    #[metric(name = "operations_duration_seconds", labels = ["scope", "kind", "action", "outcome"])]
    operations: HistogramVec,
    /// Queueing time of watch events.
    #[metric(name = "events_queue_seconds", labels = ["scope", "action"], buckets = [0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0])]
    events: HistogramVec,
    /// Quorum errors.
    #[metric(name = "quorum_errors_total", labels = ["error"])]
    quorum_errors: CounterVec,
}

impl Recorder for KvstoreMetrics {
    fn operation(&self, record: &OperationRecord<'_>) {
        let outcome = if record.is_success { "success" } else { "fail" };
        // An operation of several requests counts once.
        self.limiters.processed(record.client, record.is_success);
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
}

impl skep_base_limiter::Recorder for KvstoreMetrics {
    fn made(&self, client: &str, parameters: &Parameters) {
        self.limiters.made(client, parameters);
    }

    fn limits(&self, client: &str, limits: &Limits) {
        self.limiters.limits(client, limits);
    }

    fn usage(&self, client: &str, usage: &LimiterUsage) {
        self.limiters.usage(client, usage);
    }

    fn processed(&self, client: &str, is_success: bool) {
        self.limiters.processed(client, is_success);
    }
}
