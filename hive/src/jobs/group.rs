// SPDX-License-Identifier: Apache-2.0

//! The jobs of one constructor, and all that run in a hive.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failures::Failures;
use super::job::{Job, JobKind};
use super::metrics::MetricsHub;
use super::runner::{self, Run};
use super::{SpawnError, is_job_name};
use crate::health::Health;
use crate::module::ModulePath;
use crate::readiness::ReadinessState;
use crate::shutdown::ShutdownState;

/// How many failed jobs of a module are remembered.
const KEPT_FAILURES: usize = 16;

/// How a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// At work, or waiting for its time.
    Running,
    /// Waiting to be retried.
    Retrying,
    /// Failed for good.
    Failed,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Failed => "failed",
        })
    }
}

/// One line of the list of jobs.
///
/// ```
/// # use hive::{Cell, Hive, Job, JobCtx, JobKind, JobState, Jobs, Settings, SpawnError};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// fn schedule(jobs: Jobs) -> Result<(), SpawnError> {
///     jobs.spawn(Job::once("serve", |cx: JobCtx| async move { cx.cancelled().await }))
/// }
/// let cell = Cell::module("server", "Serves").run(schedule);
/// let running = Hive::new([cell]).plan(Settings::new())?.build()?.start().await?;
/// let job = &running.controller().jobs()[0];
/// assert_eq!((&*job.name, job.module.as_str(), job.kind), ("serve", "server", JobKind::Once));
/// # let _ = (JobKind::Once, JobState::Running);
/// # running.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct JobInfo {
    /// The module.
    pub module: ModulePath,
    /// The name, with its instance.
    pub name: Arc<str>,
    /// The kind.
    pub kind: JobKind,
    /// Time between two runs of a timer.
    pub interval: Option<Duration>,
    /// How it is.
    pub state: JobState,
    /// Runs so far.
    pub runs: u64,
    /// Runs that failed.
    pub failures: u64,
    /// The newest error, with its causes.
    pub last_error: Option<String>,
    /// The stack of the newest panic, if `RUST_BACKTRACE` is set.
    pub last_backtrace: Option<String>,
    since: Instant,
    /// Its first section has run.
    begun: bool,
    pub(super) run_since: Option<Instant>,
}

impl JobInfo {
    /// How long ago the job was started.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How long the run under way has taken so far; none while the job waits for its time, an event, or a retry.
    #[must_use]
    pub fn running_for(&self) -> Option<Duration> {
        self.run_since.map(|since| since.elapsed())
    }
}

/// All jobs of a hive.
pub(crate) struct JobRegistry {
    pub(crate) metrics: MetricsHub,
    pub(crate) shutdown: Arc<ShutdownState>,
    pub(crate) readiness: ReadinessState,
    pub(crate) failures: Failures,
    runtime: Mutex<Option<Handle>>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    next: u64,
    jobs: BTreeMap<u64, JobInfo>,
    /// Names in use, by module, kind and name.
    names: HashMap<(ModulePath, JobKind, Arc<str>), u32>,
    failed: HashMap<ModulePath, VecDeque<(JobInfo, Health)>>,
    /// Jobs added while the hive runs, by lifecycle.
    late: BTreeMap<u64, (u32, Task)>,
}

/// A job that runs.
pub(crate) struct Task {
    pub(crate) name: Arc<str>,
    pub(crate) module: ModulePath,
    token: CancellationToken,
    handle: JoinHandle<()>,
}

impl Task {
    pub(crate) fn cancel(&self) {
        self.token.cancel();
    }

    /// Waits until it has ended; false if it has not by then.
    async fn join_until(&mut self, deadline: Instant) -> bool {
        tokio::time::timeout_at(deadline, &mut self.handle).await.is_ok()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.token.cancel();
        self.handle.abort();
    }
}

impl JobRegistry {
    pub(crate) fn new(shutdown: Arc<ShutdownState>, readiness: ReadinessState) -> Self {
        Self {
            metrics: MetricsHub::default(),
            shutdown,
            readiness,
            failures: Failures::default(),
            runtime: Mutex::new(None),
            running: Mutex::new(Running::default()),
        }
    }

    pub(crate) fn set_runtime(&self, handle: Handle) {
        *crate::lock(&self.runtime) = Some(handle);
    }

    /// All jobs: those at work in the order of their start, then those that failed for good.
    pub(crate) fn list(&self) -> Vec<JobInfo> {
        let running = crate::lock(&self.running);
        let mut failed: Vec<_> = running
            .failed
            .values()
            .flatten()
            .map(|(info, _)| info.clone())
            .collect();
        failed.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name)));
        running.jobs.values().cloned().chain(failed).collect()
    }

    /// Whether all jobs have been polled at least once.
    pub(crate) fn all_begun(&self) -> bool {
        crate::lock(&self.running).jobs.values().all(|info| info.begun)
    }

    pub(crate) fn update(&self, id: u64, change: impl FnOnce(&mut JobInfo)) {
        if let Some(info) = crate::lock(&self.running).jobs.get_mut(&id) {
            change(info);
        }
    }

    /// Forgets a job that has ended; one that failed is kept, with its health.
    fn ended(&self, id: u64, key: &(ModulePath, JobKind, Arc<str>), failed: Option<Health>) {
        let mut running = crate::lock(&self.running);
        let info = running.jobs.remove(&id);
        running.names.remove(key);
        let task = running.late.remove(&id);
        let mut evicted = None;
        if let (Some(mut info), Some(health)) = (info, failed) {
            info.state = JobState::Failed;
            let kept = running.failed.entry(key.0.clone()).or_default();
            kept.retain(|(other, _)| !(other.name == info.name && other.kind == info.kind));
            kept.push_back((info, health));
            if kept.len() > KEPT_FAILURES {
                evicted = kept.pop_front();
            }
        }
        drop(running);
        // Aborts a task that has nothing left to do.
        drop(task);
        if let Some((_, health)) = evicted {
            health.close();
        }
    }

    /// The jobs that were added to this lifecycle while it ran, newest first.
    pub(crate) fn take_late(&self, lifecycle: u32) -> Vec<Task> {
        let mut running = crate::lock(&self.running);
        let ids: Vec<u64> = running
            .late
            .iter()
            .filter(|(_, (of, _))| *of == lifecycle)
            .map(|(id, _)| *id)
            .collect();
        ids.iter()
            .rev()
            .filter_map(|id| running.late.remove(id))
            .map(|(_, task)| task)
            .collect()
    }

    fn start(self: &Arc<Self>, job: &Job, group: &Group, health: &Health, late: bool) -> Option<Task> {
        let handle = crate::lock(&self.runtime)
            .clone()
            .or_else(|| Handle::try_current().ok())?;
        let kind = job.kind();
        let mut running = crate::lock(&self.running);
        let id = running.next;
        running.next += 1;
        let mut name = match &job.instance {
            Some(instance) => Arc::from(format!("{}/{instance}", job.name)),
            None => job.name.clone(),
        };
        let mut key = (group.module.clone(), kind, name.clone());
        let mut number = 2;
        while running.names.contains_key(&key) {
            key.2 = Arc::from(format!("{name}/{number}"));
            number += 1;
        }
        name = key.2.clone();
        running.names.insert(key.clone(), 1);
        let info = JobInfo {
            module: group.module.clone(),
            name: name.clone(),
            kind,
            interval: job.interval(),
            state: JobState::Running,
            runs: 0,
            failures: 0,
            last_error: None,
            last_backtrace: None,
            since: Instant::now(),
            begun: false,
            run_since: None,
        };
        running.jobs.insert(id, info);
        if let Some(kept) = running.failed.get_mut(&group.module) {
            kept.retain(|(other, _)| !(other.name == name && other.kind == kind));
        }

        let token = CancellationToken::new();
        let run = Run {
            id,
            span: tracing::error_span!(parent: None, "job", module = %group.module, job = &*name),
            name: name.clone(),
            module: group.module.clone(),
            health: health.scope(format!("{}-{name}", kind.health_prefix())),
            token: token.clone(),
            registry: self.clone(),
            on_failure: job.on_failure,
        };
        let work = job.work.clone();
        let registry = self.clone();
        let task = handle.spawn(async move {
            let begun = || registry.update(id, |info| info.begun = true);
            let failed = after_first_poll(runner::run(&run, work), begun).await;
            registry.ended(id, &key, failed.then_some(run.health));
        });
        let task = Task {
            name,
            module: group.module.clone(),
            token,
            handle: task,
        };
        if late {
            running.late.insert(id, (group.lifecycle, task));
            None
        } else {
            Some(task)
        }
    }
}

/// Where the owner of a group is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its constructor runs, or others do.
    Building,
    /// Constructed; not yet started.
    Waiting,
    /// Started.
    Running,
    /// Stopping or stopped.
    Stopped,
}

/// The jobs of one constructor.
pub(crate) struct Group {
    module: ModulePath,
    /// Index of the lifecycle to which the constructor belongs.
    lifecycle: u32,
    registry: Arc<JobRegistry>,
    inner: Mutex<Inner>,
}

struct Inner {
    phase: Phase,
    /// Added by the constructor: start each time the module starts.
    declared: Vec<(Job, Health)>,
    /// Added before the start by others: start once.
    queued: Vec<(Job, Health)>,
    running: Vec<Task>,
}

impl Group {
    pub(crate) fn new(module: ModulePath, lifecycle: u32, registry: Arc<JobRegistry>) -> Self {
        let inner = Inner {
            phase: Phase::Building,
            declared: Vec::new(),
            queued: Vec::new(),
            running: Vec::new(),
        };
        Self {
            module,
            lifecycle,
            registry,
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn spawn(&self, job: Job, health: Health) -> Result<(), SpawnError> {
        let names = || (job.name.clone(), Arc::from(self.module.as_str()));
        if !is_job_name(&job.name) {
            let (job, module) = names();
            return Err(SpawnError::BadName { job, module });
        }
        let mut inner = crate::lock(&self.inner);
        match inner.phase {
            Phase::Building => {
                let taken = inner.declared.iter().any(|(other, other_health)| {
                    other.name == job.name
                        && other.instance == job.instance
                        && other.kind() == job.kind()
                        && other_health.id() == health.id()
                });
                if taken {
                    let (job, module) = names();
                    return Err(SpawnError::Duplicate { job, module });
                }
                inner.declared.push((job, health));
            }
            Phase::Waiting => inner.queued.push((job, health)),
            Phase::Running => {
                self.registry.start(&job, self, &health, true);
            }
            Phase::Stopped => {
                let (job, module) = names();
                return Err(SpawnError::Stopped { job, module });
            }
        }
        Ok(())
    }

    /// The hive is built, or is about to start again.
    pub(crate) fn wait(&self) {
        crate::lock(&self.inner).phase = Phase::Waiting;
    }

    /// From now on new jobs start at once: hooks of the constructor run.
    pub(crate) fn open(&self) {
        crate::lock(&self.inner).phase = Phase::Running;
    }

    /// Starts the jobs of the constructor.
    pub(crate) fn start(&self) {
        let mut inner = crate::lock(&self.inner);
        inner.phase = Phase::Running;
        let declared = inner.declared.clone();
        for (job, health) in &declared {
            let task = self.registry.start(job, self, health, false);
            inner.running.extend(task);
        }
        for (job, health) in std::mem::take(&mut inner.queued) {
            self.registry.start(&job, self, &health, true);
        }
    }

    /// No new jobs from now on.
    pub(crate) fn close(&self) {
        let mut inner = crate::lock(&self.inner);
        inner.phase = Phase::Stopped;
        let queued = std::mem::take(&mut inner.queued);
        drop(inner);
        drop(queued);
    }

    /// Closes it and drops its jobs: the hive is gone, and no module starts again. A job may own the `Jobs` that it was
    /// added to, and with it this group: they would keep each other, and all that the job owns.
    pub(crate) fn discard(&self) {
        self.close();
        let declared = std::mem::take(&mut crate::lock(&self.inner).declared);
        // What jobs own may use the group when it is dropped.
        drop(declared);
        drop(self.take_running());
    }

    /// The jobs of the constructor, newest first.
    pub(crate) fn take_running(&self) -> Vec<Task> {
        let mut tasks = std::mem::take(&mut crate::lock(&self.inner).running);
        tasks.reverse();
        tasks
    }

    pub(crate) fn declared(&self) -> Vec<(Arc<str>, JobKind)> {
        crate::lock(&self.inner)
            .declared
            .iter()
            .map(|(job, _)| (job.name.clone(), job.kind()))
            .collect()
    }
}

/// Runs a future; calls `begun` when it has been polled once.
async fn after_first_poll<T>(future: impl Future<Output = T>, begun: impl FnOnce()) -> T {
    let mut future = pin!(future);
    let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    begun();
    match first {
        Poll::Ready(output) => output,
        Poll::Pending => future.await,
    }
}

/// Cancels all tasks, then waits for each; returns those that had to be aborted.
pub(crate) async fn stop_tasks(
    mut tasks: Vec<Task>,
    deadline: Instant,
    report_every: Duration,
) -> Vec<(ModulePath, Arc<str>)> {
    for task in &tasks {
        task.cancel();
    }
    let begun = Instant::now();
    let mut report = begun + report_every;
    let mut stuck = Vec::new();
    for task in &mut tasks {
        while !task.join_until(deadline.min(report)).await {
            let now = Instant::now();
            if now >= deadline {
                task.handle.abort();
                stuck.push((task.module.clone(), task.name.clone()));
                break;
            }
            let (age, left) = (now - begun, deadline - now);
            tracing::warn!(phase = "stop", module = %task.module, job = %task.name, ?age, ?left, "Still waiting for job");
            report = now + report_every;
        }
    }
    stuck
}
