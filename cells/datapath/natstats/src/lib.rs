// SPDX-License-Identifier: Apache-2.0

//! Who has the source ports of SNAT.
//!
//! Flows from one address of this node to one address and port share the ports above `node-port-range`. [`cell`] walks
//! the NAT maps every `nat-map-stats-interval` and counts the ports that each such tuple has. Table `nat-stats` holds the
//! tuples with most ports; metric `cilium_nat_endpoint_max_connection` is how much of its ports the fullest one has.

mod cell;
mod config;
mod metrics;
mod statistics;
mod table;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use config::Config;
pub use table::NatStat;

hive::catalogue!(cell);
