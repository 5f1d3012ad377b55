// SPDX-License-Identifier: Apache-2.0

//! Script engine: txtar tests and the interactive shell.
//!
//! A cell gives [`Command`]s; scripts in txtar files and people at the shell run them. [`text`] holds what the
//! commands need to print the way Go programs do: column layout, durations, YAML and JSON.

mod command;
mod context;
mod environment;
mod lifetime;
mod spec;
pub mod text;

pub use command::{Command, CommandError, CommandHandle, Outcome, Output, Pending};
pub use context::{CommandSet, Context, State};
pub use environment::Environment;
pub use lifetime::{Interruption, Lifetime};
pub use spec::{Flag, FlagError, FlagKind, FlagValue, Invocation, Spec};
