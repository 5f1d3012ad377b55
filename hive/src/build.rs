// SPDX-License-Identifier: Apache-2.0

//! Runs the constructors of a plan.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::controller::Controller;
use crate::engine::{Engine, Lifetime, LiveConfig, Step, StepKind};
use crate::error::BoxError;
use crate::health::{HealthHub, HealthSink, MemoryHealth, error_chain};
use crate::hook_error::{StartError, StopError};
use crate::inject::{Arguments, Inject, Shared, Site, Slots};
use crate::jobs::{Group, JobMetrics, JobRegistry};
use crate::lifecycle::Hook;
use crate::module::ModulePath;
use crate::options::HiveOptions;
use crate::panics::catch;
use crate::plan::{Graph, Plan};
use crate::readiness::ReadinessState;
use crate::shutdown::ShutdownState;
use crate::supply::Results;
use crate::watchdog::{Busy, Entered, Watchdog};

/// A constructor that failed or panicked.
#[derive(Debug)]
pub struct BuildError {
    /// The function.
    pub function: String,
    /// Where it was declared.
    pub place: &'static Location<'static>,
    /// Its module.
    pub module: ModulePath,
    /// Its error.
    pub error: BoxError,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = if self.module.is_root() {
            "(root)"
        } else {
            self.module.as_str()
        };
        write!(
            f,
            "`{}` ({}) in module {module} failed: {}",
            self.function,
            self.place,
            error_chain(&*self.error)
        )
    }
}

impl std::error::Error for BuildError {}

impl Plan {
    /// Runs the constructors that are needed, in the order of the plan.
    ///
    /// # Errors
    ///
    /// The first constructor that fails or panics.
    pub fn build(self) -> Result<Built, BuildError> {
        let watchdog = watchdog(&self);
        build_watched(self, watchdog)
    }
}

/// The watchdog of what will be built.
pub(crate) fn watchdog(plan: &Plan) -> Arc<Watchdog> {
    let options = plan.config::<HiveOptions>();
    let every = options.map_or(HiveOptions::default().report_every, |options| {
        options.report_every
    });
    Watchdog::new(plan.graph.clone(), every)
}

pub(crate) fn build_watched(plan: Plan, watchdog: Arc<Watchdog>) -> Result<Built, BuildError> {
    let begun = std::time::Instant::now();
    let options = plan.config::<HiveOptions>().cloned().unwrap_or_default();
    let limit = options.start_timeout();
    let watching = watchdog.watch();
    let Plan { graph, values, .. } = plan;
    let mut build = Build::new(&graph);
    let configs = build.place_configs(values);
    build.place_scopes();
    if graph.sink.is_none() {
        build.shared.hub.connect(build.memory.clone());
    }
    if let Err(error) = build.construct_all(&watchdog, begun, limit) {
        for (_, group) in &build.groups {
            group.discard();
        }
        return Err(error);
    }
    drop(watching);
    // A sink that nothing asked for has not been constructed.
    build.shared.hub.connect(build.memory.clone());
    for (_, group) in &build.groups {
        group.wait();
    }

    let Build {
        slots,
        shared,
        memory,
        steps,
        groups,
        ..
    } = build;
    let lifetimes = steps.into_iter().map(Lifetime::new).collect();
    let engine = Arc::new(Engine::new(
        graph.clone(),
        slots,
        lifetimes,
        groups,
        shared,
        memory,
        configs,
        watchdog,
        options,
    ));
    engine.control.set(&engine);
    let took = begun.elapsed();
    if let Some(metrics) = &engine.metrics {
        metrics.built(took);
    }
    tracing::debug!(duration = ?took, "Hive built");
    Ok(Built { engine })
}

/// A hive that is being built.
struct Build<'a> {
    graph: &'a Graph,
    shared: Shared,
    memory: Arc<MemoryHealth>,
    /// The values that are there so far.
    slots: Slots,
    /// What starts and stops, by lifecycle.
    steps: Vec<Vec<Step>>,
    groups: Vec<(u32, Arc<Group>)>,
    /// Hooks and results of the constructor that runs.
    hooks: Rc<RefCell<Vec<Hook>>>,
    results: Results,
}

impl<'a> Build<'a> {
    fn new(graph: &'a Graph) -> Self {
        let shutdown = Arc::new(ShutdownState::default());
        let readiness = ReadinessState::default();
        let shared = Shared {
            hub: Arc::new(HealthHub::default()),
            registry: Arc::new(JobRegistry::new(shutdown.clone(), readiness.clone())),
            shutdown,
            readiness,
            control: Control::default(),
        };
        let mut slots = Vec::new();
        slots.resize_with(graph.slots as usize, || None);
        Self {
            graph,
            shared,
            memory: Arc::new(MemoryHealth::new()),
            slots,
            steps: graph.lifecycles.iter().map(|_| Vec::new()).collect(),
            groups: Vec::new(),
            hooks: Rc::default(),
            results: Results::default(),
        }
    }

    fn place_configs(&mut self, values: Vec<Option<crate::config::Shared>>) -> Vec<LiveConfig> {
        let mut configs = Vec::with_capacity(values.len());
        for (config, value) in self.graph.configs.iter().zip(values) {
            let Some(value) = value else { continue };
            let crate::config::Shared { handle, value } = value;
            self.slots[config.slot as usize] = Some(handle);
            configs.push(LiveConfig {
                slot: config.slot,
                value,
            });
        }
        configs
    }

    fn place_scopes(&mut self) {
        for (index, lifecycle) in self.graph.lifecycles.iter().enumerate() {
            if let Some(scope) = lifecycle.scope {
                let handle = (scope.make)(self.shared.control.clone(), index as u32);
                self.slots[lifecycle.slot as usize] = Some(handle);
            }
        }
    }

    fn construct_all(
        &mut self,
        watchdog: &Watchdog,
        begun: std::time::Instant,
        limit: Duration,
    ) -> Result<(), BuildError> {
        let graph = self.graph;
        let (deadline, mut now) = (begun.checked_add(limit), begun);
        let mut entered: Option<Entered<'_>> = None;
        for &index in &graph.order {
            let busy = Busy::constructor(index, deadline, now);
            match &mut entered {
                Some(entered) => entered.replace(busy),
                None => entered = Some(watchdog.enter(busy)),
            }
            self.construct(index)?;
            now = std::time::Instant::now();
            if now - begun > limit {
                return Err(self.late(index, limit, now - begun));
            }
        }
        Ok(())
    }

    /// The error of the constructor with which the time was over.
    fn late(&self, index: u32, limit: Duration, took: Duration) -> BuildError {
        let text =
            |time: Duration| skep_duration::format_duration(Duration::from_millis(time.as_millis() as u64));
        let node = &self.graph.nodes[index as usize];
        BuildError {
            function: self.graph.name(index),
            place: node.function.place,
            module: self.graph.module_of(index).clone(),
            error: format!(
                "done too late: the constructors have taken {} and have {} in all (`--hive-start-timeout`); \
                 what takes time belongs into a start hook or job",
                text(took),
                text(limit)
            )
            .into(),
        }
    }

    /// Runs a constructor; keeps its results, hooks and jobs.
    fn construct(&mut self, index: u32) -> Result<(), BuildError> {
        let graph = self.graph;
        let node = &graph.nodes[index as usize];
        let module = &graph.modules[node.module as usize].path;
        let site = Site {
            module,
            lifecycle: node.lifecycle,
            shared: &self.shared,
            hooks: self.hooks.clone(),
            group: OnceCell::new(),
        };
        let mut arguments = Arguments::new(graph.sources_of(index), &self.slots, Some(&site));
        let span = tracing::error_span!(parent: None, "constructor", %module, function = node.function.name);
        let call = || span.in_scope(|| (node.function.call)(&mut arguments, &mut self.results));
        let error = match catch(call) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(Box::new(panic) as BoxError),
        };
        if let Some(error) = error {
            return Err(BuildError {
                function: graph.name(index),
                place: node.function.place,
                module: module.clone(),
                error,
            });
        }
        let group = site.group.into_inner();
        self.keep_results(node.first_slot);
        self.keep_steps(index, node.lifecycle, group);
        Ok(())
    }

    fn keep_results(&mut self, first_slot: u32) {
        for (slot, value) in (first_slot..).zip(self.results.0.drain(..)) {
            if Some(slot) == self.graph.sink
                && let Some(sink) = value.downcast_ref::<Arc<dyn HealthSink>>()
            {
                self.shared.hub.connect(sink.clone());
            }
            if Some(slot) == self.graph.metrics
                && let Some(metrics) = value.downcast_ref::<Arc<dyn JobMetrics>>()
            {
                let _ = self.shared.registry.metrics.0.set(metrics.clone());
            }
            self.slots[slot as usize] = Some(value);
        }
    }

    fn keep_steps(&mut self, node: u32, lifecycle: u32, group: Option<Arc<Group>>) {
        let steps = &mut self.steps[lifecycle as usize];
        let mut hooks = self.hooks.borrow_mut();
        if let Some(group) = group.as_ref().filter(|_| !hooks.is_empty()) {
            steps.push(Step {
                node,
                kind: StepKind::Open(group.clone()),
            });
        }
        steps.extend(hooks.drain(..).map(|hook| Step {
            node,
            kind: StepKind::Hook(hook),
        }));
        if let Some(group) = group {
            steps.push(Step {
                node,
                kind: StepKind::Jobs(group.clone()),
            });
            self.groups.push((lifecycle, group));
        }
    }
}

/// A hive whose objects are constructed and whose hooks wait.
///
/// ```
/// # use hive::{Cell, Hive, Settings};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let built = Hive::new([Cell::module("hello", "Greets").run(|| ())]).plan(Settings::new())?.build()?;
/// let running = built.start().await?;
/// let built = running.stop().await?; // may start again
/// # let _ = built;
/// # Ok(()) }
/// ```
pub struct Built {
    pub(crate) engine: Arc<Engine>,
}

impl Built {
    /// Runs the start hooks and jobs, in the order of construction.
    ///
    /// # Errors
    ///
    /// The hook that failed, and those that failed when the others were stopped again.
    pub async fn start(self) -> Result<Running, StartError> {
        self.engine.start().await?;
        Ok(Running { engine: self.engine })
    }
}

impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Built")
    }
}

/// A hive that has started. Dropping it aborts its jobs; [stop](Self::stop) it to run the stop hooks.
#[must_use = "dropping a running hive aborts its jobs without running stop hooks"]
pub struct Running {
    pub(crate) engine: Arc<Engine>,
}

impl Running {
    /// Stops jobs and runs the stop hooks, in reverse order.
    ///
    /// # Errors
    ///
    /// The hooks and jobs that failed or hung. All others have run.
    pub async fn stop(self) -> Result<Built, StopError> {
        self.engine.stop().await?;
        Ok(Built {
            engine: self.engine.clone(),
        })
    }

    /// Waits until a signal, a job or a module asks the hive to stop.
    ///
    /// ```
    /// # use hive::{Cell, Hive, Job, JobCtx, Jobs, Settings, Shutdown};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// fn work(jobs: Jobs, shutdown: Shutdown) -> Result<(), hive::SpawnError> {
    ///     jobs.spawn(Job::once("work", move |_: JobCtx| {
    ///         shutdown.request("all work is done");
    ///         async {}
    ///     }))
    /// }
    /// let cell = Cell::module("app", "App").run(work);
    /// let running = Hive::new([cell]).plan(Settings::new())?.build()?.start().await?;
    /// assert_eq!(running.wait().await.to_string(), "module `app` asked to stop: all work is done");
    /// # running.stop().await?;
    /// # Ok(()) }
    /// ```
    pub async fn wait(&self) -> crate::shutdown::ExitCause {
        self.engine.shutdown.wait().await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.engine.registry.failures.is_armed() {
            self.engine.check_dropped();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

/// What can be had of a hive whether it runs or not.
macro_rules! views {
    ($type:ty) => {
        impl $type {
            /// An object, if it is [demanded](crate::Hive::root) or constructed anyway; as seen from the root.
            #[must_use]
            pub fn get<T: Inject>(&self) -> Option<T> {
                self.engine.get()
            }

            /// A handle to start, stop and show the hive.
            #[must_use]
            pub fn controller(&self) -> Controller {
                Controller(self.engine.control.clone())
            }

            /// The health of all modules, unless a cell provides its own [`HealthSink`].
            #[must_use]
            pub fn health(&self) -> Arc<MemoryHealth> {
                self.engine.memory.clone()
            }
        }
    };
}

views!(Built);
views!(Running);
