// SPDX-License-Identifier: Apache-2.0

//! The `skep` command: asks the agent over its sockets, reads and changes pinned maps.

mod address;
mod command;
mod datapath;
mod duration;
mod edit;
mod endpoint;
mod flows;
mod identity;
mod inventory;
#[cfg(feature = "kvstore")]
mod kvstore;
mod lrp;
mod maps;
mod mesh;
mod monitor;
mod print;
mod service;
mod status;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let line = command::Line::parse();
    match command::run(line) {
        Ok(code) => code,
        Err(err) => {
            let mut text = format!("skep: {err}");
            let mut cause = std::error::Error::source(&*err);
            while let Some(next) = cause {
                text.push_str(&format!(": {next}"));
                cause = next.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
