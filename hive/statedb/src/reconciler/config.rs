// SPDX-License-Identifier: Apache-2.0

//! Settings of a reconciler and the small interfaces it reports to.

use std::{fmt, sync::Arc, time::Duration};

use crate::clock::{Clock, SystemClock};

/// Settings of a reconciler.
///
/// ```
/// use std::time::Duration;
///
/// use statedb::reconciler::Config;
///
/// let config = Config {
///     name: Some("routes".into()),
///     refresh_interval: None,
///     retry_max: Duration::from_secs(10),
///     ..Config::default()
/// };
/// assert_eq!((config.round_size, config.retry_min), (1000, Duration::from_millis(100)));
/// ```
#[derive(Clone)]
pub struct Config {
    /// Distinguishes several reconcilers of a module: the jobs are `reconcile-<name>` and `refresh-<name>`.
    pub name: Option<String>,
    /// Most objects handled before statuses are written.
    pub round_size: usize,
    /// Most rounds per second, as a mean: up to a tenth of a second's worth may follow each other closely.
    pub rounds_per_second: u32,
    /// Pause before the first retry of an object; doubles with each failure.
    pub retry_min: Duration,
    /// Longest pause between retries.
    pub retry_max: Duration,
    /// Time after which an object that was applied is applied again; `None`: never.
    pub refresh_interval: Option<Duration>,
    /// Most objects marked for refreshing per second.
    pub refresh_rate: u32,
    /// Time between two prunings, the first of which is done when the table is initialised; `None`: only on
    /// request.
    pub prune_interval: Option<Duration>,
    /// Operations run on a thread of the runtime that may block: for those that wait for the kernel or for files.
    pub blocking: bool,
    /// Source of the times in statuses.
    pub clock: Arc<dyn Clock>,
    /// Receives measurements.
    pub metrics: Arc<dyn ReconcilerMetrics>,
}

impl Default for Config {
    /// Rounds of 1000 objects, 1000 a second; retries after 100 ms to 1 min; refresh every 30 min at 100 objects a
    /// second; pruning every hour.
    fn default() -> Self {
        Self {
            name: None,
            round_size: 1000,
            rounds_per_second: 1000,
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(60),
            refresh_interval: Some(Duration::from_secs(30 * 60)),
            refresh_rate: 100,
            prune_interval: Some(Duration::from_secs(60 * 60)),
            blocking: false,
            clock: Arc::new(SystemClock),
            metrics: Arc::new(NoReconcilerMetrics),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .field("round_size", &self.round_size)
            .field("rounds_per_second", &self.rounds_per_second)
            .field("retry", &(self.retry_min..=self.retry_max))
            .field("refresh_interval", &self.refresh_interval)
            .field("prune_interval", &self.prune_interval)
            .field("blocking", &self.blocking)
            .finish_non_exhaustive()
    }
}

/// Receives the health of a reconciler.
///
/// ```
/// use statedb::reconciler::HealthReporter;
///
/// struct Terminal;
/// impl HealthReporter for Terminal {
///     fn ok(&self, message: &str) { println!("{message}") }
///     fn degraded(&self, message: &str, error: &str) { eprintln!("{message}: {error}") }
/// }
/// Terminal.ok("OK, 3 object(s)");
/// ```
pub trait HealthReporter: Send + Sync {
    /// The last round had no failures.
    fn ok(&self, message: &str);
    /// Objects fail; `error` names some.
    fn degraded(&self, message: &str, error: &str);
}

/// Drops all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHealth;

impl HealthReporter for NoHealth {
    fn ok(&self, _: &str) {}
    fn degraded(&self, _: &str, _: &str) {}
}

/// Kind of an operation measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An update, or a batch of them.
    Update,
    /// A deletion, or a batch of them.
    Delete,
}

impl Operation {
    /// Value of the metrics label `op`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// Receives the measurements of reconcilers. All methods do nothing by default.
///
/// ```
/// use std::{sync::atomic::{AtomicUsize, Ordering}, time::Duration};
///
/// use statedb::reconciler::{Operation, ReconcilerMetrics};
///
/// #[derive(Default)]
/// struct Failing(AtomicUsize);
/// impl ReconcilerMetrics for Failing {
///     fn errors(&self, _new: usize, current: usize) { self.0.store(current, Ordering::Relaxed) }
/// }
///
/// let failing = Failing::default();
/// failing.errors(2, 5);
/// failing.operation(Operation::Update, Duration::from_millis(1));
/// assert_eq!((failing.0.load(Ordering::Relaxed), Operation::Update.as_str()), (5, "update"));
/// ```
pub trait ReconcilerMetrics: Send + Sync {
    /// Returns whether to measure the time of operations.
    fn enabled(&self) -> bool {
        true
    }
    /// A round was done.
    fn round(&self) {}
    /// An operation, or a batch of operations of one kind, took this long.
    fn operation(&self, operation: Operation, took: Duration) {
        let _ = (operation, took);
    }
    /// Failures in a round, and objects that fail now.
    fn errors(&self, new: usize, current: usize) {
        let _ = (new, current);
    }
    /// The target was pruned.
    fn prune(&self, took: Duration, failed: bool) {
        let _ = (took, failed);
    }
}

/// Drops all measurements.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReconcilerMetrics;

impl ReconcilerMetrics for NoReconcilerMetrics {
    fn enabled(&self) -> bool {
        false
    }
}
