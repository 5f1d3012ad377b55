// SPDX-License-Identifier: Apache-2.0

//! The `skep` command: asks the agent over its sockets, reads and changes pinned maps.

mod address;
mod agent;
mod bpf;
mod bpf_policy;
mod cleanup;
mod cluster;
mod command;
mod config;
mod datapath;
mod debuginfo;
mod duration;
mod edit;
mod encrypt;
mod endpoint;
mod failure;
mod features;
mod flows;
mod fqdn;
mod health;
mod identity;
mod inventory;
#[cfg(feature = "kvstore")]
mod kvstore;
mod load;
mod lrp;
mod maps;
mod mesh;
mod models;
mod monitor;
mod options;
mod own;
mod policy;
mod prefilter;
mod preflight;
mod print;
mod service;
mod status;
mod sysdump;
mod version;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(error) = cluster::start(command::SOCKET) {
        return failure::report(&failure::fatal(error));
    }
    let line = match command::Line::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            return failure::refuse(&error, &arguments);
        }
    };
    command::run(line).unwrap_or_else(|error| failure::report(&*error))
}
