// SPDX-License-Identifier: Apache-2.0

//! `skep-init`: prepares a node for the agent, and cleans it up: the commands of the agent's init containers.
//!
//! Each command can run any number of times, says what it changes before it does, and ends at the first error, which
//! names the path. `skep-agent build-config` is the agent's: it needs a client of Kubernetes.

mod clean;
mod cni;
mod error;
mod mounts;
mod sysctl;
mod wait;

use std::{error::Error, io::Write, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::error::InitError;

/// Prepares a node for the agent.
#[derive(Debug, Parser)]
#[command(name = "skep-init", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount cgroup v2 unless it is mounted.
    MountCgroup(mounts::CgroupArgs),
    /// Mount the BPF file system unless it is mounted.
    MountBpfFs(mounts::BpfArgs),
    /// Disable reverse path filtering for interfaces of the datapath, now and at the next boot.
    SysctlFix(sysctl::Args),
    /// Remove state of an earlier agent.
    CleanState(clean::Args),
    /// Install the CNI plugins on the host.
    InstallCni(cni::InstallArgs),
    /// Remove the CNI configuration from the host.
    UninstallCni(cni::UninstallArgs),
    /// Wait until a file has contents, or a socket exists.
    WaitFor(wait::Args),
}

fn main() -> ExitCode {
    match run(Line::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            let _ = writeln!(std::io::stderr(), "skep-init: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), InitError> {
    match command {
        Command::MountCgroup(args) => mounts::cgroup(&args),
        Command::MountBpfFs(args) => mounts::bpf(&args),
        Command::SysctlFix(args) => sysctl::run(&args),
        Command::CleanState(args) => clean::run(&args),
        Command::InstallCni(args) => cni::install(&args),
        Command::UninstallCni(args) => cni::uninstall(&args),
        Command::WaitFor(args) => wait::run(&args),
    }
}

/// Prints what is done next. A reader that is gone does not matter.
fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
