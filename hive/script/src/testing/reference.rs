// SPDX-License-Identifier: Apache-2.0

//! The reference of all commands, in Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{AssemblyError, Choices, Setup, Suite, suites};
use crate::{CommandHandle, default_commands};

/// One command, and where it can be called.
struct Entry {
    command: CommandHandle,
    suites: Vec<&'static str>,
}

/// Describes the commands of all suites: first those that every suite has, then the others.
///
/// # Errors
///
/// If the hive of a suite cannot be built.
pub(super) async fn commands() -> Result<String, AssemblyError> {
    let built_in = default_commands();
    let mut others: BTreeMap<String, Entry> = BTreeMap::new();
    for suite in suites() {
        for script in suite.sample_scripts() {
            for (name, command) in of_suite(suite, script).await? {
                if built_in.contains_key(&name) {
                    continue;
                }
                let entry = others.entry(name).or_insert_with(|| Entry {
                    command,
                    suites: Vec::new(),
                });
                if entry.suites.last() != Some(&suite.name()) {
                    entry.suites.push(suite.name());
                }
            }
        }
    }
    let mut out = String::from(
        "# Script commands\n\nCommands of scripts and of the agent's shell; [scripts](../scripts.md) describes the \
         language.\n\n## In every suite\n",
    );
    for command in built_in.values() {
        describe(&mut out, command, None);
    }
    out.push_str("\n## Of cells\n");
    for entry in others.values() {
        describe(&mut out, &entry.command, Some(&entry.suites));
    }
    Ok(out)
}

async fn of_suite(
    suite: &Suite,
    script: &str,
) -> Result<impl Iterator<Item = (String, CommandHandle)> + use<>, AssemblyError> {
    let place = tempfile::tempdir().map_err(|cause| AssemblyError::Prepare {
        what: "a temporary directory",
        cause: Box::new(cause),
    })?;
    let setup = Setup {
        args: Vec::new(),
        script: script.to_owned(),
        work_dir: place.path().to_owned(),
        state_dir: place.path().to_owned(),
        choices: Choices::default(),
        verbose: false,
    };
    Ok((suite.assemble())(setup).await?.commands.into_iter())
}

fn describe(out: &mut String, command: &CommandHandle, suites: Option<&[&str]>) {
    let spec = command.spec();
    let _ = write!(out, "\n### {}\n\n", spec.name());
    if let Some(suites) = suites {
        let _ = write!(out, "In {}.\n\n", suites.join(", "));
    }
    let help = spec.help(true).replace('\t', "    ");
    out.push_str("```text\n");
    for line in help.trim_end().lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push_str("```\n");
}
