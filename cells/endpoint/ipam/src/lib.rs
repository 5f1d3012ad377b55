// SPDX-License-Identifier: Apache-2.0

//! IPAM: allocates the addresses of pods and of the node itself.
//!
//! [`Ipam`] is the one owner of addresses. The mode (`--ipam`) says what it allocates from:
//!
//! | mode | networks |
//! |---|---|
//! | `kubernetes` | pod CIDRs of the Node, else its annotations |
//! | `cluster-pool` | pod CIDRs of the own CiliumNode |
//! | `multi-pool` | networks of pools in the own CiliumNode, requested there by demand |
//! | `crd`, `eni`, `azure`, `alibabacloud` | single addresses in the own CiliumNode |
//! | `delegated-plugin` | none: another CNI plugin allocates |
//!
//! At start: [`Ipam::ready`] (the node has its networks), then the addresses of endpoints are restored and
//! [`Ipam::restore_finished`] is called, then table `infrastructure-addresses` is filled: router, ingress, health. From then
//! on the API allocates. Nothing is stored: addresses in use are those of endpoints and of the node.

mod allocator;
#[cfg(feature = "api")]
pub mod api;
mod cell;
#[cfg(feature = "testing")]
mod command;
mod config;
mod error;
mod family;
mod infrastructure;
mod ipam;
mod metrics;
mod pools;
mod range;
mod selector;
mod single;
pub mod sources;
#[cfg(feature = "testing")]
mod suite;
mod users;

pub use cell::cell;
pub use config::{Config, Mode};
pub use error::{IpamError, SelectionCause};
pub use family::Family;
pub use infrastructure::{InfrastructureAddress, NodeOwner};
pub use ipam::{Allocation, Allocations, EXPIRATION, Ipam, OwnedAddress};
pub use metrics::{AddressMetrics, IpamMetrics};
pub use range::{Ends, Range};
pub use selector::PoolSelector;
pub use users::AddressUsers;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
