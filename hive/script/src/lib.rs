// SPDX-License-Identifier: Apache-2.0

//! Script engine: txtar tests and the interactive shell.
//!
//! A cell gives [`Command`]s; scripts in txtar files ([`ScriptFile`]) and people at the shell (feature `shell`) run them. [`text`]
//! holds what the commands need to print the way Go programs do: column layout, durations, YAML and JSON.
//!
//! A script is lines of commands with expectations: `!` must fail, `?` may fail, `*` is repeated together with its
//! whole section until it succeeds. A line starting with `#` begins a section.
//!
//! ```text
//! #! --enable-widgets
//! hive/start
//!
//! # the widget reaches the table
//! db/insert widgets widget.yaml
//! * db/cmp widgets expected.table
//! -- widget.yaml --
//! name: w1
//! -- expected.table --
//! Name
//! w1
//! ```
//!
//! # Features
//!
//! * `testing`: scripts as tests of your own cells, see `testing::run_folder`; suites, and the program that runs them;
//! * `hive`: the shell as a cell, and commands on a hive;
//! * `shell`: server and client of the shell;
//! * `interactive`: a prompt with history and completion.
//!
//! None is on by default.

mod archive;
mod builtin;
#[cfg(feature = "hive")]
pub mod cell;
mod command;
mod condition;
mod context;
mod diff;
mod engine;
mod environment;
#[cfg(feature = "hive")]
pub mod hive_command;
mod lifetime;
mod line;
#[cfg(feature = "hive")]
mod look_command;
mod quote;
pub mod regexp;
mod script_file;
#[cfg(feature = "shell")]
pub mod shell;
mod spec;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;

pub use archive::{Archive, ArchiveFile};
pub use builtin::{default_commands, shell_commands, skip_command};
pub use command::{Command, CommandError, CommandHandle, Outcome, Output, Pending, function};
pub use condition::{Condition, ConditionError, Conditions, default_conditions, test_conditions};
pub use context::Context;
pub use diff::diff;
pub use engine::{Ending, Failure, ScriptError};
pub use environment::Environment;
pub use lifetime::{Interruption, Lifetime};
pub use line::ParseError;
pub use script_file::{ScriptFile, ScriptFileError};
pub use spec::{Flag, FlagError, FlagKind, FlagValue, Invocation, Spec};
pub use state::{CommandSet, Retry, State};

/// A command with its name, as an entry of a [`CommandSet`].
pub fn named(command: CommandHandle) -> (String, CommandHandle) {
    (command.spec().name().to_owned(), command)
}

#[cfg(test)]
mod tests;
