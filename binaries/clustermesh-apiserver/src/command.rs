// SPDX-License-Identifier: Apache-2.0

//! The table of sub-commands.

use clap::{CommandFactory, Parser};
use hive::console;
use skep_clustermesh_cli::{completion, line};

use crate::{PROGRAM, clustermesh, clustermesh_dbg, coredns, etcdinit, kvstoremesh, kvstoremesh_dbg, shell};

/// A sub-command.
struct Command {
    name: &'static str,
    about: &'static str,
    /// Runs it with its arguments and the environment; returns the exit code.
    run: fn(Vec<String>, Vec<(String, String)>) -> u8,
    /// Its flags and arguments, for completion scripts.
    line: fn() -> clap::Command,
}

/// Prints the completion script of a shell.
#[derive(Parser, Clone, Debug)]
struct CompletionLine {
    #[command(flatten)]
    options: completion::Options,
}

/// All sub-commands, by name.
const COMMANDS: &[Command] = &[
    Command {
        name: "clustermesh",
        about: "Publish the state of this cluster",
        run: clustermesh::command,
        line: || completion::of_program("clustermesh", &clustermesh::program()),
    },
    Command {
        name: "clustermesh-dbg",
        about: "Check the connection of the clustermesh-apiserver to etcd",
        run: clustermesh_dbg::command,
        line: clustermesh_dbg::Line::command,
    },
    Command {
        name: "completion",
        about: "Print the completion script of a shell",
        run: complete,
        line: CompletionLine::command,
    },
    Command {
        name: "etcdinit",
        about: "Initialize an etcd data directory: users, roles, authentication",
        run: etcdinit::command,
        line: etcdinit::Options::command,
    },
    Command {
        name: "kvstoremesh",
        about: "Copy the state of remote clusters into the key-value store of this one",
        run: kvstoremesh::command,
        line: || completion::of_program("kvstoremesh", &kvstoremesh::program()),
    },
    Command {
        name: "kvstoremesh-dbg",
        about: "Inspect a running kvstoremesh",
        run: kvstoremesh_dbg::command,
        line: kvstoremesh_dbg::Line::command,
    },
    Command {
        name: "mcsapi-coredns-cfg",
        about: "Configure CoreDNS for the multi-cluster services API",
        run: coredns::command,
        line: || completion::of_program("mcsapi-coredns-cfg", &coredns::program()),
    },
    Command {
        name: "shell",
        about: "Run a command in a running server, or open a prompt",
        run: shell::command,
        line: shell::Line::command,
    },
    Command {
        name: "version",
        about: "Print the version",
        run: |_, _| {
            console::print(format_args!("{PROGRAM} {}\n", env!("CARGO_PKG_VERSION")));
            0
        },
        line: || clap::Command::new("version"),
    },
];

/// Runs the sub-command that the arguments name, before or behind its flags; returns the exit code.
pub fn run(mut args: Vec<String>, env: Vec<(String, String)>) -> u8 {
    if args.first().is_some_and(|arg| arg.starts_with('-')) {
        args = line::words_first(&whole(), args);
    }
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

/// Sub-command `completion`.
fn complete(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    match line::parse::<CompletionLine>(&format!("{PROGRAM} completion"), args) {
        Ok(CompletionLine { options }) => {
            console::print(completion::script(&options, PROGRAM, whole()));
            0
        }
        Err(code) => code,
    }
}

/// The command line with all sub-commands.
fn whole() -> clap::Command {
    let commands = COMMANDS
        .iter()
        .map(|command| (command.line)().name(command.name).about(command.about));
    clap::Command::new(PROGRAM).subcommands(commands)
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

    #[test]
    fn commands_are_found_behind_their_flags() {
        let flags = [
            "--cluster-name",
            "birch",
            "--cluster-id=9",
            "--kvstore-opt=etcd.config=x",
        ];
        for words in [
            &["clustermesh", "hive", "check"][..],
            &["kvstoremesh", "hive", "config"],
        ] {
            let args = flags.iter().chain(words).map(|arg| (*arg).to_owned());
            assert_eq!(run(args.collect(), Vec::new()), 0, "{words:?}");
        }
        let etcd = ["--timeout", "5s", "etcdinit", "--help"].map(str::to_owned);
        assert_eq!(run(etcd.into(), Vec::new()), 0);
        let unknown = ["--timeout", "etcdinit", "--help"].map(str::to_owned);
        assert_eq!(run(unknown.into(), Vec::new()), hive::exit::USAGE);
    }

    #[test]
    fn every_command_completes_with_its_flags() {
        let options = |shell: &str| completion::Options {
            shell: shell.parse().expect("it is a shell"),
        };

        let script = completion::script(&options("fish"), PROGRAM, whole());

        for command in COMMANDS {
            let word = format!("-a \"{}\"", command.name);
            assert!(script.contains(&word), "{word} in {script}");
        }
        for (command, flag) in [
            ("clustermesh", "cluster-users-enabled"),
            ("kvstoremesh", "per-cluster-ready-timeout"),
            ("etcdinit", "etcd-data-dir"),
            ("mcsapi-coredns-cfg", "coredns-namespace"),
            ("shell", "shell-sock-path"),
        ] {
            let mut lines = script.lines();
            let is_line = |line: &str| {
                line.contains(&format!("_using_subcommand {command}")) && line.contains(&format!("-l {flag}"))
            };
            assert!(lines.any(is_line), "{command} --{flag} in {script}");
        }
        for shell in ["bash", "zsh", "fish", "powershell"] {
            let args = vec!["completion".to_owned(), shell.to_owned()];
            assert_eq!(run(args, Vec::new()), 0, "{shell}");
        }
        assert_eq!(run(vec!["completion".to_owned()], Vec::new()), hive::exit::USAGE);
    }
}
