// SPDX-License-Identifier: Apache-2.0

//! Signals: the first asks to stop, the second forces it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::exit;
use crate::console;
use crate::engine::{Engine, State};
use crate::shutdown::ExitCause;
use crate::watchdog::{GRACE, Watchdog};

/// Runs a future on a thread of its own, which no hook or job can block, until the guard is dropped. It is made in the
/// runtime of that thread.
fn on_own_thread<F>(name: &str, make: impl FnOnce() -> io::Result<F>) -> io::Result<DropGuard>
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let entered = runtime.enter();
    let future = make()?;
    drop(entered);
    let end = CancellationToken::new();
    let ended = end.clone().cancelled_owned();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = ended => {}
                () = future => {}
            }
        });
    })?;
    Ok(end.drop_guard())
}

/// Ends the program when it does not stop, because a hook or job blocks its thread.
pub(super) fn watch(engine: Arc<Engine>) -> io::Result<DropGuard> {
    let ending = async move {
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
        console::error_line("error: start or stop did not finish in time");
        print_pending(&engine);
        std::process::exit(code.into());
    };
    on_own_thread("hive-deadline", || Ok(ending))
}

/// Says what a start or stop waits for.
fn print_pending(engine: &Engine) {
    let state = engine.state();
    let what = match state {
        State::Starting => "starting",
        State::Stopping => "stopping",
        _ => "running",
    };
    console::error_line(format_args!("while {what}; not done:"));
    for hook in engine.hooks() {
        if let Some(age) = hook.running_for {
            let age = skep_duration::format_duration(Duration::from_millis(age.as_millis() as u64));
            console::error_line(format_args!(
                "  hook `{}` of module `{}` ({}) for {age}",
                hook.name, hook.module, hook.place
            ));
        }
    }
    if state == State::Stopping {
        for job in engine.registry.list() {
            console::error_line(format_args!("  job `{}` of module `{}`", job.name, job.module));
        }
    }
}

/// Signals of the process.
pub(super) struct Signals {
    shared: Arc<Shared>,
    _thread: DropGuard,
}

#[derive(Default)]
struct Shared {
    target: Mutex<Weak<Engine>>,
    /// What is built.
    watchdog: Mutex<Option<Arc<Watchdog>>>,
    first: Mutex<Option<&'static str>>,
    seen: AtomicU32,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let thread = on_own_thread("hive-signals", move || {
            let kinds = [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ];
            let [interrupt, terminate, hangup] = kinds.map(signal);
            let signals = (interrupt?, terminate?, hangup?);
            Ok(async move { seen.run(signals).await })
        })?;
        Ok(Self {
            shared,
            _thread: thread,
        })
    }

    /// From now on the first signal says which constructor it waits for, and one that is stuck ends the program.
    pub(super) fn watch_build(&self, watchdog: &Arc<Watchdog>) {
        let pending = Arc::downgrade(watchdog);
        watchdog.on_overdue(move || {
            console::error_line("error: start did not finish in time; not done:");
            for line in pending.upgrade().iter().flat_map(|watchdog| watchdog.busy()) {
                console::error_line(format_args!("  {line}"));
            }
            std::process::exit(exit::START.into());
        });
        *crate::lock(&self.shared.watchdog) = Some(watchdog.clone());
    }

    /// Signals go to this engine from now on, also one that has come already.
    pub(super) fn attach(&self, engine: &Arc<Engine>) {
        let mut attached = crate::lock(&self.shared.target);
        *attached = Arc::downgrade(engine);
        if let Some(name) = crate::lock(&self.shared.first).take() {
            engine.shutdown.request(ExitCause::Signal(name));
        }
    }
}

impl Shared {
    async fn run(&self, (mut interrupt, mut terminate, mut hangup): (Signal, Signal, Signal)) {
        loop {
            let (name, number) = tokio::select! {
                _ = interrupt.recv() => ("SIGINT", 2),
                _ = terminate.recv() => ("SIGTERM", 15),
                _ = hangup.recv() => ("SIGHUP", 1),
            };
            self.stop(name, number);
        }
    }

    fn stop(&self, name: &'static str, number: i32) {
        // Locked to the end: an engine that comes meanwhile must find the signal.
        let target = crate::lock(&self.target);
        let engine = target.upgrade();
        let watchdog = crate::lock(&self.watchdog).clone();
        let busy = watchdog.map(|watchdog| watchdog.busy()).unwrap_or_default();
        if self.seen.fetch_add(1, Ordering::Relaxed) > 0 {
            console::error_line(format_args!("{name} again: forced to end"));
            match engine {
                Some(engine) => print_pending(&engine),
                None => busy
                    .iter()
                    .for_each(|line| console::error_line(format_args!("  {line}"))),
            }
            std::process::exit(i32::from(exit::FORCED) + number);
        }
        if !busy.is_empty() {
            console::error_line(format_args!(
                "{name}: the program stops when this is done, or at once at the next signal:"
            ));
            busy.iter()
                .for_each(|line| console::error_line(format_args!("  {line}")));
        }
        match engine {
            Some(engine) => engine.shutdown.request(ExitCause::Signal(name)),
            None => *crate::lock(&self.first) = Some(name),
        }
    }
}
