// SPDX-License-Identifier: Apache-2.0

//! Cells: what a part of a program offers, needs and runs.

use std::any::{Any, type_name};
use std::panic::Location;
use std::sync::Arc;

use crate::config::{Config, ConfigType, Shared};
use crate::constructor::{Constructor, ParameterList, RunOutput};
use crate::error::BoxError;
use crate::inject::{Arguments, Inject, NeedKind, Needs, Value};
use crate::key::Key;
use crate::scope::ScopeType;
use crate::supply::{Gives, Results, Supply};

/// How a function is called: it takes its arguments and hands over its results.
pub(crate) type Call = dyn Fn(&mut Arguments<'_>, &mut Results) -> Result<(), BoxError> + Send + Sync;

/// A function of a cell: what it needs, what it gives, where it stands. The lists are made by whoever wants them.
pub(crate) struct Function<C: ?Sized = Call> {
    pub(crate) name: &'static str,
    pub(crate) place: &'static Location<'static>,
    list_needs: fn(&mut Needs),
    list_gives: fn(&mut Gives),
    pub(crate) call: C,
}

impl Function {
    #[track_caller]
    pub(crate) fn provider<A, F>(function: F) -> Declared
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        Declared::new(Arc::new(Function {
            name: type_name::<F>(),
            place: Location::caller(),
            list_needs: A::needs,
            list_gives: F::Output::gives,
            call: move |arguments: &mut Arguments<'_>, results: &mut Results| {
                function.construct(A::inject(arguments)).supply(results)
            },
        }))
    }

    #[track_caller]
    pub(crate) fn run<A, F>(function: F) -> Declared
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: RunOutput,
    {
        Declared::new(Arc::new(Function {
            name: type_name::<F>(),
            place: Location::caller(),
            list_needs: A::needs,
            list_gives: |_| (),
            call: move |arguments: &mut Arguments<'_>, _: &mut Results| {
                function.construct(A::inject(arguments)).into_result()
            },
        }))
    }

    #[track_caller]
    pub(crate) fn root<T: Inject>() -> Declared {
        Declared::new(Arc::new(Function {
            name: type_name::<T>(),
            place: Location::caller(),
            list_needs: T::needs,
            list_gives: |_| (),
            call: |_: &mut Arguments<'_>, _: &mut Results| Ok(()),
        }))
    }
}

/// A function with what its cell says about it.
#[derive(Clone)]
pub(crate) struct Declared {
    pub(crate) function: Arc<Function>,
    /// What must be constructed and started before, besides what it takes.
    after: Vec<Key>,
}

impl Declared {
    fn new(function: Arc<Function>) -> Self {
        Self {
            function,
            after: Vec::new(),
        }
    }

    /// Adds what it needs to a list.
    pub(crate) fn needs(&self, needs: &mut Needs) {
        (self.function.list_needs)(needs);
        for key in &self.after {
            needs.push(*key, NeedKind::After);
        }
    }

    /// Adds what it gives to a list.
    pub(crate) fn gives(&self, gives: &mut Gives) {
        (self.function.list_gives)(gives);
    }
}

/// Who sees what a constructor gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    /// The whole hive.
    Public,
    /// The module and its sub-modules.
    Private,
    /// The whole hive; one instance for every module that asks.
    PerModule,
}

#[derive(Clone)]
pub(crate) struct Provide {
    pub(crate) function: Declared,
    pub(crate) visibility: Visibility,
    pub(crate) library: bool,
}

#[derive(Clone)]
pub(crate) struct DeclaredConfig {
    pub(crate) config: fn() -> ConfigType,
    pub(crate) place: &'static Location<'static>,
}

/// Fixes or renames the configuration of cells inside.
#[derive(Clone)]
pub(crate) enum ConfigChange {
    Value {
        key: Key,
        name: Key,
        make: Arc<dyn Fn() -> Shared + Send + Sync>,
    },
    Prefix(String),
}

#[derive(Clone)]
pub(crate) struct Condition {
    pub(crate) key: Key,
    pub(crate) name: Key,
    pub(crate) place: &'static Location<'static>,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    pub(crate) holds: Arc<dyn Fn(&dyn Any) -> Option<bool> + Send + Sync>,
}

#[derive(Clone)]
pub(crate) struct Check {
    pub(crate) place: &'static Location<'static>,
    pub(crate) keys: Vec<(Key, Key)>,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    pub(crate) check: Arc<dyn Fn(&[&dyn Any], &mut crate::config::Faults) + Send + Sync>,
}

#[derive(Clone)]
pub(crate) enum Item {
    Config(DeclaredConfig),
    Provide(Provide),
    Run(Declared),
    Decorate(Declared),
    Check(Box<Check>),
    Cell(Cell),
}

/// A call on a cell that changes nothing where it stands.
#[derive(Clone)]
pub(crate) struct Misplaced {
    pub(crate) call: String,
    /// What it must follow.
    pub(crate) follows: &'static str,
    pub(crate) place: &'static Location<'static>,
}

#[derive(Clone)]
pub(crate) enum CellKind {
    Module { id: &'static str, title: &'static str },
    Group,
    Scope { scope: ScopeType, name: &'static str },
}

#[derive(Clone)]
pub(crate) struct CellNode {
    pub(crate) kind: CellKind,
    pub(crate) items: Vec<Item>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) changes: Vec<(ConfigChange, &'static Location<'static>)>,
    /// Calls that follow nothing they could be about.
    pub(crate) misplaced: Vec<Misplaced>,
    pub(crate) library: bool,
    pub(crate) place: &'static Location<'static>,
}

/// A part of a program: constructors, configuration and what must run.
///
/// Cells are plain values. A binary lists them; a test lists some of them and fakes for the rest. The same
/// cell can be used in several hives at once.
///
/// ```
/// use hive::{Cell, Cfg, Hive, Settings};
/// use std::sync::Arc;
///
/// #[derive(Clone, hive::Config)]
/// struct Config {
///     /// How many entries are kept.
///     #[config(default = 100)]
///     cache_size: usize,
/// }
///
/// struct Cache { size: usize }
///
/// impl Cache {
///     fn new(config: Cfg<Config>) -> Arc<Cache> { Arc::new(Cache { size: config.cache_size }) }
/// }
///
/// fn cell() -> Cell {
///     Cell::module("cache", "Keeps entries in memory")
///         .config::<Config>()
///         .provide(Cache::new)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = Settings::new().args(["--cache-size=7"]);
/// let built = Hive::new([cell()]).root::<Arc<Cache>>().plan(settings)?.build()?;
/// assert_eq!(built.get::<Arc<Cache>>().unwrap().size, 7);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cell {
    pub(crate) node: Arc<CellNode>,
}

impl Cell {
    #[track_caller]
    fn new(kind: CellKind) -> Self {
        let node = CellNode {
            kind,
            items: Vec::new(),
            conditions: Vec::new(),
            changes: Vec::new(),
            misplaced: Vec::new(),
            library: false,
            place: Location::caller(),
        };
        Self { node: Arc::new(node) }
    }

    /// A module: a named scope. `id` matches `[a-z][a-z0-9_-]{1,30}`, `title` matches
    /// `[a-zA-Z0-9_\- ]{1,80}`; the plan reports others.
    #[track_caller]
    #[must_use]
    pub fn module(id: &'static str, title: &'static str) -> Self {
        Self::new(CellKind::Module { id, title })
    }

    /// Bundles cells without a scope of its own.
    #[track_caller]
    #[must_use]
    pub fn group(cells: impl IntoIterator<Item = Cell>) -> Self {
        let mut group = Self::new(CellKind::Group);
        group.node_mut().items.extend(cells.into_iter().map(Item::Cell));
        group
    }

    /// Cells with a lifecycle of their own, started and stopped through the [`Scope<K>`](crate::Scope) that
    /// is provided to the whole hive. `K` is any type that names the scope.
    ///
    /// Objects inside are constructed with the others, but their hooks and jobs wait for the scope. Objects
    /// outside cannot depend on objects inside, except through groups.
    ///
    /// ```
    /// use hive::{Cell, Jobs, Job, JobCtx, Scope};
    ///
    /// struct Leader;
    ///
    /// fn elect(scope: Scope<Leader>, jobs: Jobs) -> Result<(), hive::SpawnError> {
    ///     jobs.spawn(Job::once("elect", move |_cx: JobCtx| {
    ///         let scope = scope.clone();
    ///         async move { scope.start().await }
    ///     }))
    /// }
    ///
    /// let cells = [
    ///     Cell::scope::<Leader>("leader", [Cell::module("garbage", "Removes leftovers")]),
    ///     Cell::module("election", "Elects a leader").run(elect),
    /// ];
    /// # let _ = cells;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn scope<K: 'static>(name: &'static str, cells: impl IntoIterator<Item = Cell>) -> Self {
        let mut scope = Self::new(CellKind::Scope {
            scope: ScopeType::of::<K>(),
            name,
        });
        scope.node_mut().items.extend(cells.into_iter().map(Item::Cell));
        scope
    }

    fn node_mut(&mut self) -> &mut CellNode {
        Arc::make_mut(&mut self.node)
    }

    fn item(mut self, item: Item) -> Self {
        self.node_mut().items.push(item);
        self
    }

    /// Declares the settings of `C` and provides [`Cfg<C>`](crate::Cfg) to the whole hive.
    #[track_caller]
    #[must_use]
    pub fn config<C: Config>(self) -> Self {
        let place = Location::caller();
        self.item(Item::Config(DeclaredConfig {
            config: ConfigType::of::<C>,
            place,
        }))
    }

    /// Provides the results of a constructor to the whole hive. The constructor runs at most once, and only if
    /// something that runs needs it.
    #[track_caller]
    #[must_use]
    pub fn provide<A, F>(self, constructor: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        self.provide_as(Function::provider(constructor), Visibility::Public)
    }

    /// Provides the results of a constructor to this module and the modules inside.
    ///
    /// ```
    /// # use std::sync::Arc; struct Table; struct Writer;
    /// fn new_table() -> Arc<Table> { Arc::new(Table) }
    /// fn new_writer(_table: Arc<Table>) -> Arc<Writer> { Arc::new(Writer) }
    /// let cell = hive::Cell::module("writer", "Owns the table").provide_private(new_table).provide(new_writer);
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn provide_private<A, F>(self, constructor: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        self.provide_as(Function::provider(constructor), Visibility::Private)
    }

    /// Provides a value of which every module that requires it gets its own instance: a logger with the module's
    /// name, a database handle that names its writer. Parameters are those of the module that asks.
    ///
    /// ```
    /// use hive::{Cell, ModulePath};
    /// #[derive(Clone, hive::Value)]
    /// struct Log(ModulePath);
    /// fn log_of(module: ModulePath) -> Log { Log(module) }
    /// let cell = Cell::module("log", "Logs").provide_per_module(log_of);
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn provide_per_module<A, F>(self, constructor: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        self.provide_as(Function::provider(constructor), Visibility::PerModule)
    }

    fn provide_as(self, function: Declared, visibility: Visibility) -> Self {
        self.item(Item::Provide(Provide {
            function,
            visibility,
            library: false,
        }))
    }

    #[track_caller]
    fn misplaced(mut self, call: String, follows: &'static str) -> Self {
        let place = Location::caller();
        self.node_mut().misplaced.push(Misplaced { call, follows, place });
        self
    }

    /// Runs a function when the hive is built. This demands its parameters: without such a demand nothing is
    /// constructed. Prefer this for what a program is for, not in cells that only offer something.
    #[track_caller]
    #[must_use]
    pub fn run<A, F>(self, function: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: RunOutput,
    {
        self.item(Item::Run(Function::run(function)))
    }

    /// Replaces a value for this module and the modules inside. The function takes the value from further
    /// out as a parameter and returns the one to be seen here. At the root it decorates for the whole hive.
    ///
    /// ```
    /// # use std::sync::Arc; struct Client;
    /// fn throttled(_client: Arc<Client>) -> Arc<Client> { Arc::new(Client) }
    /// let cell = hive::Cell::module("sync", "Synchronizes").decorate(throttled);
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn decorate<A, F>(self, decorator: F) -> Self
    where
        F: Constructor<A>,
        A: ParameterList,
        F::Output: Supply,
    {
        self.item(Item::Decorate(Function::provider(decorator)))
    }

    /// Constructs and starts what the function added last gives or runs after the provider of `T`, without
    /// taking a value from it. Directly after the call that adds the function; elsewhere the plan refuses it.
    ///
    /// ```
    /// # use std::sync::Arc; struct Mounts;
    /// fn open_maps() {}
    /// let cell = hive::Cell::module("maps", "Maps").run(open_maps).after::<Arc<Mounts>>();
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn after<T: Value>(mut self) -> Self {
        let key = Key::of::<T>();
        let function = match self.node_mut().items.last_mut() {
            Some(Item::Provide(provide)) => &mut provide.function,
            Some(Item::Run(function) | Item::Decorate(function)) => function,
            _ => {
                let follows = "`.provide(...)`, `.run(...)` or `.decorate(...)`";
                return self.misplaced(format!("after::<{key}>()"), follows);
            }
        };
        function.after.push(key);
        self
    }

    /// Adds another cell, inside of this one.
    #[must_use]
    pub fn with(self, cell: Cell) -> Self {
        self.item(Item::Cell(cell))
    }

    /// Includes the cell only if its configuration says so. Decided in the plan; what a disabled cell would
    /// provide is absent. Its settings stay known. Several conditions must all hold.
    ///
    /// ```
    /// # #[derive(Clone, hive::Config)] struct Config {
    /// #     /// Turns it on.
    /// #     enable_probe: bool }
    /// let cell = hive::Cell::module("probe", "Probes")
    ///     .config::<Config>()
    ///     .when(|config: &Config| config.enable_probe);
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn when<C: Config>(mut self, holds: impl Fn(&C) -> bool + Send + Sync + 'static) -> Self {
        let config = ConfigType::of::<C>();
        let condition = Condition {
            key: config.key,
            name: config.name,
            place: Location::caller(),
            holds: Arc::new(move |config| config.downcast_ref().map(&holds)),
        };
        self.node_mut().conditions.push(condition);
        self
    }

    /// Checks two configurations against each other, in the plan.
    ///
    /// ```
    /// # #[derive(Clone, hive::Config)] struct A { /// Number.
    /// # a: u8 }
    /// # #[derive(Clone, hive::Config)] struct B { /// Number.
    /// # b: u8 }
    /// let cell = hive::Cell::module("both", "Both").config::<A>().config::<B>().check(
    ///     |a: &A, b: &B, faults: &mut hive::config::Faults| {
    ///         if a.a > b.b {
    ///             faults.add("a", "must not be above --b");
    ///         }
    ///     },
    /// );
    /// # let _ = cell;
    /// ```
    #[track_caller]
    #[must_use]
    pub fn check<A: Config, B: Config>(
        self,
        check: impl Fn(&A, &B, &mut crate::config::Faults) + Send + Sync + 'static,
    ) -> Self {
        let (a, b) = (ConfigType::of::<A>(), ConfigType::of::<B>());
        self.item(Item::Check(Box::new(Check {
            place: Location::caller(),
            keys: vec![(a.key, a.name), (b.key, b.name)],
            check: Arc::new(move |values, faults| {
                if let [a, b] = values
                    && let (Some(a), Some(b)) = (a.downcast_ref(), b.downcast_ref())
                {
                    check(a, b, faults);
                }
            }),
        })))
    }

    /// Fixes the configuration `C` of a cell inside: its flags disappear.
    #[track_caller]
    #[must_use]
    pub fn config_value<C: Config>(mut self, value: C) -> Self {
        let config = ConfigType::of::<C>();
        let change = ConfigChange::Value {
            key: config.key,
            name: config.name,
            make: Arc::new(move || Shared::of(value.clone())),
        };
        self.node_mut().changes.push((change, Location::caller()));
        self
    }

    /// Prefixes all settings of the cells inside with `prefix-`: `size` becomes `--west-size`.
    #[track_caller]
    #[must_use]
    pub fn config_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.node_mut()
            .changes
            .push((ConfigChange::Prefix(prefix.into()), Location::caller()));
        self
    }

    /// Says that this cell provides things which not every program uses: unused constructors are not reported.
    #[must_use]
    pub fn library(mut self) -> Self {
        self.node_mut().library = true;
        self
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.node.kind {
            CellKind::Module { id, .. } => write!(f, "Cell::module({id:?})"),
            CellKind::Group => write!(f, "Cell::group"),
            CellKind::Scope { name, .. } => write!(f, "Cell::scope({name:?})"),
        }
    }
}
