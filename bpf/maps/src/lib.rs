// SPDX-License-Identifier: Apache-2.0

//! The families of BPF maps: Rust twins of keys and values, names, types, sizes, owners, texts.
//!
//! A family is one description ([`MapFamily`], [`NestedFamily`]) beside its types, and registered: what opens, lists,
//! counts or shows maps asks the registry ([`families`], [`find`]) and knows none by name.
//!
//! - [`lb`]: load balancing.
//! - [`node`]: which addresses are nodes.
//! - [`event`]: what programs report.
//! - `testing` (feature `testing`): services written straight into the maps.
//!
//! Access to maps is in `skep-bpf-sys`, the programs that use them in `skep-bpf-programs`.

mod dump;
pub mod event;
mod family;
pub mod layout;
pub mod lb;
pub mod node;
mod sizes;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;

pub use dump::Dump;
#[doc(hidden)]
pub use family::Registered;
pub use family::{Family, IpFamily, MapFamily, NestedFamily, Side, Size, families, find, names_of};
#[doc(hidden)]
pub use inventory;
pub use sizes::{MapSizes, SizeKey};
