// SPDX-License-Identifier: Apache-2.0

//! Cell: metrics of stores, with Cilium's names. Provides [`StoreMetrics`], which is a [`StoreRecorder`].

use std::time::Duration;

use hive::Cell;
use skep_base_metrics::{CounterVec, GaugeVec, HistogramVec, Metrics};
use skep_kvstore_client::keys;

use crate::recorder::{Direction, StoreRecorder};

hive::catalogue!(metrics);

/// The metrics of stores: every store of a program counts here.
pub fn metrics() -> Cell {
    Cell::module("kvstore-store-metrics", "Metrics of stores on key-value stores")
        .provide(skep_base_metrics::provided::<StoreMetrics>)
}

/// What stores on key-value stores do.
#[derive(Debug, Metrics)]
#[metrics(prefix = "kvstore")]
pub struct StoreMetrics {
    /// Pending writes and deletions of keys.
    #[metric(name = "sync_queue_size", labels = ["scope", "source_cluster"])]
    queue: GaugeVec,
    /// Failed writes and deletions of keys.
    #[metric(name = "sync_errors_total", labels = ["scope", "source_cluster"])]
    errors: CounterVec,
    /// Initial synchronization of a prefix: 1 if completed.
    #[metric(name = "initial_sync_completed", labels = ["scope", "source_cluster", "action"])]
    initial_sync: GaugeVec,
    /// Time from the first unsynced change of an object to the write or deletion of its key.
    #[metric(name = "sync_lag_seconds", labels = ["scope", "source_cluster"])]
    lag: HistogramVec,
}

impl StoreRecorder for StoreMetrics {
    fn initial_sync(&self, prefix: &str, cluster: &str, direction: Direction, is_completed: bool) {
        self.initial_sync
            .with([keys::scope(prefix), cluster, direction.action()])
            .set(if is_completed { 1.0 } else { 0.0 });
    }

    fn queue(&self, prefix: &str, cluster: &str, size: usize) {
        self.queue.with([keys::scope(prefix), cluster]).set(size as f64);
    }

    fn written(&self, prefix: &str, cluster: &str, lag: Duration) {
        self.lag
            .with([keys::scope(prefix), cluster])
            .observe(lag.as_secs_f64());
    }

    fn sync_error(&self, prefix: &str, cluster: &str) {
        self.errors.with([keys::scope(prefix), cluster]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::{Hive, testing};
    use skep_base_metrics::{MetricSet, Registry, exposition};

    use super::*;

    #[tokio::test]
    async fn metrics_have_the_names_and_labels_of_cilium() {
        let running = testing::start(Hive::new([metrics()]).root::<Arc<StoreMetrics>>()).await;
        let metrics = running.get::<Arc<StoreMetrics>>().expect("it is provided");

        metrics.initial_sync("cilium/state/nodes/v1/", "alder", Direction::Read, true);
        metrics.queue("cilium/state/ip/v1/default/", "alder", 3);
        metrics.sync_error("cilium/cache/services/v1/birch/", "birch");
        metrics.written("cilium/state/nodes/v1/", "alder", Duration::from_millis(3));

        let registry = Registry::new(metrics.metrics(), &[]).expect("the names differ");
        let text = exposition(&registry);
        for line in [
            "cilium_kvstore_initial_sync_completed{action=\"read\",scope=\"nodes/v1\",source_cluster=\"alder\"} 1",
            "cilium_kvstore_sync_queue_size{scope=\"ip/v1\",source_cluster=\"alder\"} 3",
            "cilium_kvstore_sync_errors_total{scope=\"services/v1\",source_cluster=\"birch\"} 1",
            "cilium_kvstore_sync_lag_seconds_count{scope=\"nodes/v1\",source_cluster=\"alder\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        testing::stop(running).await;
    }
}
