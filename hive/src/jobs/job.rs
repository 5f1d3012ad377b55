// SPDX-License-Identifier: Apache-2.0

//! Descriptions of jobs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use tokio_util::sync::CancellationToken;

use super::trigger::Trigger;
use crate::error::BoxError;
use crate::health::Health;
use crate::lifecycle::{BoxFuture, HookOutput};
use crate::module::ModulePath;

/// What a job gets to know.
///
/// ```
/// # use hive::{Job, JobCtx};
/// let job = Job::once("serve", |cx: JobCtx| async move {
///     cx.health.ok(format!("Serving in {}", cx.module));
///     cx.cancelled().await;
/// });
/// # let _ = job;
/// ```
#[derive(Clone, Debug)]
pub struct JobCtx {
    /// Cancelled when the job should end.
    pub token: CancellationToken,
    /// Health of the job.
    pub health: Health,
    /// The module.
    pub module: ModulePath,
}

impl JobCtx {
    /// Waits until the job should end.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Runs a future, which is dropped when the job should end: `None`. For loops that can stop anywhere.
    ///
    /// ```
    /// # use hive::{Job, JobCtx};
    /// # use std::time::Duration;
    /// let job = Job::once("beat", |cx: JobCtx| async move {
    ///     let beats = async {
    ///         loop {
    ///             tokio::time::sleep(Duration::from_secs(1)).await;
    ///             println!("beat");
    ///         }
    ///     };
    ///     cx.until_cancelled::<()>(beats).await;
    /// });
    /// # let _ = job;
    /// ```
    pub async fn until_cancelled<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.token.run_until_cancelled(future).await
    }
}

pub(crate) type RunFn = Arc<dyn Fn(JobCtx) -> BoxFuture<Result<(), BoxError>> + Send + Sync>;
type AnyEvent = BoxFuture<Result<(), BoxError>>;
/// The next event, turned into the future that handles it.
pub(crate) type Events = Pin<Box<dyn Stream<Item = AnyEvent> + Send>>;
pub(crate) type EventsFn = Arc<dyn Fn(JobCtx) -> Events + Send + Sync>;

/// What kind of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Runs once, or until it succeeds.
    Once,
    /// Runs at intervals or when triggered.
    Timer,
    /// Runs for each event of a stream.
    Observer,
}

impl JobKind {
    /// In front of the name of the job's health component.
    pub(crate) fn health_prefix(self) -> &'static str {
        match self {
            Self::Once => "job",
            Self::Timer => "timer-job",
            Self::Observer => "observer-job",
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "once",
            Self::Timer => "timer",
            Self::Observer => "observer",
        })
    }
}

/// What happens when a job fails for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Health is degraded, the rest goes on.
    #[default]
    Degrade,
    /// The hive stops, with the job's error as the cause.
    Shutdown,
}

/// Waiting times between retries: doubling, with jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    pub(crate) jitter: f64,
}

impl Backoff {
    /// Doubles from `min` up to `max`; each wait is shortened by up to a fifth at random.
    #[must_use]
    pub fn exponential(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max: max.max(min),
            jitter: 0.2,
        }
    }

    /// Always the same.
    #[must_use]
    pub fn constant(wait: Duration) -> Self {
        Self {
            min: wait,
            max: wait,
            jitter: 0.0,
        }
    }

    /// Shortens each wait by up to this part of it, at random; from 0 to 1.
    #[must_use]
    pub fn jitter(mut self, part: f64) -> Self {
        self.jitter = part.clamp(0.0, 1.0);
        self
    }

    /// The wait before retry number `retry`, counted from 0.
    pub(crate) fn wait(&self, retry: u32) -> Duration {
        let wait = self
            .min
            .saturating_mul(1u32.checked_shl(retry.min(31)).unwrap_or(u32::MAX))
            .min(self.max);
        if self.jitter > 0.0 {
            wait.mul_f64(1.0 - self.jitter * fastrand::f64())
        } else {
            wait
        }
    }
}

/// How often a one-shot job is retried. A run that lasted for twice the longest wait counts as a success: waiting and
/// counting begin anew.
///
/// ```
/// use hive::{Backoff, Retry};
/// use std::time::Duration;
/// let retry = Retry::times(3).backoff(Backoff::constant(Duration::from_secs(1)));
/// # let _ = retry;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// `None`: without end.
    pub(crate) limit: Option<u32>,
    pub(crate) backoff: Backoff,
}

impl Retry {
    /// Up to `times` retries after the first run, waiting from 100 ms to 30 s.
    #[must_use]
    pub fn times(times: u32) -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(30));
        Self {
            limit: Some(times),
            backoff,
        }
    }

    /// Until it succeeds, waiting from 100 ms to 30 s.
    #[must_use]
    pub fn forever() -> Self {
        Self {
            limit: None,
            ..Self::times(0)
        }
    }

    /// Other waiting times.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// An asynchronous function of a state and a [`JobCtx`], such as a method `async fn follow(&self, cx: &JobCtx)`.
pub trait JobFn<'a, S> {
    #[doc(hidden)]
    fn run(&self, state: &'a S, cx: &'a JobCtx) -> impl Future<Output = Result<(), BoxError>> + Send + 'a;
}

impl<'a, S, F, Fut> JobFn<'a, S> for F
where
    S: 'a,
    F: Fn(&'a S, &'a JobCtx) -> Fut,
    Fut: Future + Send + 'a,
    Fut::Output: HookOutput,
{
    fn run(&self, state: &'a S, cx: &'a JobCtx) -> impl Future<Output = Result<(), BoxError>> + Send + 'a {
        let future = self(state, cx);
        async move { future.await.into_result() }
    }
}

/// A job to be given to [`Jobs::spawn`](super::Jobs::spawn).
///
/// The functions of a job can run again: a stopped hive can start again.
#[derive(Clone)]
pub struct Job {
    pub(crate) name: Arc<str>,
    pub(crate) instance: Option<Arc<str>>,
    pub(crate) on_failure: OnFailure,
    pub(crate) work: Work,
}

#[derive(Clone)]
pub(crate) enum Work {
    Once {
        run: RunFn,
        retry: Option<Retry>,
        when_ready: bool,
    },
    Timer(Timer),
    Observer {
        events: EventsFn,
    },
}

#[derive(Clone)]
pub(crate) struct Timer {
    pub(crate) run: RunFn,
    pub(crate) period: Duration,
    pub(crate) at_start: bool,
    pub(crate) jitter: f64,
    pub(crate) debounce: Option<(Duration, Duration)>,
    pub(crate) min_interval: Duration,
    pub(crate) trigger: Option<Trigger>,
}

impl Job {
    /// Runs once.
    ///
    /// Health component `job-<name>`. An error is retried as [`OnceJob::retry`] says.
    ///
    /// ```
    /// use hive::{Job, JobCtx, Retry};
    /// let job = Job::once("connect", |cx: JobCtx| async move {
    ///     cx.health.ok("Connecting");
    ///     Ok::<(), std::io::Error>(())
    /// })
    /// .retry(Retry::forever());
    /// # let _ = job;
    /// ```
    pub fn once<F, Fut>(name: impl Into<Arc<str>>, run: F) -> OnceJob
    where
        F: Fn(JobCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        OnceJob(Self::new(
            name.into(),
            Work::Once {
                run: run_fn(run),
                retry: None,
                when_ready: false,
            },
        ))
    }

    /// Runs a method of `state` until it ends. Dropped when the job should end; retried after an error, without limit,
    /// unless [`retry`](OnceJob::retry) sets another policy.
    ///
    /// For jobs that can stop at any `await`. A job that has to finish something ends by itself: [`once`](Self::once).
    ///
    /// ```
    /// # use hive::{Job, JobCtx};
    /// struct Sync { peers: Vec<String> }
    /// impl Sync {
    ///     async fn follow(&self, cx: &JobCtx) -> Result<(), std::io::Error> {
    ///         cx.health.ok(format!("{} peers", self.peers.len()));
    ///         std::future::pending().await
    ///     }
    /// }
    /// let job = Job::keep("sync", Sync { peers: vec![] }, Sync::follow).instance("west");
    /// # let _ = job;
    /// ```
    pub fn keep<S, F>(name: impl Into<Arc<str>>, state: impl Into<Arc<S>>, run: F) -> OnceJob
    where
        S: Send + Sync + 'static,
        F: for<'a> JobFn<'a, S> + Send + Sync + 'static,
    {
        let (state, run) = (state.into(), Arc::new(run));
        let job = Self::once(name, move |cx: JobCtx| {
            let (state, run) = (state.clone(), run.clone());
            async move { cx.until_cancelled(run.run(&state, &cx)).await.unwrap_or(Ok(())) }
        });
        job.retry(Retry::forever())
    }

    /// Runs every `period`, first after one period. Runs never overlap; times missed during a long run make
    /// one run. With a period of zero it runs only when triggered.
    ///
    /// Health component `timer-job-<name>`.
    ///
    /// ```
    /// use hive::{Job, JobCtx, Trigger};
    /// use std::time::Duration;
    /// let trigger = Trigger::new();
    /// let job = Job::every(Duration::from_secs(30), "sync", |_cx: JobCtx| async {})
    ///     .run_at_start()
    ///     .jitter(0.1)
    ///     .debounce(Duration::from_millis(10), Duration::from_millis(100))
    ///     .trigger(&trigger);
    /// trigger.trigger();
    /// # let _ = job;
    /// ```
    pub fn every<F, Fut>(period: Duration, name: impl Into<Arc<str>>, run: F) -> TimerJob
    where
        F: Fn(JobCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        TimerJob(Self::new(
            name.into(),
            Work::Timer(Timer {
                run: run_fn(run),
                period,
                at_start: false,
                jitter: 0.0,
                debounce: None,
                min_interval: Duration::ZERO,
                trigger: None,
            }),
        ))
    }

    /// Runs for each event of the stream that `source` makes, until it ends. An error degrades health and
    /// does not end the job.
    ///
    /// Health component `observer-job-<name>`.
    pub fn for_each<S, F, Fut>(
        name: impl Into<Arc<str>>,
        source: impl Fn() -> S + Send + Sync + 'static,
        run: F,
    ) -> ObserverJob
    where
        S: Stream + Send + 'static,
        S::Item: 'static,
        F: Fn(JobCtx, S::Item) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        let run = Arc::new(run);
        let events: EventsFn = Arc::new(move |cx| {
            Box::pin(Handled {
                source: Box::pin(source()),
                run: run.clone(),
                cx,
            })
        });
        ObserverJob(Self::new(name.into(), Work::Observer { events }))
    }

    fn new(name: Arc<str>, work: Work) -> Self {
        Self {
            name,
            instance: None,
            on_failure: OnFailure::default(),
            work,
        }
    }

    /// What kind of job it is.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self.work {
            Work::Once { .. } => JobKind::Once,
            Work::Timer(_) => JobKind::Timer,
            Work::Observer { .. } => JobKind::Observer,
        }
    }

    pub(crate) fn interval(&self) -> Option<Duration> {
        match &self.work {
            Work::Timer(timer) => Some(timer.period),
            _ => None,
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({} {})", self.kind(), self.name)
    }
}

/// A stream of the futures that handle the events of another stream.
struct Handled<S, F> {
    source: Pin<Box<S>>,
    run: Arc<F>,
    cx: JobCtx,
}

impl<S, F, Fut> Stream for Handled<S, F>
where
    S: Stream,
    F: Fn(JobCtx, S::Item) -> Fut,
    Fut: Future + Send + 'static,
    Fut::Output: HookOutput,
{
    type Item = AnyEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<AnyEvent>> {
        let this = self.get_mut();
        this.source.as_mut().poll_next(cx).map(|event| {
            let future = (this.run)(this.cx.clone(), event?);
            Some(Box::pin(async move { future.await.into_result() }) as AnyEvent)
        })
    }
}

fn run_fn<F, Fut>(run: F) -> RunFn
where
    F: Fn(JobCtx) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: HookOutput,
{
    Arc::new(move |cx| {
        let future = run(cx);
        Box::pin(async move { future.await.into_result() })
    })
}

macro_rules! common {
    ($type:ident) => {
        impl $type {
            /// Names one of several jobs of a name: `name/instance`.
            pub fn instance(mut self, instance: impl Into<Arc<str>>) -> Self {
                self.0.instance = Some(instance.into());
                self
            }

            /// What happens when the job fails for good.
            pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
                self.0.on_failure = on_failure;
                self
            }
        }

        impl From<$type> for Job {
            fn from(job: $type) -> Self {
                job.0
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A job of [`Job::once`].
#[derive(Clone)]
#[must_use = "a job does nothing until it is given to `Jobs::spawn`"]
pub struct OnceJob(Job);
common!(OnceJob);

impl OnceJob {
    /// Runs again after an error: *n* retries are *n* + 1 runs.
    pub fn retry(mut self, policy: Retry) -> Self {
        if let Work::Once { retry, .. } = &mut self.0.work {
            *retry = Some(policy);
        }
        self
    }

    /// Waits until the hive is [ready](crate::Readiness): all has started, all guards are dropped.
    pub fn when_ready(mut self) -> Self {
        if let Work::Once { when_ready, .. } = &mut self.0.work {
            *when_ready = true;
        }
        self
    }
}

/// A job of [`Job::every`]. A failed run counts as failed for good only if [`OnFailure::Shutdown`] is asked
/// for; otherwise the next run comes as usual.
#[derive(Clone)]
#[must_use = "a job does nothing until it is given to `Jobs::spawn`"]
pub struct TimerJob(Job);
common!(TimerJob);

impl TimerJob {
    fn timer(mut self, change: impl FnOnce(&mut Timer)) -> Self {
        if let Work::Timer(timer) = &mut self.0.work {
            change(timer);
        }
        self
    }

    /// Runs at once when started.
    pub fn run_at_start(self) -> Self {
        self.timer(|timer| timer.at_start = true)
    }

    /// Lengthens or shortens every period by up to this part of it, at random; from 0 to 1.
    pub fn jitter(self, part: f64) -> Self {
        self.timer(|timer| timer.jitter = part.clamp(0.0, 1.0))
    }

    /// A trigger starts a run only after `quiet` without another one, at the latest `max` after the first.
    pub fn debounce(self, quiet: Duration, max: Duration) -> Self {
        self.timer(|timer| timer.debounce = Some((quiet, max.max(quiet))))
    }

    /// Triggered runs start at least so long after the start of the run before. A trigger in between is kept
    /// until then.
    pub fn min_interval(self, interval: Duration) -> Self {
        self.timer(|timer| timer.min_interval = interval)
    }

    /// Also runs when triggered. Triggers before a run make one run.
    pub fn trigger(self, trigger: &Trigger) -> Self {
        let trigger = trigger.clone();
        self.timer(|timer| timer.trigger = Some(trigger))
    }
}

/// A job of [`Job::for_each`].
///
/// ```
/// # use hive::{Job, JobCtx, ObserverJob, OnFailure};
/// # fn numbers() -> impl futures_core::Stream<Item = u8> + Send { Empty }
/// # struct Empty;
/// # impl futures_core::Stream for Empty { type Item = u8;
/// #   fn poll_next(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>)
/// #     -> std::task::Poll<Option<u8>> { std::task::Poll::Ready(None) } }
/// let job: ObserverJob = Job::for_each("count", numbers, |_: JobCtx, _: u8| async {}).on_failure(OnFailure::Shutdown);
/// # let _ = job;
/// ```
#[derive(Clone)]
#[must_use = "a job does nothing until it is given to `Jobs::spawn`"]
pub struct ObserverJob(Job);
common!(ObserverJob);

/// A name of a job that is checked when the program is compiled.
///
/// ```
/// # use hive::{Job, JobCtx};
/// let job = Job::once(hive::job_name!("collect-garbage"), |_: JobCtx| async {});
/// # let _ = job;
/// ```
///
/// ```compile_fail
/// let _ = hive::job_name!("collect garbage");
/// ```
#[macro_export]
macro_rules! job_name {
    ($name:literal) => {{
        const NAME: &str = $name;
        const {
            assert!(
                $crate::is_job_name(NAME),
                "a job's name has 1 to 100 letters, digits, dashes and underscores"
            )
        };
        NAME
    }};
}

/// Whether a job can have this name: 1 to 100 letters, digits, dashes and underscores.
#[must_use]
pub const fn is_job_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !(bytes[at].is_ascii_alphanumeric() || bytes[at] == b'-' || bytes[at] == b'_') {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty() && bytes.len() <= 100
}
