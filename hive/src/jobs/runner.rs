// SPDX-License-Identifier: Apache-2.0

//! Runs jobs: retries, times, events, health and counting.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::group::{JobRegistry, JobState};
use super::job::{EventsFn, JobCtx, JobKind, OnFailure, Retry, RunFn, Timer, Work};
use super::metrics::{JobOutcome, JobRun};
use crate::error::BoxError;
use crate::health::{Health, error_chain};
use crate::lifecycle::BoxFuture;
use crate::module::ModulePath;
use crate::panics::{Caught, Panic, catch};
use crate::shutdown::ExitCause;
use skep_duration::format_duration;

/// How often an observer reports that all is well.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// One job at work.
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) module: ModulePath,
    pub(crate) health: Health,
    pub(crate) token: CancellationToken,
    pub(crate) registry: Arc<JobRegistry>,
    pub(crate) on_failure: OnFailure,
    /// Around all it logs.
    pub(crate) span: tracing::Span,
}

/// Runs a job until it ends. True if it failed for good.
pub(crate) async fn run(run: &Run, work: Work) -> bool {
    let failed = match work {
        Work::Once {
            run: function,
            retry,
            when_ready,
        } => (!when_ready || run.wait_ready().await) && run.once(&function, retry).await,
        Work::Timer(timer) => run.timer(&timer).await,
        Work::Observer { events } => run.observer(&events).await,
    };
    if !failed {
        run.health.close();
    }
    failed
}

impl Run {
    fn cx(&self) -> JobCtx {
        JobCtx {
            token: self.token.clone(),
            health: self.health.clone(),
            module: self.module.clone(),
        }
    }

    /// One run: counted, timed, panics caught.
    async fn attempt(
        &self,
        kind: JobKind,
        start: impl FnOnce() -> BoxFuture<Result<(), BoxError>>,
    ) -> (Duration, Result<(), BoxError>) {
        let begun = Instant::now();
        self.registry.update(self.id, |info| info.run_since = Some(begun));
        let result = match catch(|| self.span.in_scope(start)) {
            Ok(future) => Caught(future.instrument(self.span.clone()))
                .await
                .map(|result| result.map_err(Failure::Error)),
            Err(panic) => Err(panic),
        };
        let result = match result {
            Ok(result) => result,
            Err(panic) => Err(Failure::Panic(panic)),
        };
        let duration = begun.elapsed();
        // An error after the request to stop is the way in which jobs notice it.
        let result = if self.token.is_cancelled() {
            result.or_else(Failure::unless_error)
        } else {
            result
        };
        let outcome = match &result {
            Ok(()) => JobOutcome::Ok,
            Err(Failure::Error(_)) => JobOutcome::Failed,
            Err(Failure::Panic(_)) => JobOutcome::Panicked,
        };
        self.registry.metrics.ran(&JobRun {
            module: &self.module,
            job: &self.name,
            kind,
            duration,
            outcome,
        });
        self.registry.update(self.id, |info| {
            info.runs += 1;
            info.run_since = None;
            if let Err(failure) = &result {
                info.failures += 1;
                info.last_error = Some(failure.text());
                info.last_backtrace = failure.backtrace();
            }
        });
        if let Err(failure) = &result {
            tracing::warn!(
                module = %self.module, job = %self.name, error = %failure.text(), backtrace = failure.backtrace(),
                "Job failed"
            );
        }
        if let Err(panic @ Failure::Panic(_)) = &result {
            self.note_failure(|| panic.text());
        }
        (duration, result.map_err(Failure::into_error))
    }

    fn degraded(&self, message: String, error: &BoxError) {
        self.health.degraded(message, &**error);
    }

    fn note_failure(&self, text: impl FnOnce() -> String) {
        self.registry.failures.add(|| {
            format!(
                "job `{}` of module `{}` failed: {}",
                self.name,
                self.module,
                text()
            )
        });
    }

    fn give_up(&self, error: BoxError) {
        self.note_failure(|| error_chain(&*error));
        if self.on_failure == OnFailure::Shutdown {
            self.registry.shutdown.request(ExitCause::JobFailed {
                module: self.module.clone(),
                job: self.name.clone(),
                error: error.into(),
            });
        }
    }

    /// Waits until the hive is ready; false if the job should end.
    async fn wait_ready(&self) -> bool {
        self.health.starting("Waiting until the hive is ready");
        tokio::select! {
            biased;
            () = self.token.cancelled() => false,
            () = self.registry.readiness.ready() => true,
        }
    }

    async fn once(&self, function: &RunFn, retry: Option<Retry>) -> bool {
        let mut retries = 0;
        loop {
            self.health.ok("Running");
            self.registry
                .update(self.id, |info| info.state = JobState::Running);
            let cx = self.cx();
            let (duration, result) = self.attempt(JobKind::Once, || function(cx)).await;
            let error = match result {
                Ok(()) => {
                    self.health
                        .ok(format!("Finished ({})", format_duration(duration)));
                    return false;
                }
                Err(error) => error,
            };
            let stable = retry.map(|retry| retry.backoff.max * 2);
            if stable.is_some_and(|stable| duration >= stable && !stable.is_zero()) {
                retries = 0;
            }
            let (left, wait) = match retry {
                None => ("<none>".to_owned(), None),
                Some(Retry {
                    limit: None, backoff, ..
                }) => ("<inf>".to_owned(), Some(backoff.wait(retries))),
                Some(Retry {
                    limit: Some(limit),
                    backoff,
                    ..
                }) => match limit.saturating_sub(retries) {
                    0 => ("<none>".to_owned(), None),
                    left => (left.to_string(), Some(backoff.wait(retries))),
                },
            };
            let message = format!(
                "Failed (duration {}, retry {retries}/{left} in {})",
                format_duration(duration),
                format_duration(wait.unwrap_or_default()),
            );
            self.degraded(message, &error);
            if self.token.is_cancelled() {
                return false;
            }
            let Some(wait) = wait else {
                self.give_up(error);
                return true;
            };
            self.registry
                .update(self.id, |info| info.state = JobState::Retrying);
            retries += 1;
            tokio::select! {
                () = self.token.cancelled() => return false,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn timer(&self, timer: &Timer) -> bool {
        self.health.ok("Primed");
        let mut tick = next_tick(timer, Instant::now());
        let mut last_start = None;
        let mut due = timer.at_start;
        loop {
            if !due && !self.wait(timer, tick, last_start).await {
                return false;
            }
            due = false;
            let now = Instant::now();
            if tick.is_some_and(|tick| tick <= now) {
                tick = following_tick(timer, tick.unwrap_or(now), now);
            }
            if let Some(pending) = timer.trigger.as_ref().and_then(super::Trigger::take)
                && let Some(metrics) = self.registry.metrics.0.get()
            {
                metrics.triggered(&self.module, &self.name, now - pending.first, pending.count);
            }
            last_start = Some(now);
            let cx = self.cx();
            let (duration, result) = self.attempt(JobKind::Timer, || (timer.run)(cx)).await;
            match result {
                Ok(()) => self.health.ok(format!("OK ({})", format_duration(duration))),
                Err(error) => {
                    self.degraded(
                        format!("Timer job failed (duration {})", format_duration(duration)),
                        &error,
                    );
                    if self.on_failure == OnFailure::Shutdown && !self.token.is_cancelled() {
                        self.give_up(error);
                        return true;
                    }
                }
            }
            if self.token.is_cancelled() {
                return false;
            }
        }
    }

    /// Waits for the next tick or trigger. False if cancelled.
    async fn wait(&self, timer: &Timer, tick: Option<Instant>, last_start: Option<Instant>) -> bool {
        loop {
            let pending = timer.trigger.as_ref().and_then(super::Trigger::pending);
            let triggered = pending.map(|pending| {
                let settled = match timer.debounce {
                    Some((quiet, max)) => (pending.last + quiet).min(pending.first + max),
                    None => pending.first,
                };
                last_start.map_or(settled, |start| settled.max(start + timer.min_interval))
            });
            let due = match (tick, triggered) {
                (Some(tick), Some(triggered)) => Some(tick.min(triggered)),
                (tick, triggered) => tick.or(triggered),
            };
            tokio::select! {
                biased;
                () = self.token.cancelled() => return false,
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => return true,
                () = async {
                    match &timer.trigger {
                        Some(trigger) => trigger.changed().await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    async fn observer(&self, events: &EventsFn) -> bool {
        self.health.ok("Primed");
        let cx = self.cx();
        let mut events = match catch(|| events(cx)) {
            Ok(events) => events,
            Err(panic) => {
                let error: BoxError = Box::new(panic);
                self.degraded("Observer job failed (duration 0s)".to_owned(), &error);
                self.give_up(error);
                return true;
            }
        };
        let mut count: u64 = 0;
        let mut reported: Option<Instant> = None;
        loop {
            let next = tokio::select! {
                biased;
                () = self.token.cancelled() => return false,
                next = Caught(poll_fn(|cx| events.as_mut().poll_next(cx))) => next,
            };
            let handle = match next {
                Ok(None) => return false,
                Ok(Some(handle)) => handle,
                Err(panic) => {
                    let error: BoxError = Box::new(panic);
                    self.degraded("Observer job failed (duration 0s)".to_owned(), &error);
                    self.give_up(error);
                    return true;
                }
            };
            count += 1;
            let (duration, result) = self.attempt(JobKind::Observer, || handle).await;
            match result {
                Ok(()) => {
                    if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                        self.health
                            .ok(format!("OK ({}) [{count}]", format_duration(duration)));
                        reported = Some(Instant::now());
                    }
                }
                Err(error) => {
                    self.degraded(
                        format!("Observer job failed (duration {})", format_duration(duration)),
                        &error,
                    );
                    // The next event that is handled well is reported at once.
                    reported = None;
                    if self.on_failure == OnFailure::Shutdown && !self.token.is_cancelled() {
                        self.give_up(error);
                        return true;
                    }
                }
            }
        }
    }
}

/// The first tick after `now`.
fn next_tick(timer: &Timer, now: Instant) -> Option<Instant> {
    (!timer.period.is_zero()).then(|| now + jittered(timer))
}

/// The tick after `tick`, which is due; ticks that were missed are skipped.
fn following_tick(timer: &Timer, tick: Instant, now: Instant) -> Option<Instant> {
    if timer.jitter > 0.0 {
        return Some(now + jittered(timer));
    }
    let late = (now - tick).as_nanos();
    let missed = late / timer.period.as_nanos().max(1);
    let missed = u32::try_from(missed).unwrap_or(u32::MAX);
    tick.checked_add(timer.period.saturating_mul(missed.saturating_add(1)))
}

fn jittered(timer: &Timer) -> Duration {
    if timer.jitter > 0.0 {
        timer
            .period
            .mul_f64(1.0 + timer.jitter * (2.0 * fastrand::f64() - 1.0))
    } else {
        timer.period
    }
}

/// Why a run did not end well.
enum Failure {
    Error(BoxError),
    Panic(Panic),
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Self::Error(error) => error_chain(&**error),
            Self::Panic(panic) => panic.to_string(),
        }
    }

    fn backtrace(&self) -> Option<String> {
        match self {
            Self::Error(_) => None,
            Self::Panic(panic) => panic.backtrace().map(str::to_owned),
        }
    }

    fn into_error(self) -> BoxError {
        match self {
            Self::Error(error) => error,
            Self::Panic(panic) => Box::new(panic),
        }
    }

    fn unless_error(self) -> Result<(), Self> {
        match self {
            Self::Error(_) => Ok(()),
            Self::Panic(_) => Err(self),
        }
    }
}
