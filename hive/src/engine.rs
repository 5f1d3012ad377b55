// SPDX-License-Identifier: Apache-2.0

//! Starts and stops what was built.

mod info;
mod parallel;
mod scope;
mod start;
mod stop;
mod verdict;

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::Decoded;
use crate::control::Control;
use crate::health::{Health, HealthHub, MemoryHealth};
use crate::hook_error::HookId;
use crate::inject::{Arguments, Inject, Shared, Slots};
use crate::jobs::{Group, JobRegistry};
use crate::lifecycle::Hook;
use crate::metrics::HiveMetrics;
use crate::module::ModulePath;
use crate::options::HiveOptions;
use crate::plan::Graph;
use crate::readiness::ReadinessState;
use crate::shutdown::ShutdownState;
use crate::watchdog::Watchdog;

pub use info::{HookInfo, HookState};

/// Where a hive is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Built, never started.
    New,
    /// Start hooks run.
    Starting,
    /// All has started.
    Running,
    /// Stop hooks run.
    Stopping,
    /// All has stopped.
    Stopped,
    /// The last start or stop failed; nothing runs.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::New => "new",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

const STATES: [State; 6] = [
    State::New,
    State::Starting,
    State::Running,
    State::Stopping,
    State::Stopped,
    State::Failed,
];

/// One thing to start and stop.
pub(crate) struct Step {
    pub(crate) node: u32,
    pub(crate) kind: StepKind,
}

pub(crate) enum StepKind {
    /// From here on new jobs of the constructor start at once.
    Open(Arc<Group>),
    Hook(Hook),
    /// The jobs that the constructor has added.
    Jobs(Arc<Group>),
}

/// How a step is.
#[derive(Clone, Copy, Default)]
pub(crate) struct StepStatus {
    pub(crate) state: HookState,
    pub(crate) start_took: Option<Duration>,
    pub(crate) stop_took: Option<Duration>,
    /// When its start or stop began.
    pub(crate) since: Option<tokio::time::Instant>,
}

impl StepStatus {
    fn begin(&mut self, state: HookState, now: tokio::time::Instant) {
        self.state = state;
        self.since = Some(now);
    }

    /// How long its start or stop has been at it.
    fn running_for(&self) -> Option<Duration> {
        let busy = matches!(self.state, HookState::Starting | HookState::Stopping);
        self.since.filter(|_| busy).map(|since| since.elapsed())
    }
}

/// A lifecycle: that of the hive, or of a scope.
pub(crate) struct Lifetime {
    pub(crate) steps: Vec<Step>,
    /// How many steps have started.
    pub(crate) started: tokio::sync::Mutex<Progress>,
    pub(crate) status: Mutex<Vec<StepStatus>>,
    pub(crate) running: std::sync::atomic::AtomicBool,
}

/// What has started, guarded against concurrent starts and stops.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) running: bool,
    /// Users of a scope.
    pub(crate) users: u64,
}

impl Lifetime {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let status = vec![StepStatus::default(); steps.len()];
        Self {
            steps,
            started: Default::default(),
            status: Mutex::new(status),
            running: Default::default(),
        }
    }
}

/// A configuration in use.
pub(crate) struct LiveConfig {
    pub(crate) slot: u32,
    pub(crate) value: Arc<dyn Decoded>,
}

/// The rendered values of a configuration.
pub(crate) struct ConfigState {
    pub(crate) slot: u32,
    pub(crate) values: Vec<String>,
}

/// A built hive.
pub(crate) struct Engine {
    pub(crate) graph: Arc<Graph>,
    pub(crate) slots: Slots,
    pub(crate) lifetimes: Vec<Lifetime>,
    pub(crate) groups: Vec<(u32, Arc<Group>)>,
    pub(crate) hub: Arc<HealthHub>,
    pub(crate) registry: Arc<JobRegistry>,
    pub(crate) shutdown: Arc<ShutdownState>,
    pub(crate) readiness: ReadinessState,
    pub(crate) control: Control,
    pub(crate) memory: Arc<MemoryHealth>,
    configs: Vec<LiveConfig>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) options: HiveOptions,
    pub(crate) metrics: Option<Arc<dyn HiveMetrics>>,
    /// Scopes that run, in the order of their start.
    pub(crate) scopes: Mutex<Vec<u32>>,
    state: AtomicU8,
}

impl Engine {
    #[allow(clippy::too_many_arguments, reason = "called once, with the parts of a build")]
    pub(crate) fn new(
        graph: Arc<Graph>,
        slots: Slots,
        lifetimes: Vec<Lifetime>,
        groups: Vec<(u32, Arc<Group>)>,
        shared: Shared,
        memory: Arc<MemoryHealth>,
        configs: Vec<LiveConfig>,
        watchdog: Arc<Watchdog>,
        options: HiveOptions,
    ) -> Self {
        let Shared {
            hub,
            registry,
            shutdown,
            readiness,
            control,
        } = shared;
        let mut engine = Self {
            graph,
            slots,
            lifetimes,
            groups,
            hub,
            registry,
            shutdown,
            readiness,
            control,
            memory,
            configs,
            watchdog,
            options,
            metrics: None,
            scopes: Mutex::default(),
            state: AtomicU8::new(State::New as u8),
        };
        engine.metrics = engine.get();
        engine
    }

    pub(crate) fn get<T: Inject>(&self) -> Option<T> {
        let sources = self.graph.outside_sources_of::<T>()?;
        let there = |slot: &u32| self.slots.get(*slot as usize).is_some_and(Option::is_some);
        let complete = sources.iter().all(|source| match source {
            crate::inject::Source::Slot(slot) => there(slot),
            crate::inject::Source::Group(slots) => slots.iter().all(|(slot, _)| there(slot)),
            _ => true,
        });
        complete.then(|| T::inject(&mut Arguments::new(&sources, &self.slots, None)))
    }

    /// The settings in use.
    pub(crate) fn config_states(&self) -> Vec<ConfigState> {
        let live = self.configs.iter();
        live.map(|live| ConfigState {
            slot: live.slot,
            values: live.value.render(),
        })
        .collect()
    }

    pub(crate) fn state(&self) -> State {
        STATES[usize::from(self.state.load(Ordering::Acquire)) % STATES.len()]
    }

    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    fn module(&self, node: u32) -> &ModulePath {
        self.graph.module_of(node)
    }

    fn hook_id(&self, node: u32, hook: &Hook) -> HookId {
        HookId {
            module: self.module(node).clone(),
            name: hook.name.clone(),
            place: hook.place,
        }
    }

    fn health(&self, node: u32) -> Health {
        Health::new(self.hub.clone(), self.module(node).clone())
    }

    fn note(&self, lifecycle: u32, step: usize, change: impl FnOnce(&mut StepStatus)) {
        if let Some(status) = crate::lock(&self.lifetimes[lifecycle as usize].status).get_mut(step) {
            change(status);
        }
    }

    pub(crate) fn is_scope_running(&self, lifecycle: u32) -> bool {
        self.lifetimes[lifecycle as usize].running.load(Ordering::Acquire)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for (_, group) in &self.groups {
            group.discard();
        }
        for lifecycle in 0..self.lifetimes.len() as u32 {
            drop(self.registry.take_late(lifecycle));
        }
    }
}

/// The engine is shared between threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Engine>();
};
