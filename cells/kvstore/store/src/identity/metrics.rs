// SPDX-License-Identifier: Apache-2.0

//! Cell: metrics of identities in a key-value store. Provides [`IdentityMetrics`], which is a [`StoreRecorder`].

use hive::Cell;
use skep_metrics::{CounterVec, Gauge, GaugeVec, Metrics};

use super::gc::GcRound;
use crate::recorder::StoreRecorder;

/// Value of the label `identity_type`.
const TYPE: &str = "kvstore";

/// The metrics of the collection of unused identities.
pub fn metrics() -> Cell {
    Cell::module(
        "kvstore-identity-metrics",
        "Metrics of identities in the key-value store",
    )
    .provide(skep_metrics::provided::<IdentityMetrics>)
}

/// What the collection of unused identities does.
#[derive(Debug, Metrics)]
#[metrics(prefix = "identity")]
pub struct IdentityMetrics {
    /// Identities that the last round has found alive or deleted.
    #[metric(name = "gc_entries", labels = ["status", "identity_type"])]
    entries: GaugeVec,
    /// Rounds of the collection of unused identities.
    #[metric(name = "gc_runs", labels = ["outcome", "identity_type"])]
    runs: CounterVec,
    /// Ids of the cluster that are free to be allocated.
    #[metric(name = "free_ids")]
    free: Gauge,
}

impl StoreRecorder for IdentityMetrics {
    fn identity_gc(&self, round: Option<&GcRound>) {
        let outcome = if round.is_some() { "success" } else { "fail" };
        self.runs.with([outcome, TYPE]).inc();
        if let Some(round) = round {
            let alive = round.used + round.marked + round.failed;
            self.entries.with(["alive", TYPE]).set(alive as f64);
            self.entries.with(["deleted", TYPE]).set(round.deleted as f64);
            self.free.set(round.free as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::{Hive, testing};
    use skep_metrics::{MetricSet, Registry, exposition};

    use super::*;

    #[tokio::test]
    async fn rounds_are_measured_with_the_names_of_cilium() {
        let running = testing::start(Hive::new([metrics()]).root::<Arc<IdentityMetrics>>()).await;
        let metrics = running.get::<Arc<IdentityMetrics>>().expect("it is provided");

        metrics.identity_gc(None);
        metrics.identity_gc(Some(&GcRound {
            used: 5,
            marked: 3,
            deleted: 2,
            failed: 1,
            free: 100,
        }));

        let registry = Registry::new(metrics.metrics(), &[]).expect("the names differ");
        let text = exposition(&registry);
        for line in [
            "cilium_identity_gc_entries{identity_type=\"kvstore\",status=\"alive\"} 9",
            "cilium_identity_gc_entries{identity_type=\"kvstore\",status=\"deleted\"} 2",
            "cilium_identity_gc_runs{identity_type=\"kvstore\",outcome=\"fail\"} 1",
            "cilium_identity_gc_runs{identity_type=\"kvstore\",outcome=\"success\"} 1",
            "cilium_identity_free_ids 100",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        testing::stop(running).await;
    }
}
