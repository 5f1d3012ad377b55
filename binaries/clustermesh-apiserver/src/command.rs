// SPDX-License-Identifier: Apache-2.0

//! The table of sub-commands.

use hive::console;

use crate::{PROGRAM, clustermesh, clustermesh_dbg, coredns, etcdinit, kvstoremesh, kvstoremesh_dbg, shell};

/// A sub-command.
struct Command {
    name: &'static str,
    about: &'static str,
    /// Runs it with its arguments and the environment; returns the exit code.
    run: fn(Vec<String>, Vec<(String, String)>) -> u8,
}

/// All sub-commands, by name.
const COMMANDS: &[Command] = &[
    Command {
        name: "clustermesh",
        about: "Publish the state of this cluster",
        run: clustermesh::command,
    },
    Command {
        name: "clustermesh-dbg",
        about: "Check the connection of the clustermesh-apiserver to etcd",
        run: clustermesh_dbg::command,
    },
    Command {
        name: "etcdinit",
        about: "Initialize an etcd data directory: users, roles, authentication",
        run: etcdinit::command,
    },
    Command {
        name: "kvstoremesh",
        about: "Copy the state of remote clusters into the key-value store of this one",
        run: kvstoremesh::command,
    },
    Command {
        name: "kvstoremesh-dbg",
        about: "Inspect a running kvstoremesh",
        run: kvstoremesh_dbg::command,
    },
    Command {
        name: "mcsapi-coredns-cfg",
        about: "Configure CoreDNS for the multi-cluster services API",
        run: coredns::command,
    },
    Command {
        name: "shell",
        about: "Run a command in a running server, or open a prompt",
        run: shell::command,
    },
    Command {
        name: "version",
        about: "Print the version",
        run: |_, _| {
            console::print(format_args!("{PROGRAM} {}\n", env!("CARGO_PKG_VERSION")));
            0
        },
    },
];

/// Runs the sub-command that the arguments name; returns the exit code.
pub fn run(mut args: Vec<String>, env: Vec<(String, String)>) -> u8 {
    let name = args.first().map_or("--help", String::as_str);
    if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
        return (command.run)(args.split_off(1), env);
    }
    match name {
        "-h" | "--help" | "help" => {
            console::print(usage());
            0
        }
        "-V" | "--version" => run(vec!["version".to_owned()], env),
        unknown => {
            console::error_line(format_args!("error: unknown command `{unknown}`\n\n{}", usage()));
            hive::exit::USAGE
        }
    }
}

fn usage() -> String {
    let commands: String = COMMANDS
        .iter()
        .map(|command| format!("  {:<20} {}\n", command.name, command.about))
        .collect();
    format!(
        "Shares the state of this cluster with other clusters.\n\nUsage: {PROGRAM} <command> [flags]\n\nCommands:\n{commands}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_listed_and_unknown_ones_rejected() {
        let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for name in names {
            assert!(usage().contains(&format!("\n  {name} ")), "{name}");
        }

        assert_eq!(run(vec!["version".to_owned()], Vec::new()), 0);
        assert_eq!(run(vec!["--help".to_owned()], Vec::new()), 0);
        assert_eq!(run(vec!["etcd-init".to_owned()], Vec::new()), hive::exit::USAGE);
    }
}
