// SPDX-License-Identifier: Apache-2.0

//! Metrics of the framework: jobs, tables, reconcilers.

use std::sync::Arc;
use std::time::Duration;

use hive::{HiveMetrics, JobKind, JobMetrics, JobOutcome, JobRun, ModulePath};
use statedb::Revision;
use statedb::reconciler::{Operation, ReconcilerMetrics};

use crate::Metrics;
use crate::metric::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec};

/// Runs of jobs, by module and job.
///
/// Jobs whose names differ in a number at the end (`listener-30001`) count as one (`listener`): a series for each
/// number would outlive its job.
#[derive(Debug, Metrics)]
#[metrics(prefix = "hive_jobs", labels = ["module_id", "job_name"])]
pub struct JobMetricSet {
    /// Job runs.
    #[metric(name = "runs_total")]
    runs: CounterVec,
    /// Failed job runs.
    #[metric(name = "runs_failed")]
    failed: CounterVec,
    /// Panicked job runs, which count as failed as well.
    #[metric(name = "runs_panicked")]
    panicked: CounterVec,
    /// Duration of the last one-shot job run.
    #[metric(name = "oneshot_last_run_duration_seconds")]
    oneshot_last: GaugeVec,
    /// Duration of the last timer job run.
    #[metric(name = "timer_last_run_duration_seconds")]
    timer_last: GaugeVec,
    /// Duration of timer job runs.
    #[metric(name = "timer_run_duration_seconds")]
    timer: HistogramVec,
    /// Latency from trigger to run of timer jobs.
    #[metric(name = "timer_trigger_latency_seconds")]
    timer_latency: HistogramVec,
    /// Triggers folded into one run of a timer job.
    #[metric(name = "timer_trigger_folds", buckets = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0])]
    timer_folds: HistogramVec,
    /// Duration of the last observer job run.
    #[metric(name = "observer_last_run_duration_seconds")]
    observer_last: GaugeVec,
    /// Duration of observer job runs.
    #[metric(name = "observer_run_duration_seconds")]
    observer: HistogramVec,
}

impl JobMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The name of a job without a number at its end.
fn without_number(job: &str) -> &str {
    match job.rsplit_once('-') {
        Some((name, number))
            if !name.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            name
        }
        _ => job,
    }
}

impl JobMetrics for JobMetricSet {
    fn ran(&self, run: &JobRun<'_>) {
        let labels = [run.module.as_str(), without_number(run.job)];
        self.runs.with(labels).inc();
        if run.outcome != JobOutcome::Ok {
            self.failed.with(labels).inc();
        }
        if run.outcome == JobOutcome::Panicked {
            self.panicked.with(labels).inc();
        }
        let seconds = run.duration.as_secs_f64();
        match run.kind {
            JobKind::Once => self.oneshot_last.with(labels).set(seconds),
            JobKind::Timer => {
                self.timer_last.with(labels).set(seconds);
                self.timer.with(labels).observe(seconds);
            }
            JobKind::Observer => {
                self.observer_last.with(labels).set(seconds);
                self.observer.with(labels).observe(seconds);
            }
        }
    }

    fn triggered(&self, module: &ModulePath, job: &str, latency: Duration, folds: u64) {
        let labels = [module.as_str(), without_number(job)];
        self.timer_latency.with(labels).observe_duration(latency);
        self.timer_folds.with(labels).observe(folds as f64);
    }
}

/// How long the phases of the hive took. Disabled by default.
#[derive(Debug, Metrics)]
#[metrics(prefix = "hive", disabled)]
pub struct HiveMetricSet {
    /// Duration of constructors.
    #[metric(name = "populate_duration_seconds")]
    populate: Gauge,
    /// Duration of start hooks.
    #[metric(name = "start_duration_seconds")]
    start: Gauge,
    /// Duration of stop hooks.
    #[metric(name = "stop_duration_seconds")]
    stop: Gauge,
}

impl HiveMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }
}

impl HiveMetrics for HiveMetricSet {
    fn built(&self, took: Duration) {
        self.populate.set(took.as_secs_f64());
    }

    fn started(&self, took: Duration, _ok: bool) {
        self.start.set(took.as_secs_f64());
    }

    fn stopped(&self, took: Duration, _ok: bool) {
        self.stop.set(took.as_secs_f64());
    }
}

/// Upper bounds of buckets for what takes microseconds, in seconds.
const SHORT: [f64; 10] = [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 1.0];

/// Tables and their transactions. Disabled by default.
#[derive(Debug, Metrics)]
#[metrics(prefix = "statedb", labels = ["table"], disabled)]
pub struct TableMetricSet {
    /// Duration of write transactions.
    #[metric(name = "write_txn_duration_seconds", labels = ["handle"], buckets = SHORT)]
    write_txn: HistogramVec,
    /// Lock contention of write transactions.
    #[metric(name = "table_contention_seconds", labels = ["handle", "table"], buckets = SHORT)]
    contention: HistogramVec,
    /// Objects in a table.
    #[metric(name = "table_objects")]
    objects: GaugeVec,
    /// Revision of a table.
    #[metric(name = "table_revision")]
    revision: GaugeVec,
    /// Delete trackers of a table.
    #[metric(name = "table_delete_trackers")]
    delete_trackers: GaugeVec,
    /// Deleted objects in the graveyard.
    #[metric(name = "table_graveyard_objects")]
    graveyard_objects: GaugeVec,
    /// Lowest revision of deletions not seen by all delete trackers.
    #[metric(name = "table_graveyard_low_watermark")]
    graveyard_low_watermark: GaugeVec,
    /// Duration of graveyard cleaning.
    #[metric(name = "table_graveyard_cleaning_duration_seconds", buckets = SHORT)]
    graveyard_cleaning: HistogramVec,
}

impl TableMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }
}

impl statedb::Metrics for TableMetricSet {
    fn write_txn_duration(&self, handle: &str, _tables: &[&str], held: Duration) {
        self.write_txn.with([handle]).observe_duration(held);
    }
    fn table_contention(&self, handle: &str, table: &str, waited: Duration) {
        self.contention.with([handle, table]).observe_duration(waited);
    }
    fn objects(&self, table: &str, count: usize) {
        self.objects.with([table]).set(count as f64);
    }
    fn revision(&self, table: &str, revision: Revision) {
        self.revision.with([table]).set(revision as f64);
    }
    fn delete_trackers(&self, table: &str, count: usize) {
        self.delete_trackers.with([table]).set(count as f64);
    }
    fn graveyard_objects(&self, table: &str, count: usize) {
        self.graveyard_objects.with([table]).set(count as f64);
    }
    fn graveyard_low_watermark(&self, table: &str, revision: Revision) {
        self.graveyard_low_watermark.with([table]).set(revision as f64);
    }
    fn graveyard_cleaning_duration(&self, table: &str, took: Duration) {
        self.graveyard_cleaning.with([table]).observe_duration(took);
    }
}

/// Reconcilers, by module. Disabled by default.
#[derive(Debug, Metrics)]
#[metrics(prefix = "reconciler", labels = ["module_id"], disabled)]
pub struct ReconcilerMetricSet {
    /// Reconciliation rounds.
    count: CounterVec,
    /// Duration of operations on the target.
    #[metric(name = "duration_seconds", labels = ["module_id", "op"])]
    duration: HistogramVec,
    /// Failed operations.
    errors_total: CounterVec,
    /// Objects in error.
    errors_current: GaugeVec,
    /// Prunes.
    prune_count: CounterVec,
    /// Failed prunes.
    prune_errors_total: CounterVec,
    /// Duration of prunes.
    #[metric(name = "prune_duration_seconds")]
    prune_duration: HistogramVec,
}

impl ReconcilerMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the reconciler of a module reports to.
    ///
    /// ```
    /// use skep_base_metrics::ReconcilerMetricSet;
    /// use statedb::reconciler::ReconcilerMetrics;
    ///
    /// let metrics = ReconcilerMetricSet::new().for_module("loadbalancer-reconciler");
    /// metrics.round();
    /// ```
    pub fn for_module(&self, module: &str) -> Arc<dyn ReconcilerMetrics> {
        Arc::new(ModuleMetrics {
            count: self.count.with([module]),
            update: self.duration.with([module, Operation::Update.as_str()]),
            delete: self.duration.with([module, Operation::Delete.as_str()]),
            errors_total: self.errors_total.with([module]),
            errors_current: self.errors_current.with([module]),
            prune_count: self.prune_count.with([module]),
            prune_errors_total: self.prune_errors_total.with([module]),
            prune_duration: self.prune_duration.with([module]),
        })
    }
}

struct ModuleMetrics {
    count: Counter,
    update: Histogram,
    delete: Histogram,
    errors_total: Counter,
    errors_current: Gauge,
    prune_count: Counter,
    prune_errors_total: Counter,
    prune_duration: Histogram,
}

impl ReconcilerMetrics for ModuleMetrics {
    fn round(&self) {
        self.count.inc();
    }
    fn operation(&self, operation: Operation, took: Duration) {
        match operation {
            Operation::Update => self.update.observe_duration(took),
            Operation::Delete => self.delete.observe_duration(took),
        }
    }
    fn errors(&self, new: usize, current: usize) {
        self.errors_total.add(new as f64);
        self.errors_current.set(current as f64);
    }
    fn prune(&self, took: Duration, failed: bool) {
        self.prune_count.inc();
        if failed {
            self.prune_errors_total.inc();
        }
        self.prune_duration.observe_duration(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The two series of a health-check port outlived its service.
    #[test]
    fn jobs_that_differ_in_a_number_are_one() {
        let names = ["listener-30001", "listener-", "-1", "sync-v4", "collect", "a-1-2"];
        let expected = ["listener", "listener-", "-1", "sync-v4", "collect", "a-1"];
        assert_eq!(names.map(without_number), expected);
    }
}
