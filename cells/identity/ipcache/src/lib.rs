// SPDX-License-Identifier: Apache-2.0

//! Which addresses are nodes, for the programs in the kernel.
//!
//! Input: Kubernetes `Node` objects and table `node-addresses`. Desired state: table `node-identities`. Output:
//! map `cilium_ipcache_v2`, where every address of this node has identity 1 (host) and every address of another node
//! identity 6 (remote node). The socket programs let processes reach NodePorts through these addresses only.

mod cell;
mod map;
mod reconciler;
mod reflector;
mod table;

pub use cell::cell;
pub use map::Ipcache;
pub use table::NodeIdentity;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
