// SPDX-License-Identifier: Apache-2.0

//! The CNI plugin: makes the interfaces of a pod, and makes it an endpoint of the agent.
//!
//! A container runtime runs it with the verb in `CNI_COMMAND` and the configuration on the standard input; the answer is on
//! the standard output. Texts of errors are those of Cilium's plugin, which runtimes and people look for.
//!
//! - [`call`]: environment, configuration, arguments; [`output`]: results of all versions, [`error`]: errors with codes.
//! - [`add`], [`delete`], [`check`]: the verbs; [`chain`]: behind another plugin.
//! - [`agent`], [`ipam`], [`queue`], [`link`], [`removal`]: the agent's API, addresses, deletions while it is
//!   down, interfaces.

mod add;
mod agent;
mod call;
mod chain;
mod check;
mod delete;
mod error;
mod ipam;
mod link;
mod log;
mod output;
mod queue;
mod removal;

use std::{
    io::{Read as _, Write as _},
    process::ExitCode,
};

use serde_json::{Value, json};

use crate::{
    call::{Call, Verb},
    error::{CniError, code},
    log::Log,
};

/// Versions of the specification that are served, oldest first.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [argument, interface] = arguments.as_slice()
        && argument == removal::ARGUMENT
    {
        return match removal::here(interface) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = std::io::stderr().write_all(error.as_bytes());
                ExitCode::FAILURE
            }
        };
    }
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    match command.as_str() {
        "" => {
            let versions = VERSIONS.join(", ");
            let _ = writeln!(
                std::io::stderr(),
                "Skep CNI plugin {}\nCNI protocol versions supported: {versions}",
                env!("CARGO_PKG_VERSION")
            );
            return ExitCode::SUCCESS;
        }
        "VERSION" => {
            let newest = VERSIONS[VERSIONS.len() - 1];
            let answer = json!({"cniVersion": newest, "supportedVersions": VERSIONS});
            return print(&format!("{answer}\n"));
        }
        _ => {}
    }
    let mut input = Vec::new();
    let read = std::io::stdin().read_to_end(&mut input).map_err(|error| {
        CniError::new(
            code::IO,
            format!("error reading from stdin: {}", error::plain(&error)),
        )
    });
    match read.and_then(|_| run(&command, &input)) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(result)) => print(&output::text(&result)),
        Err(error) => {
            print(&output::text(&error.document()));
            ExitCode::FAILURE
        }
    }
}

/// Runs a verb; returns the result to print.
fn run(command: &str, input: &[u8]) -> Result<Option<Value>, CniError> {
    let call = Call::read(command, input)?;
    let log = Log::new(&call);
    match call.verb {
        Verb::Add => match add::add(&call, &log) {
            Ok(result) => Ok(Some(result.of_version(&call.version))),
            Err(error) => {
                log.error("CNI ADD failed", &[("error", &error.message)]);
                Err(error)
            }
        },
        Verb::Del => delete::delete(&call, &log).map(|()| None),
        Verb::Check => check::check(&call, &log).map(|()| None),
        Verb::Status => check::status(&call, &log).map(|()| None),
        // The agent deletes endpoints whose interface is gone.
        Verb::Gc => Ok(None),
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
