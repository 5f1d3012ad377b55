// SPDX-License-Identifier: Apache-2.0

//! Background work that belongs to a module.

mod failures;
mod group;
mod job;
mod metrics;
mod runner;
mod trigger;

use std::fmt;
use std::sync::Arc;

pub use group::{JobInfo, JobState};
pub use job::{
    Backoff, Job, JobCtx, JobFn, JobKind, ObserverJob, OnFailure, OnceJob, Retry, TimerJob, is_job_name,
};
pub use metrics::{JobMetrics, JobOutcome, JobRun};
pub use trigger::Trigger;

pub(crate) use group::{Group, JobRegistry, Task, stop_tasks};

use crate::health::Health;

/// Why a job could not be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// The module is stopping or has stopped.
    Stopped {
        /// The job.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
    },
    /// Names are letters, digits, dashes and underscores, at most 100.
    BadName {
        /// The name.
        job: Arc<str>,
        /// The module.
        module: Arc<str>,
    },
    /// Two constructors of one module added jobs of one name and kind.
    Duplicate {
        /// The name.
        job: Arc<str>,
        /// The module.
        module: Arc<str>,
    },
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { job, module } => write!(f, "job `{job}`: module `{module}` has stopped"),
            Self::BadName { job, module } => write!(
                f,
                "job `{job}` of module `{module}`: a name has 1 to 100 letters, digits, dashes and underscores"
            ),
            Self::Duplicate { job, module } => write!(f, "module `{module}` has two jobs `{job}`"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// Starts jobs for a module. Constructors ask for the one of their module.
///
/// Jobs added by constructors start with the constructor's hooks, after what it depends on. Jobs added later
/// start at once, and are stopped before any stop hook. Jobs are asked to stop by their token; those that are
/// not done by the deadline are aborted and named.
///
/// ```
/// use hive::{Cell, Job, JobCtx, Jobs, Retry, SpawnError};
/// use std::time::Duration;
///
/// fn schedule(jobs: Jobs) -> Result<(), SpawnError> {
///     jobs.spawn(Job::once("connect", |_cx: JobCtx| async { Ok::<_, std::io::Error>(()) }).retry(Retry::forever()))?;
///     jobs.spawn(Job::every(Duration::from_secs(60), "collect", |_cx: JobCtx| async {}).run_at_start())
/// }
/// # let _ = Cell::module("collector", "Collects").run(schedule);
/// ```
#[derive(Clone)]
pub struct Jobs {
    group: Arc<Group>,
    health: Health,
}

impl Jobs {
    pub(crate) fn new(group: Arc<Group>, health: Health) -> Self {
        Self { group, health }
    }

    /// Adds a job.
    ///
    /// # Errors
    ///
    /// If the module is stopping or has stopped, the name is bad, or a constructor has added a job of this
    /// name. A job of a taken name that is added while the hive runs gets a number: `name/2`.
    pub fn spawn(&self, job: impl Into<Job>) -> Result<(), SpawnError> {
        self.group.spawn(job.into(), self.health.clone())
    }

    /// Adds a [`Job::keep`].
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn keep<S, F>(
        &self,
        name: impl Into<Arc<str>>,
        state: impl Into<Arc<S>>,
        run: F,
    ) -> Result<(), SpawnError>
    where
        S: Send + Sync + 'static,
        F: for<'a> JobFn<'a, S> + Send + Sync + 'static,
    {
        self.spawn(Job::keep(name, state, run))
    }

    /// The same, with health reported below a component `name`.
    ///
    /// ```
    /// # use hive::{Job, JobCtx, Jobs, SpawnError};
    /// fn schedule(jobs: Jobs) -> Result<(), SpawnError> {
    ///     jobs.scope("west").spawn(Job::once("sync", |_: JobCtx| async {})) // health: west.job-sync
    /// }
    /// # let _ = hive::Cell::module("mesh", "Mesh").run(schedule);
    /// ```
    #[must_use]
    pub fn scope(&self, name: impl Into<Arc<str>>) -> Self {
        Self {
            group: self.group.clone(),
            health: self.health.scope(name),
        }
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jobs({})", self.health.id())
    }
}
