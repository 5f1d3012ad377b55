// SPDX-License-Identifier: Apache-2.0

//! What the operator does in the key-value store.
//!
//! Cells for the leader of an operator, each on its own; without a key-value store they do nothing:
//!
//! - [`double_write`]: compares the identities there with CiliumIdentities;
//! - [`identities`]: deletes identities that no node uses;
//! - [`locks`]: deletes locks of identities whose holders hang;
//! - [`nodes`]: deletes the keys of nodes that left the cluster;
//! - [`services`]: publishes global services for other clusters.
//!
//! Feature `suites` adds the script suites `operator-nodesgc` and `operator-watchers`.
//!
//! [`health`] is for all replicas: an operator whose store is unreachable is not healthy.

pub mod double_write;
pub mod health;
pub mod identities;
pub mod locks;
pub mod nodes;
pub mod services;
#[cfg(feature = "suites")]
mod suite;

#[cfg(test)]
mod tests;
