// SPDX-License-Identifier: Apache-2.0

//! Keys and values of the maps, in host order and for both families.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf::lb::ServiceValue;

use super::MapKind;
use crate::types::{L3n4Addr, L4Proto, Scope};

/// Key of a service entry: slot 0 is the master, others name backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Frontend address; the cluster id is not part of the key and 0.
    pub address: L3n4Addr,
    /// Slot.
    pub slot: u16,
}

impl ServiceKey {
    /// Key of the entry that marks an address as a service address, whatever the port.
    pub const fn wildcard(ip: IpAddr) -> Self {
        Self {
            address: L3n4Addr::new(ip, 0, L4Proto::Any),
            slot: 0,
        }
    }

    /// Whether this is the key of a wildcard entry.
    pub fn is_wildcard(&self) -> bool {
        let addr = &self.address;
        self.slot == 0 && addr.port() == 0 && addr.proto() == L4Proto::Any && addr.scope() == Scope::External
    }
}

/// Key of a backend entry. Ids are unique over both families; the family says which map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    /// Backend id.
    pub id: u32,
    /// Family of its address.
    pub ipv6: bool,
}

/// Value of a backend entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendValue {
    /// Address, with cluster id.
    pub address: L3n4Addr,
    /// State byte: 0 active, 1 terminating, 2 quarantined, 3 maintenance.
    pub state: u8,
    /// Number of the zone, 0: unknown.
    pub zone: u8,
}

/// Key of a reverse NAT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevNatKey {
    /// Service id.
    pub id: u16,
    /// Family of its address.
    pub ipv6: bool,
}

/// Value of a reverse NAT entry: the service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevNatValue {
    /// IP address.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
}

impl From<L3n4Addr> for RevNatValue {
    fn from(address: L3n4Addr) -> Self {
        Self {
            ip: address.ip(),
            port: address.port(),
        }
    }
}

/// An affinity match entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffinityKey {
    /// Service id.
    pub id: u16,
    /// Backend id.
    pub backend: u32,
}

/// A client network of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRangeKey {
    /// Service id.
    pub id: u16,
    /// The network; only its masked bits count.
    pub cidr: IpNet,
}

/// Key of a Maglev table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaglevKey {
    /// Service id.
    pub id: u16,
    /// Family of the service's address.
    pub ipv6: bool,
}

/// Entries of one kind to be written.
#[derive(Clone, Copy, Debug)]
pub enum Entries<'a> {
    /// Service entries, masters and slots.
    Services(&'a [(ServiceKey, ServiceValue)]),
    /// Backends.
    Backends(&'a [(BackendKey, BackendValue)]),
    /// Reverse NAT.
    ReverseNat(&'a [(RevNatKey, RevNatValue)]),
    /// Affinity matches.
    AffinityMatch(&'a [AffinityKey]),
    /// Client networks.
    SourceRange(&'a [SourceRangeKey]),
    /// Maglev tables: backend ids.
    Maglev(&'a [(MaglevKey, Arc<[u32]>)]),
}

impl Entries<'_> {
    /// Kind of the map they belong to.
    pub const fn kind(&self) -> MapKind {
        match self {
            Self::Services(_) => MapKind::Services,
            Self::Backends(_) => MapKind::Backends,
            Self::ReverseNat(_) => MapKind::ReverseNat,
            Self::AffinityMatch(_) => MapKind::AffinityMatch,
            Self::SourceRange(_) => MapKind::SourceRange,
            Self::Maglev(_) => MapKind::Maglev,
        }
    }

    /// Whether each belongs to the map of IPv6; affinity matches have one map, which counts as that of IPv4.
    pub fn families(&self) -> Vec<bool> {
        match self {
            Self::Services(entries) => entries.iter().map(|(key, _)| key.address.is_ipv6()).collect(),
            Self::Backends(entries) => entries.iter().map(|(key, _)| key.ipv6).collect(),
            Self::ReverseNat(entries) => entries.iter().map(|(key, _)| key.ipv6).collect(),
            Self::AffinityMatch(keys) => vec![false; keys.len()],
            Self::SourceRange(keys) => keys.iter().map(|key| key.cidr.addr().is_ipv6()).collect(),
            Self::Maglev(entries) => entries.iter().map(|(key, _)| key.ipv6).collect(),
        }
    }

    /// Number of entries.
    pub const fn len(&self) -> usize {
        match self {
            Self::Services(entries) => entries.len(),
            Self::Backends(entries) => entries.len(),
            Self::ReverseNat(entries) => entries.len(),
            Self::AffinityMatch(entries) => entries.len(),
            Self::SourceRange(entries) => entries.len(),
            Self::Maglev(entries) => entries.len(),
        }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at an index alone.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        match self {
            Self::Services(entries) => Self::Services(&entries[index..=index]),
            Self::Backends(entries) => Self::Backends(&entries[index..=index]),
            Self::ReverseNat(entries) => Self::ReverseNat(&entries[index..=index]),
            Self::AffinityMatch(entries) => Self::AffinityMatch(&entries[index..=index]),
            Self::SourceRange(entries) => Self::SourceRange(&entries[index..=index]),
            Self::Maglev(entries) => Self::Maglev(&entries[index..=index]),
        }
    }
}

/// Keys of one kind to be deleted.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// Service entries.
    Services(&'a [ServiceKey]),
    /// Backends.
    Backends(&'a [BackendKey]),
    /// Reverse NAT.
    ReverseNat(&'a [RevNatKey]),
    /// Affinity matches.
    AffinityMatch(&'a [AffinityKey]),
    /// Client networks.
    SourceRange(&'a [SourceRangeKey]),
    /// Maglev tables.
    Maglev(&'a [MaglevKey]),
}

impl Keys<'_> {
    /// Kind of the map they belong to.
    pub const fn kind(&self) -> MapKind {
        match self {
            Self::Services(_) => MapKind::Services,
            Self::Backends(_) => MapKind::Backends,
            Self::ReverseNat(_) => MapKind::ReverseNat,
            Self::AffinityMatch(_) => MapKind::AffinityMatch,
            Self::SourceRange(_) => MapKind::SourceRange,
            Self::Maglev(_) => MapKind::Maglev,
        }
    }

    /// Whether each belongs to the map of IPv6; affinity matches have one map, which counts as that of IPv4.
    pub fn families(&self) -> Vec<bool> {
        match self {
            Self::Services(keys) => keys.iter().map(|key| key.address.is_ipv6()).collect(),
            Self::Backends(keys) => keys.iter().map(|key| key.ipv6).collect(),
            Self::ReverseNat(keys) => keys.iter().map(|key| key.ipv6).collect(),
            Self::AffinityMatch(keys) => vec![false; keys.len()],
            Self::SourceRange(keys) => keys.iter().map(|key| key.cidr.addr().is_ipv6()).collect(),
            Self::Maglev(keys) => keys.iter().map(|key| key.ipv6).collect(),
        }
    }

    /// Number of keys.
    pub const fn len(&self) -> usize {
        match self {
            Self::Services(keys) => keys.len(),
            Self::Backends(keys) => keys.len(),
            Self::ReverseNat(keys) => keys.len(),
            Self::AffinityMatch(keys) => keys.len(),
            Self::SourceRange(keys) => keys.len(),
            Self::Maglev(keys) => keys.len(),
        }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at an index alone.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        match self {
            Self::Services(keys) => Self::Services(&keys[index..=index]),
            Self::Backends(keys) => Self::Backends(&keys[index..=index]),
            Self::ReverseNat(keys) => Self::ReverseNat(&keys[index..=index]),
            Self::AffinityMatch(keys) => Self::AffinityMatch(&keys[index..=index]),
            Self::SourceRange(keys) => Self::SourceRange(&keys[index..=index]),
            Self::Maglev(keys) => Self::Maglev(&keys[index..=index]),
        }
    }
}

/// An entry found in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapEntry {
    /// A service entry.
    Service(ServiceKey, ServiceValue),
    /// A backend.
    Backend(BackendKey, BackendValue),
    /// A reverse NAT entry.
    ReverseNat(RevNatKey, RevNatValue),
    /// An affinity match.
    AffinityMatch(AffinityKey),
    /// A client network.
    SourceRange(SourceRangeKey),
    /// A Maglev table: backend ids.
    Maglev(MaglevKey, Arc<[u32]>),
}

impl MapEntry {
    /// Kind of the map it is in.
    pub const fn kind(&self) -> MapKind {
        match self {
            Self::Service(..) => MapKind::Services,
            Self::Backend(..) => MapKind::Backends,
            Self::ReverseNat(..) => MapKind::ReverseNat,
            Self::AffinityMatch(_) => MapKind::AffinityMatch,
            Self::SourceRange(_) => MapKind::SourceRange,
            Self::Maglev(..) => MapKind::Maglev,
        }
    }
}
