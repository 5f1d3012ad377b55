// SPDX-License-Identifier: Apache-2.0

//! Starting, with deadlines and roll-back.

use std::future::poll_fn;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use super::parallel::run_units;
use super::stop::LEAST;
use super::{Engine, HookState, State, StepKind};
use crate::error::BoxError;
use crate::error::SharedError;
use crate::hook_error::{HookFailure, HookId, StartError};
use crate::lifecycle::{Hook, HookCtx};
use crate::panics::{Caught, catch};
use crate::watchdog::{Busy, Watching, What};

/// How a hook ended that did not end well.
pub(super) enum Ended {
    Failed(BoxError),
    Stuck(Duration),
    /// It succeeded after its deadline.
    Late {
        limit: Duration,
        took: Duration,
    },
    Cancelled,
}

impl Ended {
    /// What went wrong in the hook; `None` if it was called off.
    pub(super) fn failure(self, hook: HookId) -> Option<HookFailure> {
        Some(match self {
            Self::Failed(error) => HookFailure::Failed {
                hook,
                error: SharedError::from(error),
            },
            Self::Stuck(after) => HookFailure::Stuck { hook, after },
            Self::Late { limit, took } => HookFailure::Late { hook, limit, took },
            Self::Cancelled => return None,
        })
    }
}

/// The step at which a start ended.
struct FailedStep {
    step: usize,
    ended: Ended,
    took: Duration,
}

impl Engine {
    /// Starts the hive. Does nothing if it runs.
    pub(crate) async fn start(&self) -> Result<(), StartError> {
        let mut progress = self.lifetimes[0].started.lock().await;
        if progress.running {
            return Ok(());
        }
        if matches!(self.state(), State::Stopped | State::Failed) {
            self.shutdown.reset();
        }
        self.set_state(State::Starting);
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            self.registry.set_runtime(handle);
        }
        for (_, group) in &self.groups {
            group.wait();
        }
        let begun = Instant::now();
        let started = self.start_steps(0).await;
        if let Some(metrics) = &self.metrics {
            metrics.started(begun.elapsed(), started.is_ok());
        }
        match started {
            Ok(()) => {
                progress.running = true;
                self.lifetimes[0].running.store(true, Ordering::Release);
                self.set_state(State::Running);
                self.readiness.set_started(true);
                tracing::info!(duration = ?begun.elapsed(), "Started");
                Ok(())
            }
            Err(error) => {
                self.set_state(State::Failed);
                Err(error)
            }
        }
    }

    /// Runs the start of all steps of a lifecycle; on failure stops those that had started.
    pub(super) async fn start_steps(&self, lifecycle: u32) -> Result<(), StartError> {
        let _watching = self.watch_hooks(lifecycle);
        let deadline = Instant::now() + self.options.start_timeout();
        let cancel = self.shutdown.token();
        let result = if self.options.hive_parallel {
            self.start_parallel(lifecycle, deadline, &cancel).await
        } else {
            let all = 0..self.lifetimes[lifecycle as usize].steps.len();
            self.start_range(lifecycle, all, deadline, &cancel).await
        };
        match result {
            Ok(()) => Ok(()),
            Err(failed) => Err(self.roll_back(lifecycle, failed).await),
        }
    }

    /// Watches the hooks of a lifecycle, if it has any.
    pub(super) fn watch_hooks(&self, lifecycle: u32) -> Option<Watching<'_>> {
        let steps = &self.lifetimes[lifecycle as usize].steps;
        let has_hooks = steps.iter().any(|step| matches!(step.kind, StepKind::Hook(_)));
        has_hooks.then(|| self.watchdog.watch())
    }

    /// Starts every constructor's steps as soon as those of what it needs have started.
    async fn start_parallel(
        &self,
        lifecycle: u32,
        deadline: Instant,
        cancel: &CancellationToken,
    ) -> Result<(), FailedStep> {
        let (steps, needs): (Vec<_>, Vec<_>) = self
            .units(lifecycle)
            .into_iter()
            .map(|unit| (unit.steps, unit.needs))
            .unzip();
        let mut result = Ok(());
        run_units(
            &needs,
            |unit| Box::pin(self.start_range(lifecycle, steps[unit].clone(), deadline, cancel)),
            |started| {
                result = started;
                if result.is_ok() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            },
        )
        .await;
        if result.is_err() {
            // Those that were at it have been dropped.
            for status in crate::lock(&self.lifetimes[lifecycle as usize].status).iter_mut() {
                if status.state == HookState::Starting {
                    status.state = HookState::Failed;
                }
            }
        }
        result
    }

    /// Starts steps one after the other.
    ///
    /// Hooks that are done at once share a token, which is cancelled when all are done.
    async fn start_range(
        &self,
        lifecycle: u32,
        steps: Range<usize>,
        deadline: Instant,
        cancel: &CancellationToken,
    ) -> Result<(), FailedStep> {
        let mut token = CancellationToken::new().drop_guard();
        // A hook begins when the one before it ends: reading the clock is much of what a short hook costs.
        let mut now = Instant::now();
        for index in steps {
            let step = &self.lifetimes[lifecycle as usize].steps[index];
            let hook = match &step.kind {
                StepKind::Open(group) => {
                    group.open();
                    continue;
                }
                StepKind::Jobs(group) => {
                    group.start();
                    self.note(lifecycle, index, |status| status.state = HookState::Started);
                    now = Instant::now();
                    continue;
                }
                StepKind::Hook(hook) => hook,
            };
            let begun = now;
            self.note(lifecycle, index, |status| {
                status.begin(HookState::Starting, begun)
            });
            let result = if cancel.is_cancelled() {
                Err(Ended::Cancelled)
            } else {
                self.start_hook(step.node, hook, begun, deadline, cancel, &mut token)
                    .await
            };
            now = Instant::now();
            let took = now - begun;
            // One that was late has started and is stopped.
            let state = if matches!(result, Ok(()) | Err(Ended::Late { .. })) {
                HookState::Started
            } else {
                HookState::Failed
            };
            self.note(lifecycle, index, |status| {
                status.state = state;
                status.start_took = Some(took);
            });
            match result {
                Ok(()) if hook.start.is_some() => self.log("Start hook executed", step.node, hook, took),
                Ok(()) => {}
                Err(ended) => {
                    return Err(FailedStep {
                        step: index,
                        ended,
                        took,
                    });
                }
            }
        }
        Ok(())
    }

    /// Stops what had started, and says why.
    async fn roll_back(&self, lifecycle: u32, failed: FailedStep) -> StartError {
        let FailedStep { step, ended, took } = failed;
        let step = &self.lifetimes[lifecycle as usize].steps[step];
        let hook = match &step.kind {
            StepKind::Hook(hook) => self.hook_id(step.node, hook),
            StepKind::Open(_) | StepKind::Jobs(_) => HookId {
                module: self.module(step.node).clone(),
                name: Arc::from(""),
                place: self.graph.nodes[step.node as usize].function.place,
            },
        };
        let failure = ended.failure(hook.clone());
        if let Some(failure) = &failure {
            tracing::error!(module = %hook.module, hook = %hook.name, error = %failure, "Start hook failed");
        }
        let rollback = self.stop_steps(lifecycle).await;
        match (failure, self.shutdown.cause()) {
            (Some(failure), _) => StartError::Hook { failure, rollback },
            (None, Some(cause)) => StartError::Cancelled {
                cause,
                during: (took > Duration::ZERO).then_some(hook),
                rollback,
            },
            (None, None) => StartError::Stopping,
        }
    }

    async fn start_hook(
        &self,
        node: u32,
        hook: &Hook,
        begun: Instant,
        phase: Instant,
        cancel: &CancellationToken,
        token: &mut DropGuard,
    ) -> Result<(), Ended> {
        let Some(start) = &hook.start else { return Ok(()) };
        let deadline = hook
            .start_timeout
            .map_or(phase, |timeout| begun + self.options.scaled(timeout));
        let time = (begun, deadline);
        self.run_hook(What::StartHook, node, hook, start, time, Some(cancel), token)
            .await
    }

    /// Runs one function of a hook, which begins now, to its end, deadline, or the request to stop. A hook that is not
    /// done at once keeps `token` for itself, and another one takes its place.
    #[allow(
        clippy::too_many_arguments,
        reason = "a function of two phases, which differ in all of them"
    )]
    pub(super) async fn run_hook(
        &self,
        what: What,
        node: u32,
        hook: &Hook,
        function: &crate::lifecycle::HookFn,
        (begun, deadline): (Instant, Instant),
        cancel: Option<&CancellationToken>,
        token: &mut DropGuard,
    ) -> Result<(), Ended> {
        let cx = HookCtx {
            token: token.token().clone(),
            deadline,
            health: self.health(node),
            module: self.module(node).clone(),
        };
        let module = self.module(node);
        let name = &hook.name;
        let span = tracing::error_span!(parent: None, "hook", %module, hook = &**name);
        let since = std::time::Instant::now();
        let mut first = Some(cx);
        let mut called = None;
        let mut future = poll_fn(|task| {
            let cx = first.take();
            let is_first = cx.is_some();
            let (now, on_clock) = if is_first {
                (since, begun)
            } else {
                (std::time::Instant::now(), Instant::now())
            };
            let left = deadline.saturating_duration_since(on_clock);
            let entered = self
                .watchdog
                .enter(Busy::hook(what, node, (name, hook.place), since, left, now));
            if let Some(cx) = cx {
                match catch(|| span.in_scope(|| function(cx))) {
                    Ok(future) => called = Some(Caught(future.instrument(span.clone()))),
                    Err(panic) => return Poll::Ready(Err(Ended::Failed(Box::new(panic)))),
                }
            }
            let Some(future) = &mut called else {
                return Poll::Pending;
            };
            let result = match Pin::new(future).poll(task) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Ok(()))) => Ok(()),
                Poll::Ready(Ok(Err(error))) => Err(Ended::Failed(error)),
                Poll::Ready(Err(panic)) => Err(Ended::Failed(Box::new(panic))),
            };
            // With a paused clock no time passes while a thread is blocked, and none before the first wait.
            let in_time = entered.elapsed() <= left.max(LEAST) && (is_first || Instant::now() <= deadline);
            Poll::Ready(result.and_then(|()| {
                in_time.then_some(()).ok_or_else(|| Ended::Late {
                    limit: deadline.saturating_duration_since(begun),
                    took: since.elapsed().max(begun.elapsed()),
                })
            }))
        });
        // Most hooks are done at once and need no timer.
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await {
            return result;
        }
        let _own = std::mem::replace(token, CancellationToken::new().drop_guard());
        let mut report = begun + self.options.report_every;
        loop {
            tokio::select! {
                biased;
                result = &mut future => return result,
                () = async {
                    match cancel {
                        Some(cancel) => cancel.cancelled().await,
                        None => std::future::pending().await,
                    }
                } => return Err(Ended::Cancelled),
                () = tokio::time::sleep_until(deadline) => return Err(Ended::Stuck(begun.elapsed())),
                () = tokio::time::sleep_until(report) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    tracing::warn!(%module, hook = %name, place = %hook.place, age = ?begun.elapsed(), ?left, "Still waiting for {}", what.name());
                    report += self.options.report_every;
                }
            }
        }
    }

    pub(super) fn log(&self, what: &'static str, node: u32, hook: &Hook, took: Duration) {
        let module = self.module(node);
        if took >= self.options.hive_log_threshold {
            tracing::info!(%module, hook = %hook.name, duration = ?took, "{what}");
        } else {
            tracing::debug!(%module, hook = %hook.name, duration = ?took, "{what}");
        }
    }

    /// Starts a scope. Does nothing if it runs.
    pub(crate) async fn start_scope(&self, lifecycle: u32) -> Result<(), StartError> {
        let mut progress = self.lifetimes[lifecycle as usize].started.lock().await;
        self.start_scope_locked(lifecycle, &mut progress).await
    }

    pub(super) async fn start_scope_locked(
        &self,
        lifecycle: u32,
        progress: &mut super::Progress,
    ) -> Result<(), StartError> {
        if progress.running {
            return Ok(());
        }
        match self.state() {
            State::Stopping => return Err(StartError::Stopping),
            State::Starting | State::Running => {}
            State::New | State::Stopped | State::Failed => {
                return Err(StartError::NotRunning {
                    needs: "the hive".into(),
                });
            }
        }
        let planned = &self.graph.lifecycles[lifecycle as usize];
        let around = (planned.parent != 0).then_some(planned.parent);
        for needed in planned.needs.iter().copied().chain(around) {
            if !self.is_scope_running(needed) {
                let needs = format!("scope `{}`", self.graph.lifecycles[needed as usize].name);
                return Err(StartError::NotRunning { needs });
            }
        }
        for (of, group) in &self.groups {
            if *of == lifecycle {
                group.wait();
            }
        }
        self.start_steps(lifecycle).await?;
        progress.running = true;
        self.lifetimes[lifecycle as usize]
            .running
            .store(true, Ordering::Release);
        crate::lock(&self.scopes).push(lifecycle);
        tracing::info!(scope = planned.name, "Scope started");
        Ok(())
    }

    pub(crate) async fn acquire_scope(&self, lifecycle: u32) -> Result<(), StartError> {
        let mut progress = self.lifetimes[lifecycle as usize].started.lock().await;
        self.start_scope_locked(lifecycle, &mut progress).await?;
        progress.users += 1;
        Ok(())
    }
}
