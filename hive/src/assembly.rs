// SPDX-License-Identifier: Apache-2.0

//! A list of cells, and what tests change about it.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

use crate::cell::{Cell, Declared, Function};
use crate::config::{Config, ConfigType};
use crate::constructor::{Constructor, ParameterList};
use crate::inject::Inject;
use crate::key::Key;
use crate::supply::Supply;

/// Changes a decoded config.
#[derive(Clone)]
pub(crate) struct ConfigOverride {
    pub(crate) key: Key,
    pub(crate) name: Key,
    pub(crate) place: &'static Location<'static>,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    pub(crate) change: Arc<dyn Fn(&mut dyn Any) + Send + Sync>,
}

/// Decides the conditions of a module.
#[derive(Clone)]
pub(crate) struct ForcedCondition {
    pub(crate) module: String,
    pub(crate) holds: bool,
    pub(crate) place: &'static Location<'static>,
}

/// The cells of a program. [Plan](Self::plan) it, then build, start, stop.
///
/// ```
/// use hive::{Cell, Hive, Settings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cell = Cell::module("hello", "Greets").run(|| println!("hello"));
/// let plan = Hive::new([cell]).plan(Settings::new())?; // nothing has run
/// let built = plan.build()?; // constructors have run
/// let running = built.start().await?; // hooks and jobs run
/// running.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Hive {
    pub(crate) cells: Vec<Cell>,
    pub(crate) roots: Vec<Declared>,
    pub(crate) replacements: Vec<Declared>,
    pub(crate) config_overrides: Vec<ConfigOverride>,
    pub(crate) without: Vec<(String, &'static Location<'static>)>,
    pub(crate) forced: Vec<ForcedCondition>,
}

impl Hive {
    /// A hive of these cells.
    #[must_use]
    pub fn new(cells: impl IntoIterator<Item = Cell>) -> Self {
        Self {
            cells: cells.into_iter().collect(),
            roots: Vec::new(),
            replacements: Vec::new(),
            config_overrides: Vec::new(),
            without: Vec::new(),
            forced: Vec::new(),
        }
    }

    /// Adds a cell.
    #[must_use]
    pub fn with(mut self, cell: Cell) -> Self {
        self.cells.push(cell);
        self
    }

    /// Demands an object, which [`Built::get`](crate::Built::get) and [`Running::get`](crate::Running::get)
    /// then return.
    #[track_caller]
    #[must_use]
    pub fn root<T: Inject>(mut self) -> Self {
        self.roots.push(Function::root::<T>());
        self
    }

    /// Lets another constructor provide what a cell provides, wherever that is. For tests; replacing nothing
    /// is a finding.
    ///
    /// ```
    /// # use std::sync::Arc; struct Clock(u64);
    /// # fn system_clock() -> Arc<Clock> { Arc::new(Clock(1)) }
    /// # use hive::{Cell, Hive, Settings};
    /// # let cell = Cell::module("clock", "Tells the time").provide(system_clock);
    /// fn stopped_clock() -> Arc<Clock> { Arc::new(Clock(0)) }
    /// let built = Hive::new([cell]).replace(stopped_clock).root::<Arc<Clock>>().plan(Settings::new())?.build()?;
    /// assert_eq!(built.get::<Arc<Clock>>().unwrap().0, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn replace<A, F>(mut self, constructor: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        self.replacements.push(Function::provider(constructor));
        self
    }

    /// Changes a configuration after it was read. For tests; a configuration that no cell has is a finding.
    ///
    /// ```
    /// # #[derive(Clone, hive::Config)] struct Config { /// Size.
    /// # #[config(default = 10)] size: usize }
    /// # let cell = hive::Cell::module("cache", "Caches").config::<Config>();
    /// let hive = hive::Hive::new([cell]).override_config(|config: &mut Config| config.size = 1);
    /// # hive.plan(hive::Settings::new()).unwrap();
    /// ```
    #[track_caller]
    #[must_use]
    pub fn override_config<C: Config>(mut self, change: impl Fn(&mut C) + Send + Sync + 'static) -> Self {
        let config = ConfigType::of::<C>();
        self.config_overrides.push(ConfigOverride {
            key: config.key,
            name: config.name,
            place: Location::caller(),
            change: Arc::new(move |value| {
                if let Some(value) = value.downcast_mut() {
                    change(value);
                }
            }),
        });
        self
    }

    /// Leaves out a module, by its path. For tests; a path that does not exist is a finding.
    #[track_caller]
    #[must_use]
    pub fn without(mut self, module: impl Into<String>) -> Self {
        self.without.push((module.into(), Location::caller()));
        self
    }

    /// Decides the [conditions](Cell::when) of a module, whatever the configuration says. For checks of
    /// variants; a module that has none is a finding.
    ///
    /// ```
    /// # use hive::{Cell, Hive, Settings};
    /// # #[derive(Clone, hive::Config)] struct Config { /// Turns it on.
    /// # enable_probe: bool }
    /// # let cell = Cell::module("probe", "Probes").config::<Config>().when(|config: &Config| config.enable_probe);
    /// let hive = Hive::new([cell]).force_condition("probe", true);
    /// assert!(hive.plan(Settings::new())?.modules()[0].2, "it is enabled");
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn force_condition(mut self, module: impl Into<String>, holds: bool) -> Self {
        self.forced.push(ForcedCondition {
            module: module.into(),
            holds,
            place: Location::caller(),
        });
        self
    }
}

impl std::fmt::Debug for Hive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.cells).finish()
    }
}
