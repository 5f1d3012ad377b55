// SPDX-License-Identifier: Apache-2.0

//! `skep cleanup`: removes what an agent left on the node.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use clap::Args;
use skep_init::{Leftover, Places};

use crate::print;

/// Options of `skep cleanup`.
#[derive(Debug, Args)]
pub(crate) struct CleanupOptions {
    /// Do not ask.
    #[arg(short, long)]
    force: bool,
    /// Remove all state (default).
    #[arg(long)]
    all_state: bool,
    /// Remove programs and maps only.
    #[arg(long, conflicts_with = "all_state")]
    bpf_state: bool,
    /// Directory of the agent's sockets and state.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cilium")]
    state_dir: PathBuf,
    /// The CNI configuration written by the agent.
    #[arg(
        long,
        env = "WRITE_CNI_CONF_WHEN_READY",
        value_name = "FILE",
        default_value = "/etc/cni/net.d/05-cilium.conflist"
    )]
    cni_conf: PathBuf,
}

pub(crate) fn run(options: &CleanupOptions, bpf_root: &Path) -> Result<String, Box<dyn Error>> {
    let places = Places {
        bpf_root: bpf_root.to_owned(),
        state_dir: options.state_dir.clone(),
        cni_conf: Some(options.cni_conf.clone()),
    };
    let found = skep_init::leftovers(&places, !options.bpf_state)?;
    if found.is_empty() {
        return Ok("Nothing to remove\n".to_owned());
    }
    if !options.force {
        let mut question = "Warning: Destructive operation. You are about to remove:\n".to_owned();
        for leftover in &found {
            question.push_str(&line(leftover));
        }
        question.push_str("Do you want to continue (y/N): ");
        if !print::confirmed(&question)? {
            return Ok("Nothing removed\n".to_owned());
        }
    }
    let mut failure = None;
    for leftover in &found {
        println!("{leftover}");
        // The rest can go all the same.
        if let Err(error) = leftover.remove() {
            failure.get_or_insert(error);
        }
    }
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(String::new()),
    }
}

fn line(leftover: &Leftover) -> String {
    let what = match leftover {
        Leftover::Filter {
            interface, program, ..
        } => format!("program {program} of interface {interface}"),
        Leftover::File(path) => path.display().to_string(),
        Leftover::Directory(path) => format!("{} with all below", path.display()),
        Leftover::Interface(name) => format!("interface {name}"),
        Leftover::Routes(routes) => format!("{} routes", routes.len()),
    };
    format!("- {what}\n")
}
