// SPDX-License-Identifier: Apache-2.0

//! `skep-init`: the commands of the agent's init containers.

use std::{error::Error, io::Write, process::ExitCode};

use clap::Parser;

fn main() -> ExitCode {
    match skep_init::run(skep_init::Line::parse()) {
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
