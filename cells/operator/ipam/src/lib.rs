// SPDX-License-Identifier: Apache-2.0

//! Pod CIDRs of nodes, allocated by the operator in the modes `cluster-pool` and `multi-pool`.
//!
//! - [`cell()`]: keeps `spec.ipam` of all CiliumNodes, and errors in their statuses;
//! - [`ClusterPool`]: which pod CIDRs each node has, all of the same networks; knows no Kubernetes;
//! - [`MultiPool`]: which networks each node has of which CiliumPodIPPool; knows no Kubernetes;
//! - [`PrefixAllocator`]: cuts the networks of a family into prefixes, with an owner each.
//!
//! Feature `metrics` adds `metrics`, the cell that counts and measures.

mod allocator;
mod assign;
mod cell;
mod cluster;
mod config;
#[cfg(feature = "metrics")]
pub mod metrics;
mod multipool;
mod nodes;
mod recorder;
mod rounds;
#[cfg(feature = "testing")]
mod suite;
#[cfg(test)]
mod world;

pub use allocator::{Family, NetworkError, OccupyError, PrefixAllocator};
pub use assign::{AssignError, Assignment, ClusterPool};
pub use cell::cell;
pub use config::{Config, PoolError};
pub use multipool::{
    Allocation, AutoPoolError, AutoPools, MultiPool, MultiPoolAssignment, PoolSpec, PoolSpecError, Request,
    RequestError,
};
pub use recorder::{IpamRecorder, PoolUsage};

hive::catalogue!(cell);
