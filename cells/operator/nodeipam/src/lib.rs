// SPDX-License-Identifier: Apache-2.0

//! Node-IPAM: Services of type LoadBalancer get addresses of nodes.
//!
//! - [`cell()`]: keeps the ingress of the Services;
//! - [`World`]: nodes, endpoints and Services, and the ingress of each Service; knows no Kubernetes client.
//!
//! No port is opened: the agents serve the addresses as frontends.

mod cell;
mod controller;
mod world;

pub use cell::{Config, cell};
pub use world::{SelectorInvalid, World, is_responsible};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
