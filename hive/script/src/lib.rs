// SPDX-License-Identifier: Apache-2.0

//! Script engine: commands, and txtar tests that run them.
//!
//! A cell provides [`Command`]s; scripts in txtar files ([`ScriptFile`]) and users of the shell (crate `skep-shell`) run
//! them. [`text`] prints as Go programs do: column layout, durations, YAML and JSON.
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
//! * `hive`: commands on a hive.
//!
//! None is on by default.

#![warn(missing_docs)]

mod archive;
mod builtin;
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
mod quote;
pub mod regexp;
mod script_file;
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
