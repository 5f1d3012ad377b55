// SPDX-License-Identifier: Apache-2.0

//! What is counted about jobs.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::job::JobKind;
use crate::module::ModulePath;

/// How a run of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// Well.
    Ok,
    /// With an error.
    Failed,
    /// With a panic.
    Panicked,
}

/// One run of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobRun<'a> {
    /// The module.
    pub module: &'a ModulePath,
    /// The job.
    pub job: &'a str,
    /// Its kind.
    pub kind: JobKind,
    /// How long the run took.
    pub duration: Duration,
    /// How it ended.
    pub outcome: JobOutcome,
}

/// Counts runs of jobs. A cell that provides `Arc<dyn JobMetrics>` receives those of the whole hive.
///
/// ```
/// use hive::{JobMetrics, JobRun, ModulePath};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// #[derive(Default)]
/// struct Runs(AtomicU64);
///
/// impl JobMetrics for Runs {
///     fn ran(&self, _run: &JobRun<'_>) { self.0.fetch_add(1, Ordering::Relaxed); }
/// }
///
/// fn runs() -> std::sync::Arc<dyn JobMetrics> { std::sync::Arc::new(Runs::default()) }
/// # let _ = hive::Cell::module("job-metrics", "Counts jobs").provide(runs);
/// ```
pub trait JobMetrics: Send + Sync {
    /// A run has ended.
    fn ran(&self, run: &JobRun<'_>);

    /// A timer job starts after `folds` requests, the first of which waited for `latency`.
    fn triggered(&self, module: &ModulePath, job: &str, latency: Duration, folds: u64) {
        let _ = (module, job, latency, folds);
    }
}

/// The metrics of a hive, which may be constructed later than the first job.
#[derive(Default)]
pub(crate) struct MetricsHub(pub(crate) OnceLock<Arc<dyn JobMetrics>>);

impl MetricsHub {
    pub(crate) fn ran(&self, run: &JobRun<'_>) {
        if let Some(metrics) = self.0.get() {
            metrics.ran(run);
        }
    }
}
