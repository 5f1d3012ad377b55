// SPDX-License-Identifier: Apache-2.0

//! Cells, dependency graph, configuration, lifecycle, jobs and health.
//!
//! A program is a list of [cells](Cell). Each says what it offers, what it needs, how it is configured and
//! what must run. The hive checks all of it before anything is constructed, constructs what is needed in a
//! fixed order, runs start hooks and jobs, and stops them in reverse.

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
pub use health::{Health, HealthEntry, HealthGuard, HealthId, HealthReport, HealthSink, Level, MemoryHealth};
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
