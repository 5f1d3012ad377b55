// SPDX-License-Identifier: Apache-2.0

//! The local node, its addresses and devices.
//!
//! | table | row | written from |
//! |---|---|---|
//! | `devices` | [`Device`] | the kernel, through netlink |
//! | `routes` | [`Route`] | 〃 |
//! | `neighbors` | [`Neighbor`] | 〃 |
//! | `node-addresses` | [`NodeAddress`] | `devices` and the local node |
//! | `local-node` | [`LocalNode`] | the Kubernetes Node, else `node-addresses`; through [`LocalNodeStore`] |
//!
//! [`cell`] is all of it; [`cells`] has the parts. They require [`NodeName`](skep_base_settings::NodeName).

#![warn(missing_docs)]

mod address;
mod cell;
mod config;
mod derive;
mod device;
mod local;
mod neighbor;
mod netlink;
mod reflector;
pub mod route;
mod selection;
mod source;
mod store;
#[cfg(feature = "testing")]
mod suite;
mod sync;

pub use address::{NodeAddress, NodeAddressKey, WILDCARD_DEVICE};
pub use cell::{cell, cells};
pub use config::{AddressConfig, DeviceConfig};
pub use derive::{AddressRules, device_addresses, fallback_addresses, is_private};
pub use device::{AddressState, Device, DeviceAddress, DeviceFlags, HardwareAddr, Vlan};
pub use local::LocalNode;
pub use neighbor::{Neighbor, NeighborKey};
pub use netlink::Netlink;
pub use route::{Route, RouteKey};
pub use selection::{DeviceFilter, Surroundings, select};
pub use source::{DeviceEvent, DeviceEvents, DeviceSource, Link, LinkAddress, SourceError};
pub use store::LocalNodeStore;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
