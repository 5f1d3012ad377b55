// SPDX-License-Identifier: Apache-2.0

//! Command lines of sub-commands that are no servers.

use std::time::Duration;

use clap::Parser;

/// Reads options from the arguments of a sub-command, such as `skep-operator status`.
///
/// # Errors
///
/// The exit code, after help or the error was printed.
pub fn parse<T: Parser>(command: &str, args: impl IntoIterator<Item = String>) -> Result<T, u8> {
    let name = std::iter::once(command.to_owned());
    T::try_parse_from(name.chain(args)).map_err(|error| {
        // Help and errors alike; nothing can be done if the terminal is gone.
        let _ = error.print();
        u8::from(error.use_stderr()) * hive::exit::USAGE
    })
}

/// Prints a report, or why `program` has none; the exit code is 0 if all is well.
pub fn report<E: std::error::Error + 'static>(program: &str, result: Result<(String, bool), E>) -> u8 {
    match result {
        Ok((text, is_healthy)) => {
            hive::console::print(text);
            u8::from(!is_healthy)
        }
        Err(error) => failed(program, &error),
    }
}

/// Prints an error; returns the exit code.
pub fn failed(program: &str, error: &(dyn std::error::Error + 'static)) -> u8 {
    hive::console::error_line(format_args!("{program}: {}", hive::error_chain(error)));
    1
}

/// A duration in Go's form, such as `5s`.
///
/// # Errors
///
/// What is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    skep_duration::parse_duration(text).map_err(|error| error.to_string())
}
