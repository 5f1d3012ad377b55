// SPDX-License-Identifier: Apache-2.0

//! The families of BPF maps: Rust twins of keys and values, names, types, sizes, owners, texts.
//!
//! A family is one description ([`MapFamily`], [`NestedFamily`]) beside its types, and registered: what opens, lists,
//! counts or shows maps asks the registry ([`families`], [`find`]) and knows none by name.
//!
//! - [`lb`]: load balancing.
//! - [`conntrack`], [`nat`], [`fragment`]: what programs remember of flows.
//! - [`flow`]: the flow table.
//! - [`ip_masq`]: networks without masquerade.
//! - [`collect`]: removing them.
//! - [`endpoint`], [`policy`]: who is on this node, and what they may send and receive.
//! - [`node`]: which addresses are nodes.
//! - [`event`]: what programs report.
//! - [`throttle`]: rates of endpoints.
//! - `testing` (feature `testing`): services written straight into the maps.
//!
//! Access to maps is in `skep-bpf-sys`, the programs that use them in `skep-bpf-programs`.

pub mod collect;
pub mod conntrack;
mod dump;
pub mod endpoint;
pub mod event;
mod family;
pub mod flow;
pub mod fragment;
pub mod ip_masq;
pub mod layout;
pub mod lb;
pub mod nat;
pub mod node;
pub mod policy;
mod sizes;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod throttle;

pub use dump::Dump;
#[doc(hidden)]
pub use family::Registered;
pub use family::{
    Family, IpFamily, MapFamily, NestedFamily, OuterFamily, Side, Size, families, find, names_of,
};
#[doc(hidden)]
pub use inventory;
pub use sizes::{MapSizes, SizeKey};
