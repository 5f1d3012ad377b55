// SPDX-License-Identifier: Apache-2.0

//! Command lines of the sub-commands that are no servers.

use std::time::Duration;

use clap::Parser;

/// Reads options from the arguments of a sub-command.
///
/// # Errors
///
/// The exit code, after help or the error was printed.
pub(crate) fn parse<T: Parser>(command: &str, args: Vec<String>) -> Result<T, u8> {
    let name = format!("skep-clustermesh-apiserver {command}");
    T::try_parse_from(std::iter::once(name).chain(args)).map_err(|error| {
        // Help and errors alike; nothing can be done if the terminal is gone.
        let _ = error.print();
        u8::from(error.use_stderr()) * hive::exit::USAGE
    })
}

/// Prints a report, or why there is none; the exit code is 0 if all is well.
pub(crate) fn report<E: std::error::Error + 'static>(result: Result<(String, bool), E>) -> u8 {
    match result {
        Ok((text, is_healthy)) => {
            print!("{text}");
            u8::from(!is_healthy)
        }
        Err(error) => failed(&error),
    }
}

/// Prints an error; returns the exit code.
pub(crate) fn failed(error: &(dyn std::error::Error + 'static)) -> u8 {
    eprintln!("skep-clustermesh-apiserver: {}", hive::error_chain(error));
    1
}

/// A duration in Go's form, such as `5s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    skep_duration::parse_duration(text).map_err(|error| error.to_string())
}
