// SPDX-License-Identifier: Apache-2.0

//! Shell of a running program: its commands, over a unix socket.
//!
//! A client sends one command per line. The server streams what the command logs and writes, with marker lines
//! `[stdout]` and `[stderr]`, and ends with `<<end>>`, or with the text of the error and `<<error>>`. A client that
//! hangs up cancels its command. Every connection and every command is logged.
//!
//! The socket has mode 0600, and there is no `exec`: a client can do with the process what its commands do.
//!
//! # Features
//!
//! The [`Client`] is always there.
//!
//! * `interactive`: a prompt with history and completion, and what a sub-command `shell` does;
//! * `server`: the server, for commands of the script engine;
//! * `hive`: the server as a cell, with the commands of all cells of a hive.

#![warn(missing_docs)]

#[cfg(feature = "hive")]
mod cell;
mod client;
#[cfg(feature = "hive")]
mod command;
#[cfg(feature = "server")]
mod connection;
#[cfg(feature = "interactive")]
mod interactive;
#[cfg(feature = "interactive")]
mod remote;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "hive")]
pub use cell::{Config, cell};
pub use client::{Client, ClientError};
#[cfg(feature = "interactive")]
pub use interactive::{InteractiveError, interactive};
#[cfg(feature = "interactive")]
pub use remote::{Remote, RemoteError, line};
#[cfg(feature = "server")]
pub use server::Server;

#[cfg(feature = "hive")]
hive::catalogue!(cell);

/// Name of the script in errors.
const FILE: &str = "<stdin>";
/// Ends the output of a command that succeeded.
const END: &str = "<<end>>";
/// Ends the output of a command that failed.
const ERROR: &str = "<<error>>";
/// Lines that say which buffer the text behind them is.
const MARKERS: [&str; 2] = ["[stdout]", "[stderr]"];

/// Whether a line ends the session instead of running a command.
///
/// ```
/// assert!(skep_shell::closes(" exit"));
/// assert!(!skep_shell::closes("exit now"));
/// ```
pub fn closes(line: &str) -> bool {
    ["stop", "exit", "quit"].contains(&line.trim())
}

#[cfg(test)]
#[cfg(feature = "server")]
mod tests;
