// SPDX-License-Identifier: Apache-2.0

//! Signals: the first asks to stop, the second forces it, SIGHUP reads the settings again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::exit;
use super::reload::Reloading;
use crate::engine::{Engine, State};
use crate::shutdown::ExitCause;

/// How long after the deadline of a phase the program is ended, when a hook blocks its thread.
const GRACE: Duration = Duration::from_secs(5);

/// Ends the program when a hook blocks its thread, so that no deadline can help.
pub(super) fn watch(engine: Arc<Engine>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let stop = engine.options.stop_timeout() + GRACE;
        let start = engine.options.start_timeout() + stop;
        let late_start = async {
            tokio::time::sleep(start).await;
            if engine.state() != State::Starting {
                std::future::pending::<()>().await;
            }
        };
        let code = tokio::select! {
            _ = engine.shutdown.wait() => {
                tokio::time::sleep(stop).await;
                exit::STOP
            }
            () = late_start => exit::START,
        };
        eprintln!("error: start or stop did not finish in time");
        print_pending(&engine);
        std::process::exit(code.into());
    })
}

/// Says what a start or stop waits for.
fn print_pending(engine: &Engine) {
    let state = engine.state();
    let what = match state {
        State::Starting => "starting",
        State::Stopping => "stopping",
        _ => "running",
    };
    eprintln!("while {what}; not done:");
    for hook in engine.hooks() {
        if let Some(age) = hook.running_for {
            let age = crate::format_duration(Duration::from_millis(age.as_millis() as u64));
            eprintln!(
                "  hook `{}` of module `{}` ({}) for {age}",
                hook.name, hook.module, hook.place
            );
        }
    }
    if state == State::Stopping {
        for job in engine.registry.list() {
            eprintln!("  job `{}` of module `{}`", job.name, job.module);
        }
    }
}

/// Signals of the process.
pub(super) struct Signals {
    target: Arc<Mutex<Option<Reloading>>>,
    first: Arc<Mutex<Option<&'static str>>>,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let this = Self {
            target: Arc::default(),
            first: Arc::default(),
        };
        let (target, first) = (this.target.clone(), this.first.clone());
        let seen = AtomicU32::new(0);
        tokio::spawn(async move {
            loop {
                let stop = tokio::select! {
                    _ = interrupt.recv() => Some(("SIGINT", 2)),
                    _ = terminate.recv() => Some(("SIGTERM", 15)),
                    _ = hangup.recv() => None,
                };
                let target = crate::lock(&target).clone();
                let Some((name, number)) = stop else {
                    if let Some(target) = target {
                        // Not awaited here: signals must get through.
                        tokio::spawn(async move { target.reload().await });
                    }
                    continue;
                };
                let engine = target.and_then(|target| target.engine.upgrade());
                if seen.fetch_add(1, Ordering::Relaxed) > 0 {
                    eprintln!("{name} again: forced to end");
                    if let Some(engine) = engine {
                        print_pending(&engine);
                    }
                    std::process::exit(i32::from(exit::FORCED) + number);
                }
                match engine {
                    Some(engine) => engine.shutdown.request(ExitCause::Signal(name)),
                    None => *crate::lock(&first) = Some(name),
                }
            }
        });
        Ok(this)
    }

    /// Signals go to this engine from now on, also one that has come already.
    pub(super) fn attach(&self, engine: &Arc<Engine>, target: Reloading) {
        *crate::lock(&self.target) = Some(target);
        if let Some(name) = crate::lock(&self.first).take() {
            engine.shutdown.request(ExitCause::Signal(name));
        }
    }
}
