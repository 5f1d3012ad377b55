// SPDX-License-Identifier: Apache-2.0

//! Runs the constructors of a plan.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use crate::control::{Control, Controller};
use crate::engine::{Engine, Lifetime, StartError, Step, StepKind, StopError};
use crate::health::{Health, HealthHub, HealthSink, MemoryHealth, error_chain};
use crate::inject::{Arguments, Builtin, Inject, NeedKind, Needs, Source};
use crate::jobs::{Group, JobMetrics, JobRegistry, Jobs};
use crate::key::Key;
use crate::lifecycle::{Hook, Lifecycle};
use crate::module::ModulePath;
use crate::panics::catch;
use crate::plan::{Graph, Plan};
use crate::readiness::{Readiness, ReadinessState};
use crate::shutdown::{Shutdown, ShutdownState};
use crate::supply::{BoxError, Results};

/// What module-scoped values are made of.
pub(crate) struct Shared {
    pub(crate) hub: Arc<HealthHub>,
    pub(crate) registry: Arc<JobRegistry>,
    pub(crate) shutdown: Arc<ShutdownState>,
    pub(crate) readiness: ReadinessState,
    pub(crate) control: Control,
}

/// Where a constructor runs.
pub(crate) struct Site<'a> {
    module: &'a ModulePath,
    lifecycle: u32,
    shared: &'a Shared,
    hooks: Rc<RefCell<Vec<Hook>>>,
    group: OnceCell<Arc<Group>>,
}

macro_rules! builtin {
    ($($type:ty, $variant:ident, |$site:ident| $make:expr;)*) => {$(
        impl Inject for $type {
            fn needs(needs: &mut Needs) {
                needs.push(Key::of::<$type>(), NeedKind::Builtin(Builtin::$variant));
            }

            fn inject(arguments: &mut Arguments<'_>) -> Self {
                let $site = arguments.site();
                $make
            }
        }
    )*};
}

builtin! {
    ModulePath, ModulePath, |site| site.module.clone();
    Health, Health, |site| Health::new(site.shared.hub.clone(), site.module.clone());
    Jobs, Jobs, |site| {
        let group = site.group.get_or_init(|| {
            Arc::new(Group::new(site.module.clone(), site.lifecycle, site.shared.registry.clone()))
        });
        Jobs::new(group.clone(), Health::new(site.shared.hub.clone(), site.module.clone()))
    };
    Lifecycle, Lifecycle, |site| Lifecycle::new(site.hooks.clone());
    Shutdown, Shutdown, |site| Shutdown::new(site.shared.shutdown.clone(), site.module.clone());
    Readiness, Readiness, |site| Readiness::new(site.shared.readiness.clone(), site.module.clone());
    Controller, Controller, |site| Controller(site.shared.control.clone());
}

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

pub(crate) fn build(plan: Plan) -> Result<Built, BuildError> {
    let begun = std::time::Instant::now();
    let Plan {
        graph, values, hive, ..
    } = plan;
    let shutdown = Arc::new(ShutdownState::default());
    let shared = Shared {
        hub: Arc::new(HealthHub::default()),
        registry: Arc::new(JobRegistry::new(shutdown.clone())),
        shutdown,
        readiness: ReadinessState::default(),
        control: Control::default(),
    };
    let memory = Arc::new(MemoryHealth::new());
    let mut slots = Vec::new();
    slots.resize_with(graph.slots as usize, || None);
    let mut configs = Vec::with_capacity(values.len());
    for (config, value) in graph.configs.iter().zip(values) {
        let Some(value) = value else { continue };
        let crate::config::Shared {
            handle,
            value,
            reloader,
        } = value.share();
        slots[config.slot as usize] = Some(handle);
        configs.push(crate::engine::LiveConfig {
            slot: config.slot,
            value,
            reloaded: None,
            reloader,
        });
    }
    for (index, lifecycle) in graph.lifecycles.iter().enumerate() {
        if let Some(scope) = lifecycle.scope {
            slots[lifecycle.slot as usize] = Some((scope.make)(shared.control.clone(), index as u32));
        }
    }
    if graph.sink.is_none() {
        shared.hub.connect(memory.clone());
    }

    let mut lifetimes: Vec<Vec<Step>> = graph.lifecycles.iter().map(|_| Vec::new()).collect();
    let mut groups = Vec::new();
    let hooks = Rc::new(RefCell::new(Vec::new()));
    for &index in &graph.order {
        let node = &graph.nodes[index as usize];
        let module = &graph.modules[node.module as usize].path;
        let site = Site {
            module,
            lifecycle: node.lifecycle,
            shared: &shared,
            hooks: hooks.clone(),
            group: OnceCell::new(),
        };
        let mut results = Results(Vec::with_capacity(node.function.gives.0.len()));
        let mut arguments = Arguments::new(&node.sources, &slots, Some(&site));
        let error = match catch(|| (node.function.call)(&mut arguments, &mut results)) {
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
        for (slot, value) in (node.first_slot..).zip(results.0) {
            if Some(slot) == graph.sink
                && let Some(sink) = value.downcast_ref::<Arc<dyn HealthSink>>()
            {
                shared.hub.connect(sink.clone());
            }
            if Some(slot) == graph.metrics
                && let Some(metrics) = value.downcast_ref::<Arc<dyn JobMetrics>>()
            {
                let _ = shared.registry.metrics.0.set(metrics.clone());
            }
            slots[slot as usize] = Some(value);
        }

        let steps = &mut lifetimes[node.lifecycle as usize];
        let mut hooks = hooks.borrow_mut();
        let group = site.group.into_inner();
        if let Some(group) = group.as_ref().filter(|_| !hooks.is_empty()) {
            steps.push(Step {
                node: index,
                kind: StepKind::Open(group.clone()),
            });
        }
        steps.extend(hooks.drain(..).map(|hook| Step {
            node: index,
            kind: StepKind::Hook(hook),
        }));
        if let Some(group) = group {
            steps.push(Step {
                node: index,
                kind: StepKind::Jobs(group.clone()),
            });
            groups.push((node.lifecycle, group));
        }
    }
    // A sink that nothing asked for has not been constructed.
    shared.hub.connect(memory.clone());

    for (_, group) in &groups {
        group.wait();
    }
    let lifetimes = lifetimes.into_iter().map(Lifetime::new).collect();
    let engine = Arc::new(Engine::new(
        graph, slots, lifetimes, groups, shared, memory, configs, hive,
    ));
    let _ = engine.control.0.set(Arc::downgrade(&engine));
    tracing::debug!(duration = ?begun.elapsed(), "Hive built");
    Ok(Built { engine })
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
        Ok(Built { engine: self.engine })
    }

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

    /// Waits until a signal, a job or a module asks the hive to stop.
    pub async fn wait(&self) -> crate::shutdown::ExitCause {
        self.engine.shutdown.wait().await
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

/// Whether all needs of `T` can be looked up from outside, and where they are.
pub(crate) fn sources_of<T: Inject>(graph: &Graph) -> Option<Vec<Source>> {
    let mut needs = Needs::default();
    T::needs(&mut needs);
    needs.0.iter().map(|need| graph.look(need)).collect()
}
