// SPDX-License-Identifier: Apache-2.0

//! Cells, dependency graph, configuration, lifecycle, jobs and health.
//!
//! A program is a list of [cells](Cell). Each says what it offers, what it needs, how it is configured and
//! what must run. The hive checks all of it before anything is constructed, constructs what is needed in a
//! fixed order, runs start hooks and jobs, and stops them in reverse.
//!
//! # Tutorial
//!
//! A program that counts visits. `Cargo.toml` needs the package `skep-hive` with the feature `run`, from the
//! repository or from a checkout (`path = "../skep/hive"`), and for the test at the end tokio:
//!
//! ```toml
//! [dependencies]
//! hive = { package = "skep-hive", git = "<repository>", features = ["run"] }
//!
//! [dev-dependencies]
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! **Constructors are plain functions.** Parameters are dependencies, the result is what is offered. A cell
//! lists them; [`Params`](derive@Params) gathers parameters when there are many. `src/main.rs`:
//!

#![warn(missing_docs)]
#![cfg_attr(feature = "run", doc = "```no_run")]
#![cfg_attr(not(feature = "run"), doc = "```ignore")]
//! use hive::{Cell, Cfg, Health, HookCtx, Job, JobCtx, Jobs, Lifecycle, Params, Program, SpawnError};
//! use std::process::ExitCode;
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! fn main() -> ExitCode {
//!     // The order of the list does not matter: dependencies decide.
//!     Program::new("visits", [visitor_cell(), counter_cell()])
//!         .about("Counts visits.")
//!         .version(env!("CARGO_PKG_VERSION"))
//!         .main()
//! }
//!
//! #[derive(Default)]
//! struct Counter(AtomicU64);
//!
//! impl Counter {
//!     /// Checks and allocates; what takes time or touches the world is left to hooks and jobs.
//!     fn new(lifecycle: Lifecycle, health: Health) -> Arc<Counter> {
//!         let counter = Arc::new(Counter::default());
//!         let stopping = counter.clone();
//!         lifecycle.on_start("open", move |_: HookCtx| {
//!             health.ok("Counting");
//!             async {}
//!         });
//!         lifecycle.on_stop("show", move |_: HookCtx| {
//!             println!("{} visits", stopping.0.load(Ordering::Relaxed));
//!             async {}
//!         });
//!         counter
//!     }
//! }
//!
//! fn counter_cell() -> Cell {
//!     Cell::module("counter", "Counts visits").provide(Counter::new)
//! }
//!
//! /// One field is one setting: `--visit-interval`, `VISITS_VISIT_INTERVAL`, the key `visit-interval` in files.
//! #[derive(Clone, hive::Config)]
//! struct Config {
//!     /// Time between two visits.
//!     #[config(default = "1s")]
//!     visit_interval: Duration,
//! }
//!
//! #[derive(Params)]
//! struct VisitorParams {
//!     config: Cfg<Config>,
//!     counter: Arc<Counter>,
//!     jobs: Jobs,
//! }
//!
//! fn visit(params: VisitorParams) -> Result<(), SpawnError> {
//!     let VisitorParams { config, counter, jobs } = params;
//!     jobs.spawn(Job::every(config.visit_interval, "visit", move |_: JobCtx| {
//!         counter.0.fetch_add(1, Ordering::Relaxed);
//!         async {}
//!     }).run_at_start())
//! }
//!
//! fn visitor_cell() -> Cell {
//!     Cell::module("visitor", "Visits now and then").config::<Config>().run(visit)
//! }
//! ```
//!
//! `cargo run -- --visit-interval=100ms` runs it until Ctrl-C, then prints the count: jobs end first, then stop
//! hooks run in reverse order. `--help` lists the settings, `hive` the cells, `hive plan` the order of construction,
//! `hive config` all settings with their origin.
//!
//! **Mistakes come all at once**, before any constructor runs. Leave out `counter_cell()`, and misspell the flag
//! as `--visit-intervall=1s`:
//!
//! ```text
//! error[H016]: unknown argument `--visit-intervall`
//!   help: did you mean `--visit-interval`?
//! error[H003]: nothing provides `Arc<Counter>`
//!   needed by   visits::visit              src/main.rs:63
//!   in module   visitor
//!   help: add a cell whose constructor returns `Arc<Counter>`
//! 2 errors, 0 warnings; no constructor was run
//! ```
//!
//! **Tests** list the cell under test and fakes for the rest, or change a program with
//! [`replace`](Hive::replace), [`override_config`](Hive::override_config) and [`without`](Hive::without). At the end
//! of `src/main.rs`:
//!
//! ```
//! # use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
//! # use std::sync::Arc;
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! # use std::time::Duration;
//! # #[derive(Default)] struct Counter(AtomicU64);
//! # fn counter_cell() -> Cell { Cell::module("counter", "Counts visits").provide(|| Arc::new(Counter::default())) }
//! # #[derive(Clone, hive::Config)] struct Config {
//! #     /// Time between two visits.
//! #     #[config(default = "1s")] visit_interval: Duration }
//! # fn visit(config: Cfg<Config>, counter: Arc<Counter>, jobs: Jobs) -> Result<(), SpawnError> {
//! #     jobs.spawn(Job::every(config.visit_interval, "visit", move |_: JobCtx| {
//! #         counter.0.fetch_add(1, Ordering::Relaxed);
//! #         async {}
//! #     }).run_at_start())
//! # }
//! # fn visitor_cell() -> Cell { Cell::module("visitor", "Visits now and then").config::<Config>().run(visit) }
//! # macro_rules! as_test { ($(#[$attribute:meta])* async fn $name:ident() $body:block) => {
//! #     fn main() {
//! #         tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
//! #             .block_on(async { $body })
//! #     }
//! # } }
//! # as_test! {
//! #[tokio::test(start_paused = true)]
//! async fn visits_at_start_and_then_at_intervals() {
//!     use hive::{Hive, testing};
//!
//!     let hive = Hive::new([visitor_cell(), counter_cell()])
//!         .override_config(|config: &mut Config| config.visit_interval = Duration::from_secs(60));
//!     let (running, counter) = testing::start_with_root::<Arc<Counter>>(hive).await;
//!
//!     tokio::time::sleep(Duration::from_secs(90)).await;
//!
//!     assert_eq!(counter.0.load(Ordering::Relaxed), 2);
//!     testing::stop(running).await;
//! }
//! # }
//! ```
//!
//! One test should plan the whole program: `Hive::new(cells()).plan(Settings::new())`, and its
//! [variants](Hive::variants) if cells have [conditions](Cell::when). `hive check --strict` does the same for a binary.
//!
//! # Where to go from here
//!
//! | to | see |
//! |---|---|
//! | offer something under a trait | a constructor that returns `Arc<dyn Trait>` |
//! | let cells plug into one another | [`Member`], [`All`] |
//! | do without what is not there | `Option<Arc<T>>` as a parameter, [`Cell::when`] |
//! | share state with other cells | crate `statedb` with its feature `hive`: tables as values of the graph |
//! | keep something inside a module | [`Cell::provide_private`] |
//! | change a value for some cells only | [`Cell::decorate`] |
//! | give every module a handle of its own | [`Cell::provide_per_module`] |
//! | run cells only as a leader, or on demand | [`Cell::scope`], [`Scope`] |
//! | tell others when all is ready | [`Readiness`], `when_ready` of a [`Job`] |
//! | check settings together | `validate` in [`Config`](derive@Config), [`Faults`](config::Faults) |
//! | test with scripts | crate `hive-script` with its feature `testing` |
//! | count and measure | [`JobMetrics`], [`HiveMetrics`], [`HealthSink`] |
//! | serve the state of the hive | [`Controller::to_json`], [`Controller::draw`] |
//! | let users find your cell | [`catalogue!`] |
//!
//! # Logs
//!
//! The hive and its cells log with `tracing`. What constructors, hooks and jobs log stands in a span with the path of
//! the module and the name of the function, hook or job; cells need no logger. A program sets its subscriber up in
//! [`Program::setup`](crate::Program::setup), where the settings are known already; one that does not prints warnings
//! and errors on standard error.
//!
//! # As a service
//!
//! A [program](run()) stops cleanly on SIGINT, SIGTERM and SIGHUP, at any time, also during start; a second signal
//! forces the end and says what was pending. [`exit`](mod@exit) lists the exit codes. Under a service manager with
//! `Type=notify` it says when it is ready and stops, and with `WatchdogSec=` that it lives.
//!
//! # For those who know the hive of Cilium
//!
//! | There | Here |
//! |---|---|
//! | `cell.Provide(func(p params) (Out, error))` | `provide(Service::new)`; a struct that derives `Params` when there are many |
//! | embedding `cell.In`, `cell.Out` | `derive(Params)`; a tuple as result |
//! | `group:"script-commands"` | `All<ScriptCommand>`: a type, not a string, in a stable order |
//! | `optional:"true"` | `Option<Arc<T>>`; `None` only if nothing provides it |
//! | an interface by the type of the result | `Arc<dyn Trait>` by the type of the result |
//! | `cell.Invoke` | `run(function)`; in tests rather `root::<T>()` |
//! | `context.Context` | [`HookCtx`], [`JobCtx`]: token, deadline, health |
//! | `hive.AddConfigOverride` | [`Hive::override_config`] |
//! | `promise.Promise` | a watch value, a table, or an object split in two |
//! | `hivetest.Lifecycle` | [`testing::start`] of a hive with the one cell |
//! | a decorated lifecycle for what only the leader runs | [`Cell::scope`] |
//! | a panic at the first mistake | a [`Report`] of all of them |
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `run` | [`Program`](run()): the main function of a binary, with signals and exit codes |
//! | `yaml` | config files in YAML; without it they are flat lines `key: value` |
//!
//! None is on by default. Without them the crate needs little more than tokio's timers.

extern crate self as hive;

/// Calls a macro with the type parameters of every arity from 0 to 16.
macro_rules! for_each_arity {
    ($macro:ident) => {
        $macro!();
        $macro!(A1);
        $macro!(A1 A2);
        $macro!(A1 A2 A3);
        $macro!(A1 A2 A3 A4);
        $macro!(A1 A2 A3 A4 A5);
        $macro!(A1 A2 A3 A4 A5 A6);
        $macro!(A1 A2 A3 A4 A5 A6 A7);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 A15);
        $macro!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 A15 A16);
    };
}

mod assembly;
mod build;
mod catalogue;
mod cell;
pub mod config;
pub mod console;
mod constructor;
mod control;
mod controller;
mod engine;
mod error;
mod fallback;
mod finding;
mod health;
mod hook_error;
mod inject;
mod jobs;
mod json;
mod key;
mod lifecycle;
mod metrics;
mod module;
mod options;
mod panics;
mod plan;
mod readiness;
#[cfg(feature = "run")]
mod run;
mod scope;
mod show;
mod shutdown;
mod similar;
mod supply;
pub mod testing;
mod watchdog;

pub use assembly::Hive;
pub use build::{BuildError, Built, Running};
pub use catalogue::{CatalogueEntry, catalogue};
pub use cell::Cell;
pub use config::{Cfg, Config, Settings};
pub use constructor::{Constructor, ParameterList, RunOutput};
pub use controller::Controller;
pub use engine::{HookInfo, HookState, State};
pub use error::{BoxError, SharedError};
pub use finding::{Code, Finding, Involved, Report, Severity};
pub use health::{
    Health, HealthEntry, HealthGuard, HealthId, HealthReport, HealthSink, Level, MemoryHealth, error_chain,
};
/// Makes a struct with named fields a configuration: each field is a setting, a flag of the command line, a key of
/// files and an environment variable. The doc comment of a field is its documentation; the first sentence is the help.
///
/// `#[config(...)]` on a field, several separated by commas:
///
/// | attribute | meaning |
/// |---|---|
/// | `default = literal` | the value without any other, as users write it: `"5m"`, `10`, `true`. Without it `Default` of the type. One that cannot be read is an error of the compiler for numbers, switches, durations and addresses, else of the plan. `{program}` stands for the [name of the program](crate::Settings::program) |
/// | `default_with = function` | the value without any other is what the function returns |
/// | `flag = "name"` | the name of the setting; otherwise that of the field with dashes |
/// | `env = "NAME"` | its own environment variable, besides the one made of prefix and name |
/// | `deprecated_alias = "name"` | an older name (several are allowed), which works and is reported |
/// | `deprecated = "use --other"` | the setting works; using it is reported with this text |
/// | `hidden` | not in the help |
/// | `secret` | the value is printed nowhere |
/// | `skip` | no setting: the field is `Default::default()` |
///
/// On the struct:
///
/// | attribute | meaning |
/// |---|---|
/// | `validate = function` | `fn(&Self, &mut hive::config::Faults)`: reports [faults](crate::config::Faults::add) of values, by flag |
///
/// ```
/// use hive::config::Faults;
/// use std::time::Duration;
///
/// #[derive(Clone, hive::Config)]
/// #[config(validate = CacheConfig::check)]
/// struct CacheConfig {
///     /// How long an entry is kept. Longer needs more memory.
///     #[config(default = "5m", flag = "cache-lifetime", deprecated_alias = "cache-ttl")]
///     lifetime: Duration,
///     /// Token of the server.
///     #[config(secret, env = "CACHE_TOKEN")]
///     cache_token: String,
/// }
///
/// impl CacheConfig {
///     fn check(&self, faults: &mut Faults) {
///         if self.lifetime.is_zero() {
///             faults.add("cache-lifetime", "must not be zero");
///         }
///     }
/// }
///
/// let hive = hive::Hive::new([hive::Cell::module("cache", "Keeps things").config::<CacheConfig>()]);
/// let report = hive.plan(hive::Settings::new().args(["--cache-lifetime=0"])).unwrap_err();
/// assert!(report.to_string().contains("`--cache-lifetime` (from flag): must not be zero"));
/// ```
pub use hive_macros::Config;
/// Makes a struct a parameter of constructors: every field is one, of any type that implements [`Inject`]. There are no
/// attributes; the type of a field says all:
///
/// | type of a field | what it gets |
/// |---|---|
/// | `Arc<T>`, `Arc<dyn Trait>`, a type that derives [`Value`](macro@Value) | the object; it is an error if nothing provides it |
/// | `Option` of these | the object, or none |
/// | `All<T>` | all members of a group |
/// | `Cfg<C>` | a configuration |
/// | `Health`, `Jobs`, `Lifecycle`, `Shutdown`, `Readiness`, `Controller`, `ModulePath` | made for the module that asks |
/// | a struct that derives `Params` | its fields |
///
/// ```
/// use std::sync::Arc;
/// use hive::{Cell, Health, Hive, Jobs, Params, Settings};
///
/// struct Store;
/// #[derive(Params)]
/// struct ProberParams {
///     store: Arc<Store>,
///     backup: Option<Arc<String>>,
///     jobs: Jobs,
///     health: Health,
/// }
/// fn probe(params: ProberParams) { assert!(params.backup.is_none()); params.health.ok("Ready"); }
///
/// let cell = Cell::module("prober", "Probes").provide(|| Arc::new(Store)).run(probe);
/// Hive::new([cell]).plan(Settings::new())?.build()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub use hive_macros::Params;
pub use hive_macros::Value;
pub use hook_error::{HookFailure, HookId, StartError, StopError};
pub use inject::{All, Arguments, Inject, Needs, Value};
pub use jobs::{
    Backoff, Job, JobCtx, JobFn, JobInfo, JobKind, JobMetrics, JobOutcome, JobRun, JobState, Jobs,
    ObserverJob, OnFailure, OnceJob, Retry, SpawnError, TimerJob, Trigger, is_job_name,
};
pub use key::Key;
pub use lifecycle::{Hook, HookCtx, HookOutput, Lifecycle};
pub use metrics::HiveMetrics;
pub use module::ModulePath;
pub use options::HiveOptions;
pub use plan::Plan;
pub use readiness::{Readiness, ReadyGuard};
#[cfg(feature = "run")]
pub use run::{Program, exit, run, with_arguments};
pub use scope::Scope;
pub use show::{DrawError, GraphFormat, GraphView, SettingInfo};
pub use shutdown::{ExitCause, Shutdown};
pub use supply::{Gives, Member, Members, Results, Supply};
/// What [`HookCtx`] and [`JobCtx`] carry.
pub use tokio_util::sync::CancellationToken;

/// For macros of this crate.
#[doc(hidden)]
pub mod __private {
    pub use inventory;
}

/// Locks; a panic of another thread while it held the lock does not matter to what is kept here.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
