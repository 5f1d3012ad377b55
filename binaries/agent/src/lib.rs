// SPDX-License-Identifier: Apache-2.0

//! The node agent: a list of cells.

pub mod build_config;
mod cells;
#[cfg(test)]
mod cilium;
mod cluster;
mod configuration;
mod health;
mod interfaces;
mod pods;
mod status;
mod troubleshoot;
mod unsupported;

pub use cells::cells;
pub use configuration::Configuration;
pub use skep_base_logging::{LogConfig, LogFormat, start_logging};
