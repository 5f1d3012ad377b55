// SPDX-License-Identifier: Apache-2.0

//! The maps of the datapath.
//!
//! [`cell`] opens the maps of all families that are registered in `skep-bpf-maps` and whose owners are part of the
//! program: an owner provides a [`MapOwner`] and takes handles from [`Maps`]. One start hook creates, replaces and unpins
//! them. Writes are counted (`cilium_bpf_map_ops_total`), those that failed are remembered, the last are kept where
//! `bpf-map-event-buffers` says so, and `cilium_bpf_map_pressure` says how full maps are. `api::cell` (feature `api`)
//! shows all of it as `GET /v1/map`.
//!
//! What has to be written to several maps in an order goes through a [`transaction`]. Families with a map for each instance
//! are [`InstanceMaps`], the map of maps that leads to them is an [`OuterMap`].
//!
//! In the kernel the maps are pinned on a BPF file system that is found or mounted, and claimed for this process. The
//! crate builds without clang and libbpf: who loads programs provides [`FieldNames`], so that tools which dump new maps
//! show the names of their fields. With [`in_memory_cell`] the same handles stand on maps in memory.

#![warn(missing_docs)]

#[cfg(feature = "api")]
pub mod api;
mod buffer;
mod cell;
mod config;
mod instances;
mod ip;
mod maps;
mod observer;
mod owner;
mod sizes;
mod store;
pub mod transaction;

pub use buffer::{Action, BufferError, BufferSettings, EventBuffer, MapEvent};
pub use cell::{PressureTrigger, cell, in_memory_cell};
pub use config::{Config, EventConfig};
pub use instances::{InstanceMaps, OuterMap};
pub use ip::{IpEither, IpPair};
pub use maps::{Maps, OpenMap};
pub use observer::FailedEntry;
pub use owner::MapOwner;
pub use sizes::{lb_map_sizes, packet_map_sizes};
pub use store::{FieldNames, PinCheck};

hive::catalogue!(cell);
hive::catalogue!(in_memory_cell);
