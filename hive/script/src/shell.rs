// SPDX-License-Identifier: Apache-2.0

//! The commands of a running process, over a unix socket.
//!
//! A client sends one command per line. The [`Server`] streams what the command logs and writes, with marker lines
//! `[stdout]` and `[stderr]`, and ends with `<<end>>`, or with the text of the error and `<<error>>`. A client that
//! hangs up cancels its command. Every connection and every command is logged.
//!
//! The socket has mode 0600, and `exec` is not offered: who reaches the socket can still do with the process whatever
//! its commands do.

mod client;
mod connection;
#[cfg(feature = "interactive")]
mod interactive;
mod server;

pub use client::{Client, ClientError};
#[cfg(feature = "interactive")]
pub use interactive::{InteractiveError, interactive};
pub use server::{Server, ServerError};

/// Ends the output of a command that succeeded.
const END: &str = "<<end>>";
/// Ends the output of a command that failed.
const ERROR: &str = "<<error>>";
/// Lines that say which buffer the text behind them is.
const MARKERS: [&str; 2] = ["[stdout]", "[stderr]"];

/// Whether a line ends the conversation instead of running a command.
///
/// ```
/// assert!(hive_script::shell::closes(" exit"));
/// assert!(!hive_script::shell::closes("exit now"));
/// ```
pub fn closes(line: &str) -> bool {
    ["stop", "exit", "quit"].contains(&line.trim())
}

#[cfg(test)]
mod tests;
