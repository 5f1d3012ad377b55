// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh-dbg`: how the remote clusters of a running kvstoremesh are, and why they cannot be reached.

mod status;
mod troubleshoot;

use clap::{Parser, Subcommand};

/// Inspects a running kvstoremesh.
#[derive(Parser, Clone, Debug)]
#[command(name = "skep-clustermesh-apiserver kvstoremesh-dbg")]
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
    let name = "skep-clustermesh-apiserver kvstoremesh-dbg".to_owned();
    let line = match Line::try_parse_from(std::iter::once(name).chain(args)) {
        Ok(line) => line,
        Err(error) => {
            // Help and errors alike; nothing can be done if the terminal is gone.
            let _ = error.print();
            return u8::from(error.use_stderr()) * hive::exit::USAGE;
        }
    };
    let result = match line.command {
        Command::Status(options) => status::run(&options)
            .map(|text| (text, true))
            .map_err(|error| hive::error_chain(&error)),
        Command::Troubleshoot(options) => {
            troubleshoot::run(&options).map_err(|error| hive::error_chain(&error))
        }
    };
    match result {
        Ok((text, is_healthy)) => {
            print!("{text}");
            u8::from(!is_healthy)
        }
        Err(error) => {
            eprintln!("skep-clustermesh-apiserver: {error}");
            1
        }
    }
}
