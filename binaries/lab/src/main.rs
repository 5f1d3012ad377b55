// SPDX-License-Identifier: Apache-2.0

//! `skep-lab`: clusters of network namespaces on one machine.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use skep_lab::{
    echo::{Calls, EchoServer},
    enter::{self, Placement},
};

/// Clusters of network namespaces on one machine.
#[derive(Debug, Parser)]
#[command(name = "skep-lab", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Call an echo server and count who answers.
    Call(Calls),
    /// Serve as an echo server (what pods of the lab run).
    Echo(EchoServer),
    /// Start a program in a place of the lab (used by the lab itself).
    #[command(hide = true)]
    Place(Placement),
    /// Hold namespaces open until killed (used by the lab itself).
    #[command(hide = true)]
    Hold,
    /// Remove the pin of a network namespace (used by the lab itself).
    #[command(hide = true)]
    Unpin {
        /// The pin.
        path: PathBuf,
    },
}

fn main() -> ExitCode {
    let line = Line::parse();
    match run(line.command) {
        Ok(code) => code,
        Err(err) => {
            eprintln!("skep-lab: {}", chain(&*err));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        // Before any thread exists: namespaces are entered by a process of one thread.
        Command::Place(placement) => match placement.become_program()? {},
        Command::Hold => loop {
            std::thread::park();
        },
        Command::Unpin { path } => {
            enter::unpin(&path);
            Ok(ExitCode::SUCCESS)
        }
        other => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(run_async(other)),
    }
}

async fn run_async(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        Command::Call(calls) => {
            let outcome = calls.run().await?;
            if calls.json {
                println!("{}", serde_json::to_string(&outcome)?);
            } else {
                println!("{outcome}");
            }
            Ok(if outcome.failed == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::Echo(server) => {
            server.serve().await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Place(_) | Command::Hold | Command::Unpin { .. } => Ok(ExitCode::FAILURE),
    }
}

/// The error and its causes, on one line.
fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
