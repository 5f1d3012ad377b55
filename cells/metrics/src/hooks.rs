// SPDX-License-Identifier: Apache-2.0

//! Metrics of the framework: jobs, tables, reconcilers.

use std::sync::Arc;
use std::time::Duration;

use hive::{JobKind, JobMetrics, JobOutcome, JobRun, ModulePath};
use statedb::Revision;
use statedb::reconciler::{Operation, ReconcilerMetrics};

use crate::metric::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, Opts};

/// Runs of jobs, by module and job.
#[derive(Debug)]
pub struct JobMetricSet {
    runs: CounterVec,
    failed: CounterVec,
    oneshot_last: GaugeVec,
    timer_last: GaugeVec,
    timer: HistogramVec,
    timer_latency: HistogramVec,
    timer_folds: HistogramVec,
    observer_last: GaugeVec,
    observer: HistogramVec,
}

crate::metric_set!(JobMetricSet {
    runs,
    failed,
    oneshot_last,
    timer_last,
    timer,
    timer_latency,
    timer_folds,
    observer_last,
    observer,
});

impl JobMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        let labels = ["module_id", "job_name"];
        let opts = |name: &str, help: &str| Opts::new(&format!("hive_jobs_{name}"), help);
        Self {
            runs: CounterVec::new(opts("runs_total", "Runs of jobs"), labels),
            failed: CounterVec::new(opts("runs_failed", "Runs of jobs that failed"), labels),
            oneshot_last: GaugeVec::new(
                opts(
                    "oneshot_last_run_duration_seconds",
                    "Duration of the last run of a one-shot job",
                ),
                labels,
            ),
            timer_last: GaugeVec::new(
                opts(
                    "timer_last_run_duration_seconds",
                    "Duration of the last run of a timer job",
                ),
                labels,
            ),
            timer: HistogramVec::new(
                opts("timer_run_duration_seconds", "Durations of runs of timer jobs"),
                labels,
            ),
            timer_latency: HistogramVec::new(
                opts(
                    "timer_trigger_latency_seconds",
                    "Time from the trigger of a timer job to its run",
                ),
                labels,
            ),
            timer_folds: HistogramVec::with_buckets(
                opts(
                    "timer_trigger_folds",
                    "Triggers that were served by one run of a timer job",
                ),
                labels,
                [1.0, 2.0, 5.0, 10.0, 50.0, 100.0],
            ),
            observer_last: GaugeVec::new(
                opts(
                    "observer_last_run_duration_seconds",
                    "Duration of the last run of an observer job",
                ),
                labels,
            ),
            observer: HistogramVec::new(
                opts(
                    "observer_run_duration_seconds",
                    "Durations of runs of observer jobs",
                ),
                labels,
            ),
        }
    }
}

impl Default for JobMetricSet {
    fn default() -> Self {
        Self::new()
    }
}

impl JobMetrics for JobMetricSet {
    fn ran(&self, run: &JobRun<'_>) {
        let labels = [run.module.as_str(), run.job];
        self.runs.with(labels).inc();
        if run.outcome != JobOutcome::Ok {
            self.failed.with(labels).inc();
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
        let labels = [module.as_str(), job];
        self.timer_latency.with(labels).observe_duration(latency);
        self.timer_folds.with(labels).observe(folds as f64);
    }
}

/// Tables and their transactions. Disabled by default.
#[derive(Debug)]
pub struct TableMetricSet {
    write_txn: HistogramVec,
    contention: HistogramVec,
    objects: GaugeVec,
    revision: GaugeVec,
    delete_trackers: GaugeVec,
    graveyard_objects: GaugeVec,
    graveyard_low_watermark: GaugeVec,
    graveyard_cleaning: HistogramVec,
}

crate::metric_set!(TableMetricSet {
    write_txn,
    contention,
    objects,
    revision,
    delete_trackers,
    graveyard_objects,
    graveyard_low_watermark,
    graveyard_cleaning,
});

/// Upper bounds of buckets for what takes microseconds, in seconds.
const SHORT: [f64; 10] = [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 1.0];

impl TableMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        let opts = |name: &str, help: &str| Opts::new(&format!("statedb_{name}"), help).disabled();
        Self {
            write_txn: HistogramVec::with_buckets(
                opts(
                    "write_txn_duration_seconds",
                    "How long write transactions held their tables",
                ),
                ["handle"],
                SHORT,
            ),
            contention: HistogramVec::with_buckets(
                opts(
                    "table_contention_seconds",
                    "How long write transactions waited for a table",
                ),
                ["handle", "table"],
                SHORT,
            ),
            objects: GaugeVec::new(opts("table_objects", "Objects in a table"), ["table"]),
            revision: GaugeVec::new(opts("table_revision", "Revision of a table"), ["table"]),
            delete_trackers: GaugeVec::new(
                opts("table_delete_trackers", "Readers of a table that see deletions"),
                ["table"],
            ),
            graveyard_objects: GaugeVec::new(
                opts(
                    "table_graveyard_objects",
                    "Deleted objects that some reader has not seen",
                ),
                ["table"],
            ),
            graveyard_low_watermark: GaugeVec::new(
                opts(
                    "table_graveyard_low_watermark",
                    "Revision up to which all readers have seen deletions",
                ),
                ["table"],
            ),
            graveyard_cleaning: HistogramVec::with_buckets(
                opts(
                    "table_graveyard_cleaning_duration_seconds",
                    "Time to remove deletions that were seen",
                ),
                ["table"],
                SHORT,
            ),
        }
    }
}

impl Default for TableMetricSet {
    fn default() -> Self {
        Self::new()
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
#[derive(Debug)]
pub struct ReconcilerMetricSet {
    count: CounterVec,
    duration: HistogramVec,
    errors_total: CounterVec,
    errors_current: GaugeVec,
    prune_count: CounterVec,
    prune_errors_total: CounterVec,
    prune_duration: HistogramVec,
}

crate::metric_set!(ReconcilerMetricSet {
    count,
    duration,
    errors_total,
    errors_current,
    prune_count,
    prune_errors_total,
    prune_duration,
});

impl ReconcilerMetricSet {
    /// All at zero.
    pub fn new() -> Self {
        let opts = |name: &str, help: &str| Opts::new(&format!("reconciler_{name}"), help).disabled();
        let module = ["module_id"];
        Self {
            count: CounterVec::new(opts("count", "Rounds of reconciliation"), module),
            duration: HistogramVec::new(
                opts("duration_seconds", "Durations of operations on the target"),
                ["module_id", "op"],
            ),
            errors_total: CounterVec::new(opts("errors_total", "Operations that failed"), module),
            errors_current: GaugeVec::new(opts("errors_current", "Objects that fail now"), module),
            prune_count: CounterVec::new(opts("prune_count", "Prunings of the target"), module),
            prune_errors_total: CounterVec::new(opts("prune_errors_total", "Prunings that failed"), module),
            prune_duration: HistogramVec::new(
                opts("prune_duration_seconds", "Durations of prunings"),
                module,
            ),
        }
    }

    /// What the reconciler of a module reports to.
    ///
    /// ```
    /// use skep_metrics::ReconcilerMetricSet;
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

impl Default for ReconcilerMetricSet {
    fn default() -> Self {
        Self::new()
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
