// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh-dbg`: how the remote clusters of a running kvstoremesh are, and why they cannot be reached.

mod status;
mod troubleshoot;

use clap::{Parser, Subcommand};

use crate::line;

/// Inspects a running kvstoremesh.
#[derive(Parser, Clone, Debug)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Print the status of the remote clusters.
    Status(status::Options),
    /// Check the connections to remote clusters, step by step.
    Troubleshoot(troubleshoot::Options),
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub(crate) fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    let line: Line = match line::parse("kvstoremesh-dbg", args) {
        Ok(line) => line,
        Err(code) => return code,
    };
    match line.command {
        Command::Status(options) => line::report(status::run(&options).map(|text| (text, true))),
        Command::Troubleshoot(options) => line::report(troubleshoot::run(&options)),
    }
}
