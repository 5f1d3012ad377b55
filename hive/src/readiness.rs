// SPDX-License-Identifier: Apache-2.0

//! Readiness: everything has started, and nothing is still synchronizing.

use std::collections::BTreeMap;
use std::fmt;

use tokio::sync::watch;

use crate::module::ModulePath;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    started: bool,
    next: u64,
    pending: BTreeMap<u64, String>,
}

impl State {
    fn is_ready(&self) -> bool {
        self.started && self.pending.is_empty()
    }
}

/// Shared by the hive.
#[derive(Clone)]
pub(crate) struct ReadinessState(watch::Sender<State>);

impl Default for ReadinessState {
    fn default() -> Self {
        Self(watch::Sender::new(State::default()))
    }
}

impl ReadinessState {
    pub(crate) fn set_started(&self, started: bool) {
        self.0.send_modify(|state| state.started = started);
    }

    /// What is not ready.
    pub(crate) fn pending(&self) -> Vec<String> {
        let state = self.0.borrow();
        let start = (!state.started).then(|| "start hooks".to_owned());
        start.into_iter().chain(state.pending.values().cloned()).collect()
    }

    /// Waits until everything is ready.
    pub(crate) async fn ready(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.0.subscribe().wait_for(State::is_ready).await;
    }
}

/// Reports whether the hive is ready for its users: started, and all [guards](ReadyGuard) dropped.
///
/// ```
/// use hive::{Cell, Jobs, Job, JobCtx, Readiness, SpawnError};
/// use std::sync::Mutex;
///
/// fn synchronize(readiness: Readiness, jobs: Jobs) -> Result<(), SpawnError> {
///     let guard = Mutex::new(Some(readiness.guard("first list")));
///     jobs.spawn(Job::once("sync", move |_cx: JobCtx| {
///         drop(guard.lock().ok().and_then(|mut guard| guard.take()));
///         async {}
///     }))
/// }
/// # let _ = Cell::module("sync", "Synchronizes").run(synchronize);
/// ```
#[derive(Clone)]
pub struct Readiness {
    state: ReadinessState,
    module: ModulePath,
}

impl Readiness {
    pub(crate) fn new(state: ReadinessState, module: ModulePath) -> Self {
        Self { state, module }
    }

    /// Holds readiness back until the guard is dropped.
    ///
    /// ```
    /// # use hive::{Cell, Hive, Readiness, ReadyGuard, Settings};
    /// # use std::sync::{Arc, Mutex};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cell = Cell::module("sync", "Synchronizes").provide(|readiness: Readiness| Arc::new(readiness));
    /// # let running = Hive::new([cell]).root::<Arc<Readiness>>().plan(Settings::new())?.build()?.start().await?;
    /// # let readiness = running.get::<Arc<Readiness>>().unwrap();
    /// let guard = readiness.guard("first list");
    /// assert!(!readiness.is_ready());
    /// drop(guard);
    /// assert!(readiness.is_ready());
    /// # running.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn guard(&self, what: &str) -> ReadyGuard {
        let name = if self.module.is_root() {
            what.to_owned()
        } else {
            format!("{}: {what}", self.module)
        };
        let mut id = 0;
        self.state.0.send_modify(|state| {
            id = state.next;
            state.next += 1;
            state.pending.insert(id, name);
        });
        ReadyGuard {
            state: self.state.clone(),
            id,
        }
    }

    /// Whether everything is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.0.borrow().is_ready()
    }

    /// What is not ready: "module: what".
    #[must_use]
    pub fn pending(&self) -> Vec<String> {
        self.state.pending()
    }

    /// Waits until everything is ready.
    pub async fn ready(&self) {
        self.state.ready().await;
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("pending", &self.pending())
            .finish()
    }
}

/// Holds [`Readiness`] back until dropped.
#[must_use = "dropping the guard says that this part is ready"]
pub struct ReadyGuard {
    state: ReadinessState,
    id: u64,
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        self.state.0.send_modify(|state| {
            state.pending.remove(&self.id);
        });
    }
}

impl fmt::Debug for ReadyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadyGuard({})", self.id)
    }
}
