// SPDX-License-Identifier: Apache-2.0

//! Garbage collection of conntrack and NAT entries: which go, and a collector that works by batch operations.
//!
//! An entry goes when its flow has ended, when one of its addresses is that of an endpoint that is gone, or with all others.
//! The NAT entries of a flow go with its egress entry. NAT entries whose flow nothing tracks are *orphans*.
//!
//! The agent collects inside the kernel (`skep-bpf-programs`); [`BatchCollector`] is for kernels without iterators, and for
//! programs without a compiler. Both keep the same rules: those of `bpf/include/conntrack/collect.inc.h`.

mod batch;
mod flow;

use std::{collections::BTreeSet, net::IpAddr};

use skep_bpf_sys::MapError;

use crate::{
    Family,
    conntrack::{CT_ANY4, CT_ANY6, CT_TCP4, CT_TCP6},
    nat::{NAT4, NAT6},
};

pub use self::{
    batch::{BatchCollector, Clock},
    flow::FlowKey,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowMap {
    /// TCP over IPv4.
    Tcp4,
    /// Other protocols over IPv4.
    Any4,
    /// TCP over IPv6.
    Tcp6,
    /// Other protocols over IPv6.
    Any6,
}

impl FlowMap {
    /// All of them, in the order of a pass.
    pub const ALL: [Self; 4] = [Self::Tcp4, Self::Any4, Self::Tcp6, Self::Any6];

    pub fn family(self) -> &'static Family {
        match self {
            Self::Tcp4 => &CT_TCP4.family,
            Self::Any4 => &CT_ANY4.family,
            Self::Tcp6 => &CT_TCP6.family,
            Self::Any6 => &CT_ANY6.family,
        }
    }

    /// Whether its flows are of IPv6.
    pub const fn is_ipv6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Any6)
    }

    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }
}

/// The family of the NAT map of an address family.
pub fn nat_family(is_ipv6: bool) -> &'static Family {
    if is_ipv6 { &NAT6.family } else { &NAT4.family }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// Those of flows that have ended.
    Ended,
    /// Those, and all whose source or destination is one of these addresses.
    Addresses(BTreeSet<IpAddr>),
    All,
}

impl Removal {
    pub fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let listed = match self {
            Self::Addresses(addresses) => Some(addresses),
            Self::Ended | Self::All => None,
        };
        listed.into_iter().flatten()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NatCount {
    pub forward: u64,
    pub reverse: u64,
}

impl NatCount {
    pub fn add(&mut self, other: Self) {
        self.forward += other.forward;
        self.reverse += other.reverse;
    }

    pub const fn total(self) -> u64 {
        self.forward + self.reverse
    }
}

/// What a pass over a conntrack map did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    pub alive: u64,
    pub deleted: u64,
    /// NAT entries that were deleted with them.
    pub nat_deleted: NatCount,
}

/// What a pass over a NAT map did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    pub alive: NatCount,
    pub deleted: NatCount,
}

/// Why a pass ended early. What was deleted until then is gone.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A map cannot be read or written.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The clock of the maps cannot be read.
    #[error("the clock of map {map} cannot be read")]
    Clock {
        map: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The program that removes the entries of a map did not come to its end.
    #[error("entries of map {map} cannot be collected")]
    Iterate {
        map: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// More addresses than the program takes at once.
    #[error("entries of {count} addresses cannot be removed at once, at most {max}")]
    Addresses { count: usize, max: usize },
}

pub trait FlowCollector: Send + Sync {
    /// Most entries of a conntrack map; `None` if it is not there.
    fn max_entries(&self, map: FlowMap) -> Option<u32>;

    /// How many entries a conntrack map has, if that is known without a walk.
    fn count(&self, map: FlowMap) -> Option<u64>;

    /// Most NAT entries of an address family; `None` if its map is not there.
    fn max_nat_entries(&self, is_ipv6: bool) -> Option<u32>;

    /// How many NAT entries an address family has, if that is known without a walk.
    fn count_nat(&self, is_ipv6: bool) -> Option<u64>;

    /// Counts the NAT entries of an address family by a walk. A map that is not there is empty.
    ///
    /// # Errors
    ///
    /// [`CollectError`] if the walk did not come to its end.
    fn walk_nat(&self, is_ipv6: bool) -> Result<u64, CollectError>;

    /// Removes entries of a conntrack map, with their NAT entries. A map that is not there is empty.
    ///
    /// # Errors
    ///
    /// [`CollectError`] if the pass did not come to its end.
    fn collect(&self, map: FlowMap, removal: &Removal) -> Result<Collected, CollectError>;

    /// Removes NAT entries of an address family whose flows nothing tracks.
    ///
    /// # Errors
    ///
    /// [`CollectError`] if the pass did not come to its end.
    fn purge(&self, is_ipv6: bool) -> Result<Purged, CollectError>;
}
