// SPDX-License-Identifier: Apache-2.0

//! The load-balancing maps: typed handles, in the kernel or in memory as [`Maps`] has them.
//!
//! Each pair is one map for IPv4 and one for IPv6. The reconciler writes them in stages of a transaction
//! (`skep_datapath_maps::transaction`); [`key`] makes their keys and values from addresses and ids, and the `each_*`
//! methods read them for both families at once.

pub mod cell;
mod ids;
pub mod key;
mod read;
#[cfg(test)]
mod tests;
pub mod text;

use std::sync::Arc;

pub use ids::{BorneIds, FlowMaps};
pub use read::BackendValue;
use skep_bpf_maps::lb::{
    AFFINITY_MATCH, AffinityMatchKey, BACKENDS4, BACKENDS6, Backend4, Backend6, BackendKey, ID_MARKS, IdMark,
    LbMapSizes, MAGLEV4, MAGLEV6, MaglevKey, OWNER, REVERSE_NAT4, REVERSE_NAT6, ReverseNat4, ReverseNat6,
    ReverseNatKey, SERVICES4, SERVICES6, SOURCE_RANGE4, SOURCE_RANGE6, Service4Key, Service6Key,
    SourceRange4Key, SourceRange6Key,
};
pub use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_bpf_sys::{Map, MapError, MapStore, NestedMap};
use skep_datapath_maps::{IpPair, MapOwner, Maps};

/// Service address and slot to backend.
pub type Services = IpPair<Map<Service4Key, ServiceValue>, Map<Service6Key, ServiceValue>>;
/// Backend id to address.
pub type Backends = IpPair<Map<BackendKey, Backend4>, Map<BackendKey, Backend6>>;
/// Service id to address.
pub type ReverseNats = IpPair<Map<ReverseNatKey, ReverseNat4>, Map<ReverseNatKey, ReverseNat6>>;
/// Which backends belong to a service with session affinity.
pub type AffinityMatches = Map<AffinityMatchKey, u8>;
/// Client networks of a service.
pub type SourceRanges = IpPair<Map<SourceRange4Key, u8>, Map<SourceRange6Key, u8>>;
/// Lookup table of a service: backend ids.
pub type MaglevTables = IpPair<NestedMap<MaglevKey, u32>, NestedMap<MaglevKey, u32>>;

/// The load-balancing maps. Clones share them.
#[derive(Clone, Debug)]
pub struct LoadBalancerMaps {
    /// Service entries: masters and slots.
    pub services: Services,
    /// Backends.
    pub backends: Backends,
    /// Reverse NAT.
    pub reverse_nat: ReverseNats,
    /// Affinity matches.
    pub affinity: AffinityMatches,
    /// Client networks.
    pub source_ranges: SourceRanges,
    /// Maglev tables.
    pub maglev: MaglevTables,
    /// How far ids were allocated.
    pub id_marks: Map<u32, IdMark>,
    /// Entries of programs that bear ids.
    pub flows: FlowMaps,
}

impl LoadBalancerMaps {
    /// Takes the handles of the maps.
    pub fn new(maps: &Maps) -> Self {
        Self {
            services: IpPair::new(maps.handle(&SERVICES4), maps.handle(&SERVICES6)),
            backends: IpPair::new(maps.handle(&BACKENDS4), maps.handle(&BACKENDS6)),
            reverse_nat: IpPair::new(maps.handle(&REVERSE_NAT4), maps.handle(&REVERSE_NAT6)),
            affinity: maps.handle(&AFFINITY_MATCH),
            source_ranges: IpPair::new(maps.handle(&SOURCE_RANGE4), maps.handle(&SOURCE_RANGE6)),
            maglev: IpPair::new(maps.nested(&MAGLEV4), maps.nested(&MAGLEV6)),
            id_marks: maps.handle(&ID_MARKS),
            flows: FlowMaps::new(maps),
        }
    }

    /// Opens the pinned maps of a store, for programs without a hive.
    ///
    /// # Errors
    /// If a map cannot be made: no privileges, no BPF file system, no memory.
    pub fn open(store: &Arc<MapStore>, sizes: LbMapSizes, ipv4: bool, ipv6: bool) -> Result<Self, MapError> {
        let owner = MapOwner::new(OWNER).sizes(sizes).ip(ipv4, ipv6);
        Ok(Self::new(&Maps::pinned(store.clone(), [owner])?))
    }

    /// Empty maps in memory, with the limits and semantics of the kernel's.
    ///
    /// # Errors
    /// If a limit is 0: the kernel makes no such map.
    pub fn in_memory(sizes: LbMapSizes) -> Result<Self, MapError> {
        Ok(Self::new(&Maps::in_memory([MapOwner::new(OWNER).sizes(sizes)])?))
    }
}
