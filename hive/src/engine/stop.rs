// SPDX-License-Identifier: Apache-2.0

//! Stopping: everything that started, in reverse order, whatever fails.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::parallel::{dependents, run_units};
use super::{Engine, HookState, State, StepKind};
use crate::hook_error::{HookFailure, StopError};
use crate::jobs::stop_tasks;
use crate::lifecycle::Hook;
use crate::watchdog::What;

/// What a hook gets at least, however late it is.
pub(super) const LEAST: Duration = Duration::from_millis(100);

impl Engine {
    /// Stops the hive. Does nothing if it does not run.
    pub(crate) async fn stop(&self) -> Result<(), StopError> {
        let mut progress = self.lifetimes[0].started.lock().await;
        if !progress.running {
            return Ok(());
        }
        self.set_state(State::Stopping);
        self.readiness.set_started(false);
        let begun = Instant::now();
        let mut failures = Vec::new();
        loop {
            let last = crate::lock(&self.scopes).last().copied();
            let Some(scope) = last else { break };
            let mut progress = self.lifetimes[scope as usize].started.lock().await;
            failures.extend(self.stop_scope_locked(scope, &mut progress).await);
        }
        failures.extend(self.stop_steps(0).await);
        progress.running = false;
        self.lifetimes[0].running.store(false, Ordering::Release);
        self.set_state(if failures.is_empty() {
            State::Stopped
        } else {
            State::Failed
        });
        if let Some(metrics) = &self.metrics {
            metrics.stopped(begun.elapsed(), failures.is_empty());
        }
        tracing::info!(duration = ?begun.elapsed(), failures = failures.len(), "Stopped");
        if failures.is_empty() {
            Ok(())
        } else {
            Err(StopError::Failed(failures))
        }
    }

    /// Stops the steps of a lifecycle that have started, in reverse order; returns what failed or hung.
    ///
    /// Each gets half of the time that is left, so that one which hangs leaves time for those after it.
    pub(super) async fn stop_steps(&self, lifecycle: u32) -> Vec<HookFailure> {
        let _watching = self.watch_hooks(lifecycle);
        let deadline = Instant::now() + self.options.stop_timeout();
        let mut failures = Vec::new();
        for (_, group) in self.groups.iter().filter(|(of, _)| *of == lifecycle) {
            group.close();
        }
        let late = self.registry.take_late(lifecycle);
        self.stop_jobs(late, deadline, &mut failures).await;

        if !self.options.hive_parallel {
            let all = 0..self.lifetimes[lifecycle as usize].steps.len();
            failures.extend(self.stop_range(lifecycle, all, deadline).await);
            return failures;
        }
        let (steps, needs): (Vec<_>, Vec<_>) = self
            .units(lifecycle)
            .into_iter()
            .map(|unit| (unit.steps, unit.needs))
            .unzip();
        run_units(
            &dependents(&needs),
            |unit| Box::pin(self.stop_range(lifecycle, steps[unit].clone(), deadline)),
            |failed| {
                failures.extend(failed);
                ControlFlow::Continue(())
            },
        )
        .await;
        failures
    }

    /// Stops steps that have started, the last one first.
    async fn stop_range(&self, lifecycle: u32, steps: Range<usize>, deadline: Instant) -> Vec<HookFailure> {
        let lifetime = &self.lifetimes[lifecycle as usize];
        let mut failures = Vec::new();
        let mut token = CancellationToken::new().drop_guard();
        for index in steps.rev() {
            let started = crate::lock(&lifetime.status)[index].state == HookState::Started;
            if !started {
                continue;
            }
            let step = &lifetime.steps[index];
            match &step.kind {
                StepKind::Open(_) => {}
                StepKind::Jobs(group) => {
                    let begun = Instant::now();
                    self.note(lifecycle, index, |status| {
                        status.begin(HookState::Stopping, begun)
                    });
                    let before = failures.len();
                    self.stop_jobs(group.take_running(), deadline, &mut failures)
                        .await;
                    let state = if failures.len() == before {
                        HookState::Stopped
                    } else {
                        HookState::Failed
                    };
                    self.note(lifecycle, index, |status| status.state = state);
                }
                StepKind::Hook(hook) => {
                    let begun = Instant::now();
                    self.note(lifecycle, index, |status| {
                        status.begin(HookState::Stopping, begun)
                    });
                    let failure = self.stop_hook(step.node, hook, deadline, &mut token).await;
                    let took = begun.elapsed();
                    let state = if failure.is_none() {
                        HookState::Stopped
                    } else {
                        HookState::Failed
                    };
                    self.note(lifecycle, index, |status| {
                        status.state = state;
                        status.stop_took = Some(took);
                    });
                    match failure {
                        Some(failure) => {
                            let module = self.module(step.node);
                            tracing::error!(%module, hook = %hook.name, error = %failure, "Stop hook failed");
                            failures.push(failure);
                        }
                        None if hook.stop.is_some() => self.log("Stop hook executed", step.node, hook, took),
                        None => {}
                    }
                }
            }
        }
        failures
    }

    async fn stop_hook(
        &self,
        node: u32,
        hook: &Hook,
        phase: Instant,
        token: &mut DropGuard,
    ) -> Option<HookFailure> {
        let stop = hook.stop.as_ref()?;
        let own = hook.stop_timeout.map(|timeout| self.options.scaled(timeout));
        let time = (Instant::now(), slice(own, phase));
        self.run_hook(What::StopHook, node, hook, stop, time, None, token)
            .await
            .err()?
            .failure(self.hook_id(node, hook))
    }

    async fn stop_jobs(
        &self,
        tasks: Vec<crate::jobs::Task>,
        phase: Instant,
        failures: &mut Vec<HookFailure>,
    ) {
        if tasks.is_empty() {
            return;
        }
        let begun = Instant::now();
        for (module, job) in stop_tasks(tasks, slice(None, phase), self.options.report_every).await {
            let failure = HookFailure::StuckJob {
                module,
                job,
                after: begun.elapsed(),
            };
            tracing::error!(error = %failure, "Job did not stop");
            failures.push(failure);
        }
    }

    /// Stops a scope. Does nothing if it does not run.
    pub(crate) async fn stop_scope(&self, lifecycle: u32) -> Result<(), StopError> {
        let mut progress = self.lifetimes[lifecycle as usize].started.lock().await;
        progress.users = 0;
        self.end_scope(lifecycle, &mut progress).await
    }

    async fn end_scope(&self, lifecycle: u32, progress: &mut super::Progress) -> Result<(), StopError> {
        if !progress.running {
            return Ok(());
        }
        let lifecycles = &self.graph.lifecycles;
        let user = crate::lock(&self.scopes).iter().copied().find(|other| {
            let other = &lifecycles[*other as usize];
            other.parent == lifecycle || other.needs.contains(&lifecycle)
        });
        if let Some(user) = user {
            return Err(StopError::InUse {
                by: lifecycles[user as usize].name,
            });
        }
        let failures = self.stop_scope_locked(lifecycle, progress).await;
        if failures.is_empty() {
            Ok(())
        } else {
            Err(StopError::Failed(failures))
        }
    }

    async fn stop_scope_locked(&self, lifecycle: u32, progress: &mut super::Progress) -> Vec<HookFailure> {
        let lifetime = &self.lifetimes[lifecycle as usize];
        crate::lock(&self.scopes).retain(|other| *other != lifecycle);
        if !progress.running {
            return Vec::new();
        }
        progress.users = 0;
        progress.running = false;
        lifetime.running.store(false, Ordering::Release);
        let failures = self.stop_steps(lifecycle).await;
        tracing::info!(
            scope = self.graph.lifecycles[lifecycle as usize].name,
            "Scope stopped"
        );
        failures
    }

    pub(crate) async fn release_scope(&self, lifecycle: u32) -> Result<(), StopError> {
        let mut progress = self.lifetimes[lifecycle as usize].started.lock().await;
        match progress.users {
            0 => Ok(()),
            1 => {
                self.end_scope(lifecycle, &mut progress).await?;
                progress.users = 0;
                Ok(())
            }
            _ => {
                progress.users -= 1;
                Ok(())
            }
        }
    }
}

/// When a hook must be done: after its own time, or half of what is left for all.
fn slice(own: Option<Duration>, phase: Instant) -> Instant {
    let now = Instant::now();
    now + own.unwrap_or_else(|| (phase.saturating_duration_since(now) / 2).max(LEAST))
}
