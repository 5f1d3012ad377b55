// SPDX-License-Identifier: Apache-2.0

//! Pod CIDRs of nodes, allocated by the operator in mode `cluster-pool`.
//!
//! - [`cell()`]: keeps `spec.ipam.podCIDRs` of all CiliumNodes, and errors in their statuses;
//! - [`ClusterPool`]: which pod CIDRs each node has; knows no Kubernetes;
//! - [`PrefixAllocator`]: cuts the networks of a family into prefixes, with an owner each.

mod allocator;
mod assign;
mod cell;
mod config;
mod nodes;
#[cfg(test)]
mod world;

pub use allocator::{Family, NetworkError, OccupyError, PrefixAllocator};
pub use assign::{AssignError, Assignment, ClusterPool};
pub use cell::cell;
pub use config::{Config, PoolError};

hive::catalogue!(cell);
