// SPDX-License-Identifier: Apache-2.0

//! Commands which every engine offers.

mod compare;
mod edit;
mod files;
mod help;
mod process;
mod prompt;
mod search;
mod variables;

pub(crate) use process::find_program;
pub(crate) use prompt::break_prompt;

use crate::{CommandHandle, CommandSet};

/// The set for script tests.
pub fn default_commands() -> CommandSet {
    let mut commands = Vec::new();
    commands.extend(compare::commands());
    commands.extend(edit::commands());
    commands.extend(files::commands());
    commands.extend(process::commands());
    commands.extend(search::commands());
    commands.extend(variables::commands());
    commands.push(help::command());
    commands.push(prompt::command());
    by_name(commands)
}

/// The commands of the shell: no `exec`, by which a client of the socket could run any program.
pub fn shell_commands() -> CommandSet {
    by_name([files::cat(), help::command()])
}

/// `skip`, which marks a test as not applicable. Not part of [`default_commands`].
pub fn skip_command() -> CommandHandle {
    variables::skip()
}

fn by_name(commands: impl IntoIterator<Item = CommandHandle>) -> CommandSet {
    commands
        .into_iter()
        .map(|command| (command.spec().name().to_owned(), command))
        .collect()
}
