// SPDX-License-Identifier: Apache-2.0

//! Network policies of Kubernetes and of a directory, as table `network-policies`.
//!
//! A row is an object as its source has it: NetworkPolicy, CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy,
//! ClusterNetworkPolicy, CiliumCIDRGroup, or a file of `static-cnp-path`. Nothing is validated here. Changes of the status or of the
//! version of an object write no row. The table is initialized when every kind that is read was listed.

mod cell;
mod files;
mod kubernetes;
mod table;
#[cfg(test)]
mod tests;

pub use cell::{Config, cell};
pub use table::{Origin, PolicyRow};

hive::catalogue!(cell);
