// SPDX-License-Identifier: Apache-2.0

//! Prepares a node for the agent, and cleans it up: the commands of the agent's init containers.
//!
//! Each command can run any number of times, says what it changes before it does, and ends at the first error, which
//! names the path. `skep-agent build-config` is the agent's: it needs a client of Kubernetes.

mod clean;
mod cni;
mod error;
mod mounts;
mod sysctl;
mod wait;

use std::io::Write;

use clap::{Parser, Subcommand};

pub use crate::{
    clean::{Leftover, Places, leftovers},
    error::InitError,
};

/// Prepares a node for the agent.
#[derive(Debug, Parser)]
#[command(name = "skep-init", version)]
pub struct Line {
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

/// Runs the command of a command line.
pub fn run(line: Line) -> Result<(), InitError> {
    match line.command {
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
