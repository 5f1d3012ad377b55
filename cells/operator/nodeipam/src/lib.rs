// SPDX-License-Identifier: Apache-2.0

//! Node-IPAM: Services of type LoadBalancer get addresses of nodes.
//!
//! No port is opened: the agents serve the addresses as frontends.

mod addresses;
mod cell;
mod controller;

pub use cell::{Config, cell};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
