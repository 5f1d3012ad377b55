// SPDX-License-Identifier: Apache-2.0

//! Keys and values of the maps, in host order and for both families.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf_maps::lb::ServiceValue;
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto, Scope};

use super::MapKind;

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

/// What lists of one kind have in common, whether of entries or of keys.
macro_rules! of_one_kind {
    ($($type:ident)+) => {$(
        impl $type<'_> {
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

            /// How many there are.
            pub const fn len(&self) -> usize {
                match self {
                    Self::Services(list) => list.len(),
                    Self::Backends(list) => list.len(),
                    Self::ReverseNat(list) => list.len(),
                    Self::AffinityMatch(list) => list.len(),
                    Self::SourceRange(list) => list.len(),
                    Self::Maglev(list) => list.len(),
                }
            }

            /// Whether there is none.
            pub const fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The one at an index alone.
            #[must_use]
            pub fn at(&self, index: usize) -> Self {
                match self {
                    Self::Services(list) => Self::Services(&list[index..=index]),
                    Self::Backends(list) => Self::Backends(&list[index..=index]),
                    Self::ReverseNat(list) => Self::ReverseNat(&list[index..=index]),
                    Self::AffinityMatch(list) => Self::AffinityMatch(&list[index..=index]),
                    Self::SourceRange(list) => Self::SourceRange(&list[index..=index]),
                    Self::Maglev(list) => Self::Maglev(&list[index..=index]),
                }
            }
        }
    )+};
}

of_one_kind!(Entries Keys);

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
