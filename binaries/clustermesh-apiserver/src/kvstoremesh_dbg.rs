// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh-dbg`: how the remote clusters of a running kvstoremesh are, and why they cannot be reached.

use clap::{Args, Parser, Subcommand};
use skep_clustermesh_cli::{line, status, troubleshoot};

use crate::PROGRAM;

/// Inspects a running kvstoremesh.
#[derive(Parser, Clone, Debug)]
pub(crate) struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Print the status of remote clusters that are not ready; with `--verbose`, of all.
    Status(StatusOptions),
    /// Check the connections to remote clusters, step by step.
    Troubleshoot(troubleshoot::RemoteOptions),
}

#[derive(Args, Clone, Debug)]
struct StatusOptions {
    #[command(flatten)]
    status: status::Options,
    /// Address of the API of kvstoremesh.
    #[arg(
        long,
        short = 'H',
        env = "CILIUM_API_SERVE_ADDR",
        default_value = "localhost:9889"
    )]
    host: String,
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub(crate) fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    let line: Line = match line::parse(&format!("{PROGRAM} kvstoremesh-dbg"), args) {
        Ok(line) => line,
        Err(code) => return code,
    };
    match line.command {
        Command::Status(StatusOptions { status, host }) => {
            let server = status::Server {
                name: "kvstoremesh",
                title: "KVStoreMesh",
                host: &host,
            };
            line::report(PROGRAM, status::run(&status, server).map(|text| (text, true)))
        }
        Command::Troubleshoot(options) => line::report(PROGRAM, troubleshoot::remote(&options)),
    }
}
