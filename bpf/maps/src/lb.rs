// SPDX-License-Identifier: Apache-2.0

//! Load-balancer maps: families, keys, values, sizes, texts.
//!
//! Layouts are a contract with everything that reads the pinned maps (the programs, `bpftool`, other
//! tools): each type states the byte order of its fields, has no implicit padding, and its size and
//! offsets are asserted here, in the C twin, and against the BTF of the compiled object.
//!
//! Integers in network byte order have the type [`U16`]; plain integers are in host order.
//! *Service ids* ("reverse-NAT ids") are in network byte order in every map.

mod affinity;
mod backend;
mod flags;
mod health;
mod ids;
mod reverse;
mod service;
mod sizes;
mod source_range;

pub use affinity::*;
pub use backend::*;
pub use flags::*;
pub use health::*;
pub use ids::*;
pub use reverse::*;
pub use service::*;
pub use sizes::*;
pub use source_range::*;
pub use zerocopy::network_endian::U16;

/// The owner: the cell that writes these maps.
pub const OWNER: &str = "loadbalancer";

/// Scope of a service entry: which traffic policy chose its backends.
///
/// Every frontend has an external entry. Frontends whose two traffic policies differ
/// ([`ServiceFlags::TWO_SCOPES`]) have an internal one too, which east-west lookups use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Scope {
    /// Chosen by `externalTrafficPolicy`.
    #[default]
    External = 0,
    /// Chosen by `internalTrafficPolicy`.
    Internal = 1,
}

impl Scope {
    /// The scope stored as `raw`; anything but 0 and 1 is unknown.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::External),
            1 => Some(Self::Internal),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
