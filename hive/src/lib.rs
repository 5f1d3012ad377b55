// SPDX-License-Identifier: Apache-2.0

//! Cells, dependency graph, configuration, lifecycle, jobs and health.
//!
//! A program is a list of [cells](Cell). Each says what it offers, what it needs, how it is configured and
//! what must run. The hive checks all of it before anything is constructed, constructs what is needed in a
//! fixed order, runs start hooks and jobs, and stops them in reverse.
//!
//! # Tutorial
//!
//! **Constructors are plain functions.** Parameters are dependencies, the result is what is offered. A cell
//! lists them; [`Params`](derive@Params) gathers parameters when there are many:
//!
//! ```
//! use hive::{Cell, Cfg, Health, Hive, HookCtx, Job, JobCtx, Jobs, Lifecycle, Params, Settings, SpawnError};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! /// One field is one setting: `--visit-interval`, `APP_VISIT_INTERVAL`, the key `visit-interval` in files.
//! #[derive(Clone, hive::Config)]
//! struct Config {
//!     /// Time between two visits.
//!     #[config(default = "10ms")]
//!     visit_interval: Duration,
//! }
//!
//! #[derive(Default)]
//! struct Counter(AtomicU64);
//!
//! impl Counter {
//!     fn new(lifecycle: Lifecycle, health: Health) -> Arc<Counter> {
//!         let counter = Arc::new(Counter::default());
//!         let reset = counter.clone();
//!         lifecycle.on_start("reset", move |_: HookCtx| {
//!             reset.0.store(0, Ordering::Relaxed);
//!             health.ok("Counting");
//!             async {}
//!         });
//!         counter
//!     }
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
//! fn counter_cell() -> Cell {
//!     Cell::module("counter", "Counts visits").provide(Counter::new)
//! }
//!
//! fn visitor_cell() -> Cell {
//!     Cell::module("visitor", "Visits now and then").config::<Config>().run(visit)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The order of the list does not matter: dependencies decide.
//! let hive = Hive::new([visitor_cell(), counter_cell()]).root::<Arc<Counter>>();
//! let plan = hive.plan(Settings::new().args(["--visit-interval=1ms"]))?; // all is checked, nothing has run
//! let running = plan.build()?.start().await?;
//! tokio::time::sleep(Duration::from_millis(20)).await;
//! assert!(running.get::<Arc<Counter>>().unwrap().0.load(Ordering::Relaxed) > 0);
//! running.stop().await?; // jobs end, then stop hooks run, in reverse order
//! # Ok(()) }
//! ```
//!
//! **Mistakes come all at once**, before any constructor runs, each with module, function, place and help; see
//! [`Report`]. **Tests** list the cell under test and fakes for the rest, or change a program with
//! [`replace`](Hive::replace), [`override_config`](Hive::override_config) and [`without`](Hive::without); see
//! [`testing`]. **Programs** call `run` (feature `run`), which handles signals, exit codes and the
//! sub-commands that show the hive.
//!
//! # Features
//!
//! `run` (main function of binaries), `yaml` (config files), `clap` (command lines), `ipnet` (prefixes as
//! settings), `bench` (made-up cells). Without them the crate needs little more than tokio's timers.

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
#[cfg(feature = "bench")]
pub mod bench;
mod build;
mod catalogue;
mod cell;
#[cfg(feature = "clap")]
mod cli;
pub mod config;
mod constructor;
mod control;
mod duration;
mod engine;
mod finding;
mod health;
mod inject;
mod jobs;
mod json;
mod key;
mod lifecycle;
mod module;
mod options;
mod panics;
mod plan;
mod random;
mod readiness;
#[cfg(feature = "run")]
mod run;
mod scope;
mod show;
mod shutdown;
mod similar;
mod supply;
pub mod testing;

pub use assembly::Hive;
pub use build::{BuildError, Built, Running};
pub use catalogue::{CatalogueEntry, catalogue};
pub use cell::Cell;
pub use config::{Cfg, Config, Settings};
pub use constructor::{Constructor, ParameterList, RunOutput};
pub use control::{Controller, Reload};
pub use duration::{format_duration, parse_duration};
pub use engine::{HookFailure, HookInfo, HookState, StartError, State, StopError};
pub use finding::{Code, Finding, Involved, Report, Severity};
pub use health::{
    Health, HealthEntry, HealthGuard, HealthId, HealthReport, HealthSink, Level, MemoryHealth, error_chain,
};
pub use hive_macros::{Config, Params, Supplies, Value};
pub use inject::{After, All, Arguments, Inject, Needs, Value};
pub use jobs::{
    Backoff, Job, JobCtx, JobInfo, JobKind, JobMetrics, JobOutcome, JobRun, JobState, Jobs, ObserverJob,
    OnFailure, OnceJob, Retry, SpawnError, TimerJob, Trigger, is_job_name,
};
pub use key::Key;
pub use lifecycle::{Hook, HookCtx, HookOutput, Lifecycle};
pub use module::ModulePath;
pub use options::HiveOptions;
pub use plan::Plan;
pub use readiness::{Readiness, ReadyGuard};
#[cfg(feature = "run")]
pub use run::{Program, exit, run};
pub use scope::Scope;
pub use show::{GraphFormat, GraphView, SettingInfo};
pub use shutdown::{ExitCause, SharedError, Shutdown};
pub use supply::{BoxError, Gives, Member, Members, Results, Supply};

/// For macros of this crate.
#[doc(hidden)]
pub mod __private {
    pub use inventory;
}

/// Locks; a panic of another thread while it held the lock does not matter to what is kept here.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
