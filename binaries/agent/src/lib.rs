// SPDX-License-Identifier: Apache-2.0

//! The node agent: a list of cells.

pub mod build_config;
mod cells;
mod cgroups;
#[cfg(test)]
mod cilium;
mod cluster;
mod configuration;
mod debug_info;
mod feature_metrics;
mod features;
mod health;
mod interfaces;
mod map_states;
mod pods;
mod prefilter;
pub mod preflight;
mod status;
mod troubleshoot;
mod unsupported;

pub use cells::cells;
pub use configuration::Configuration;
pub use skep_base_logging::{LogConfig, LogFormat, start_logging};
