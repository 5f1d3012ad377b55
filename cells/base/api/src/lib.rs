// SPDX-License-Identifier: Apache-2.0

//! Agent API and status over a unix socket and HTTP.
//!
//! - [`Routes`]: what a cell adds to the API below `/v1`.
//! - [`StatusProbe`]: what a cell adds to the status.
//!
//! Paths and models are those of Cilium's agent, so that its clients work; `/v1/debug/hive` (`tree`, `graph`) and
//! `/v1/debug/db` ([tables](statedb::http)) are our own.

mod cell;
mod config;
mod debug;
mod kubernetes;
mod list;
mod lrp;
mod server;
mod service;
mod status;

pub use cell::cell;
pub use config::Config;
pub use list::json_list;
pub use server::{Routes, ServeError};
pub use status::{ModuleHealth, StatusProbe};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
