// SPDX-License-Identifier: Apache-2.0

//! Sub-commands that ask a running operator, or look at what it connects to.

use clap::{Args, CommandFactory, Parser, Subcommand};
use hive::Program;
use skep_clustermesh_cli::{completion, line, shell, status, troubleshoot};

use crate::metrics;

/// Name of the program.
const PROGRAM: &str = "skep-operator";
/// The configuration of the etcd client that the chart mounts.
const ETCD_CONFIG: &str = "/var/lib/etcd-config/etcd.config";

#[derive(Parser, Clone, Debug)]
enum Line {
    /// Print the completion script of a shell.
    Completion(completion::Options),
    /// The metrics of a running operator.
    #[command(subcommand)]
    Metrics(Metrics),
    /// Run a command in a running operator, or open a prompt.
    Shell(shell::Options),
    /// How what the operator connects to is.
    #[command(subcommand)]
    Status(Status),
    /// Check connections step by step.
    #[command(subcommand)]
    Troubleshoot(Troubleshoot),
}

#[derive(Subcommand, Clone, Debug)]
enum Metrics {
    /// Print the metrics and their values.
    List(metrics::Options),
}

#[derive(Subcommand, Clone, Debug)]
enum Status {
    /// Print the status of the remote clusters: those that are not ready, and with `--verbose` all. Only the leader has any.
    Clustermesh(StatusOptions),
}

#[derive(Subcommand, Clone, Debug)]
enum Troubleshoot {
    /// Check the connections to remote clusters.
    Clustermesh(troubleshoot::RemoteOptions),
    /// Check the connection to the etcd of the own cluster.
    Kvstore(troubleshoot::OwnOptions),
}

#[derive(Args, Clone, Debug)]
struct StatusOptions {
    #[command(flatten)]
    status: status::Options,
    /// Address of the API of the operator.
    #[arg(long, short, default_value = "localhost:9234")]
    server: String,
}

/// Runs the sub-command among the arguments, before or behind its flags; returns the exit code. `None` if there is none: then
/// they are those of the operator itself, `program`.
pub fn command(args: &[String], program: &Program) -> Option<u8> {
    // The flags of the program are only looked at if one of them may come before a sub-command.
    if !args.iter().any(|arg| Line::has_subcommand(arg)) {
        return None;
    }
    let args = line::words_first(&whole(program), args.to_vec());
    if !Line::has_subcommand(args.first()?) {
        return None;
    }
    let line: Line = match line::parse(PROGRAM, args) {
        Ok(line) => line,
        Err(code) => return Some(code),
    };
    Some(match line {
        Line::Completion(options) => {
            hive::console::print(completion::script(&options, PROGRAM, whole(program)));
            0
        }
        Line::Metrics(Metrics::List(options)) => {
            line::report(PROGRAM, metrics::list(&options).map(|text| (text, true)))
        }
        Line::Shell(options) => line::report(PROGRAM, shell::run(&options, "the operator")),
        Line::Status(Status::Clustermesh(StatusOptions { status, server })) => {
            let server = status::Server {
                name: "the operator",
                title: "ClusterMesh",
                host: &server,
            };
            line::report(PROGRAM, status::run(&status, server).map(|text| (text, true)))
        }
        Line::Troubleshoot(Troubleshoot::Clustermesh(options)) => {
            line::report(PROGRAM, troubleshoot::remote(&options))
        }
        Line::Troubleshoot(Troubleshoot::Kvstore(options)) => {
            line::report(PROGRAM, troubleshoot::own(&options, ETCD_CONFIG))
        }
    })
}

/// The command line of the operator with its sub-commands.
fn whole(program: &Program) -> clap::Command {
    let commands = Line::command();
    completion::of_program(PROGRAM, program).subcommands(commands.get_subcommands().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program::new(PROGRAM, crate::cells())
    }

    fn run(words: &[&str]) -> Option<u8> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        command(&words, &program())
    }

    #[test]
    fn commands_and_flags_complete() {
        let options = completion::Options {
            shell: "bash".parse().expect("it is a shell"),
        };

        let script = completion::script(&options, PROGRAM, whole(&program()));

        for word in [
            "troubleshoot",
            "clustermesh",
            "--operator-api-serve-addr",
            "completion",
        ] {
            assert!(script.contains(word), "{word} in {script}");
        }
        assert_eq!(run(&["completion", "zsh"]), Some(0));
        assert_eq!(run(&["completion", "csh"]), Some(hive::exit::USAGE));
    }

    #[test]
    fn what_is_no_sub_command_is_left_to_the_operator() {
        assert_eq!(run(&[]), None);
        assert_eq!(run(&["--cluster-name=alder"]), None);
        assert_eq!(run(&["hive", "status"]), None);
        assert_eq!(run(&["--cluster-name", "status", "hive"]), None);
    }

    #[test]
    fn sub_commands_fail_with_their_exit_codes() {
        assert_eq!(run(&["status", "clustermesh", "-s", "127.0.0.1:1"]), Some(1));
        assert_eq!(run(&["-s", "127.0.0.1:1", "status", "clustermesh"]), Some(1));
        assert_eq!(
            run(&["--debug", "status", "clustermesh"]),
            Some(hive::exit::USAGE)
        );
        assert_eq!(run(&["metrics", "list", "-s", "127.0.0.1:1"]), Some(1));
        assert_eq!(run(&["metrics", "list", "-p", "("]), Some(hive::exit::USAGE));
        assert_eq!(
            run(&["shell", "--shell-sock-path=/nonexistent/shell.sock", "help"]),
            Some(1)
        );
        assert_eq!(
            run(&["troubleshoot", "kvstore", "--etcd-config=/nonexistent"]),
            Some(1)
        );
        assert_eq!(
            run(&["troubleshoot", "clustermesh", "--clustermesh-config=/nonexistent"]),
            Some(1)
        );
        assert_eq!(run(&["status"]), Some(hive::exit::USAGE));
        assert_eq!(run(&["status", "hubble"]), Some(hive::exit::USAGE));
        assert_eq!(run(&["status", "--help"]), Some(0));
    }
}
