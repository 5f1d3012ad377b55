// SPDX-License-Identifier: Apache-2.0

//! Configures CoreDNS for the multi-cluster services API: names of `clusterset.local` are answered from ServiceImports.
//!
//! - [`corefile::add_clusterset`]: the change of a Corefile, a function of its text;
//! - [`cell()`]: changes the ConfigMap of CoreDNS when the program starts, and restarts its Deployment;
//! - [`exit_cell`]: ends the program after that.
//!
//! A Corefile that names the zone of the cluster set is not changed, and nothing is restarted.

mod cell;
mod config;
pub mod corefile;
mod deployment;
#[cfg(feature = "testing")]
mod suite;
mod update;

pub use cell::{cell, exit_cell};
pub use config::Config;
pub use deployment::DeploymentError;
pub use update::{CoreDns, Outcome, UpdateError};

hive::catalogue!(cell);
hive::catalogue!(exit_cell);

#[cfg(test)]
mod tests;
