// SPDX-License-Identifier: Apache-2.0

//! The maps of both address families, in the forms in which programs read them.

mod batch;
mod raw;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf_maps::lb::{
    AFFINITY_MATCH, AffinityMatchKey, BACKENDS4, BACKENDS6, Backend4, Backend6, BackendKey as RawBackendKey,
    LbMapSizes, MAGLEV4, MAGLEV6, MaglevKey as RawMaglevKey, OWNER, REVERSE_NAT4, REVERSE_NAT6, ReverseNat4,
    ReverseNat6, ReverseNatKey, SERVICES4, SERVICES6, SOURCE_RANGE4, SOURCE_RANGE6, Service4Key, Service6Key,
    ServiceValue, SourceRange4Key, SourceRange6Key,
};
use skep_bpf_sys::{Map, MapStore, NestedMap};
use skep_datapath_maps::{MapOwner, Maps};

use self::batch::{Part, failure, split};
use self::raw::Family;
use super::{
    AffinityKey, Entries, Failures, Keys, LbMaps, MaglevKey, MapEntry, MapError, MapKind, RevNatKey,
    RevNatValue, SourceRangeKey,
};

/// The maps of both families.
#[derive(Debug)]
pub struct BpfMaps {
    services4: Map<Service4Key, ServiceValue>,
    services6: Map<Service6Key, ServiceValue>,
    backends4: Map<RawBackendKey, Backend4>,
    backends6: Map<RawBackendKey, Backend6>,
    reverse4: Map<ReverseNatKey, ReverseNat4>,
    reverse6: Map<ReverseNatKey, ReverseNat6>,
    affinity: Map<AffinityMatchKey, u8>,
    ranges4: Map<SourceRange4Key, u8>,
    ranges6: Map<SourceRange6Key, u8>,
    maglev4: NestedMap<RawMaglevKey, u32>,
    maglev6: NestedMap<RawMaglevKey, u32>,
}

impl BpfMaps {
    /// Takes the handles of the maps.
    pub fn new(maps: &Maps) -> Self {
        Self {
            services4: maps.handle(&SERVICES4),
            services6: maps.handle(&SERVICES6),
            backends4: maps.handle(&BACKENDS4),
            backends6: maps.handle(&BACKENDS6),
            reverse4: maps.handle(&REVERSE_NAT4),
            reverse6: maps.handle(&REVERSE_NAT6),
            affinity: maps.handle(&AFFINITY_MATCH),
            ranges4: maps.handle(&SOURCE_RANGE4),
            ranges6: maps.handle(&SOURCE_RANGE6),
            maglev4: maps.nested(&MAGLEV4),
            maglev6: maps.nested(&MAGLEV6),
        }
    }

    /// Opens the pinned maps of a store, for programs without a hive.
    ///
    /// # Errors
    /// If a map cannot be made: no privileges, no BPF file system, no memory.
    pub fn open(
        store: &Arc<MapStore>,
        sizes: LbMapSizes,
        ipv4: bool,
        ipv6: bool,
    ) -> Result<Self, skep_bpf_sys::MapError> {
        let owner = MapOwner::new(OWNER).sizes(sizes).ip(ipv4, ipv6);
        Ok(Self::new(&Maps::pinned(store.clone(), [owner])?))
    }

    fn maglev(&self, ipv6: bool) -> &NestedMap<RawMaglevKey, u32> {
        if ipv6 { &self.maglev6 } else { &self.maglev4 }
    }
}

impl LbMaps for BpfMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        let mut failures = Failures::new();
        match entries {
            Entries::Services(entries) => {
                let parts = split(entries, |(key, value)| raw::service(key).and(value));
                parts.update(&self.services4, &self.services6, MapKind::Services, &mut failures);
            }
            Entries::Backends(entries) => {
                let parts = split(entries, |(key, value)| {
                    let id = RawBackendKey::new(key.id);
                    raw::backend(value).map(|value| (id, value), |value| (id, value))
                });
                parts.update(&self.backends4, &self.backends6, MapKind::Backends, &mut failures);
            }
            Entries::ReverseNat(entries) => {
                let parts = split(entries, |(key, value)| {
                    let id = ReverseNatKey::new(key.id);
                    raw::reverse(value).map(|value| (id, value), |value| (id, value))
                });
                parts.update(&self.reverse4, &self.reverse6, MapKind::ReverseNat, &mut failures);
            }
            Entries::AffinityMatch(keys) => {
                let part: Part<_, _> = keys.iter().map(|key| (raw::affinity(key), 0)).collect();
                part.update(&self.affinity, MapKind::AffinityMatch, false, &mut failures);
            }
            Entries::SourceRange(keys) => {
                let parts = split(keys, |key| raw::source_range(key).and(&0));
                parts.update(&self.ranges4, &self.ranges6, MapKind::SourceRange, &mut failures);
            }
            Entries::Maglev(entries) => {
                for (place, (key, table)) in entries.iter().enumerate() {
                    let map = self.maglev(key.ipv6);
                    if let Err(error) = map.update(&RawMaglevKey::new(key.id), table) {
                        let error = failure(MapKind::Maglev, key.ipv6, map.max_entries(), "update", error);
                        failures.push((place, error));
                    }
                }
            }
        }
        failures.sort_by_key(|(place, _)| *place);
        failures
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        let mut failures = Failures::new();
        match keys {
            Keys::Services(keys) => {
                let parts = split(keys, |key| raw::service(key).and(&()));
                parts.delete(&self.services4, &self.services6, MapKind::Services, &mut failures);
            }
            Keys::Backends(keys) => {
                let parts = split(keys, |key| {
                    Family::both(key.ipv6, (RawBackendKey::new(key.id), ()))
                });
                parts.delete(&self.backends4, &self.backends6, MapKind::Backends, &mut failures);
            }
            Keys::ReverseNat(keys) => {
                let parts = split(keys, |key| {
                    Family::both(key.ipv6, (ReverseNatKey::new(key.id), ()))
                });
                parts.delete(&self.reverse4, &self.reverse6, MapKind::ReverseNat, &mut failures);
            }
            Keys::AffinityMatch(keys) => {
                let part: Part<_, _> = keys.iter().map(|key| (raw::affinity(key), ())).collect();
                part.delete(&self.affinity, MapKind::AffinityMatch, false, &mut failures);
            }
            Keys::SourceRange(keys) => {
                let parts = split(keys, |key| raw::source_range(key).and(&()));
                parts.delete(&self.ranges4, &self.ranges6, MapKind::SourceRange, &mut failures);
            }
            Keys::Maglev(keys) => {
                for (place, key) in keys.iter().enumerate() {
                    let map = self.maglev(key.ipv6);
                    if let Err(error) = map.delete(&RawMaglevKey::new(key.id)) {
                        let error = failure(MapKind::Maglev, key.ipv6, map.max_entries(), "delete", error);
                        failures.push((place, error));
                    }
                }
            }
        }
        failures.sort_by_key(|(place, _)| *place);
        failures
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        let failed = |ipv6| move |error| failure(kind, ipv6, 0, "dump", error);
        match kind {
            MapKind::Services => {
                let found = self.services4.for_each(|key, value| {
                    let address = raw::address(key.addr(), key.port.get(), key.proto, key.scope);
                    visit(raw::service_entry(address, key.slot, value));
                });
                found.map_err(failed(false))?;
                let found = self.services6.for_each(|key, value| {
                    let address = raw::address(key.addr(), key.port.get(), key.proto, key.scope);
                    visit(raw::service_entry(address, key.slot, value));
                });
                found.map_err(failed(true))
            }
            MapKind::Backends => {
                let found = self.backends4.for_each(|key, raw| {
                    let address = raw::address(raw.addr(), raw.port.get(), raw.proto, 0);
                    let address = address.in_cluster(raw.cluster_id.into());
                    visit(raw::backend_entry(key.id, address, raw.state, raw.zone));
                });
                found.map_err(failed(false))?;
                let found = self.backends6.for_each(|key, raw| {
                    let address = raw::address(raw.addr(), raw.port.get(), raw.proto, 0);
                    let address = address.in_cluster(raw.cluster_id.into());
                    visit(raw::backend_entry(key.id, address, raw.state, raw.zone));
                });
                found.map_err(failed(true))
            }
            MapKind::ReverseNat => {
                let mut reverse = |key: ReverseNatKey, ip: IpAddr, port| {
                    let (id, ipv6) = (key.rev_nat.get(), ip.is_ipv6());
                    visit(MapEntry::ReverseNat(
                        RevNatKey { id, ipv6 },
                        RevNatValue { ip, port },
                    ));
                };
                let found = self
                    .reverse4
                    .for_each(|key, value| reverse(key, value.addr(), value.port.get()));
                found.map_err(failed(false))?;
                let found = self
                    .reverse6
                    .for_each(|key, value| reverse(key, value.addr(), value.port.get()));
                found.map_err(failed(true))
            }
            MapKind::AffinityMatch => {
                let found = self.affinity.for_each(|key, _| {
                    let (id, backend) = (key.rev_nat.get(), key.backend_id);
                    visit(MapEntry::AffinityMatch(AffinityKey { id, backend }));
                });
                found.map_err(failed(false))
            }
            MapKind::SourceRange => {
                let mut range = |id: u16, (ip, bits): (IpAddr, u8)| {
                    if let Ok(cidr) = IpNet::new(ip, bits) {
                        visit(MapEntry::SourceRange(SourceRangeKey { id, cidr }));
                    }
                };
                let found = self
                    .ranges4
                    .for_each(|key, _| range(key.rev_nat.get(), key.cidr()));
                found.map_err(failed(false))?;
                let found = self
                    .ranges6
                    .for_each(|key, _| range(key.rev_nat.get(), key.cidr()));
                found.map_err(failed(true))
            }
            MapKind::Maglev => {
                for ipv6 in [false, true] {
                    let found = self.maglev(ipv6).for_each(|key, table| {
                        let id = key.rev_nat.get();
                        visit(MapEntry::Maglev(MaglevKey { id, ipv6 }, table.into()));
                    });
                    found.map_err(failed(ipv6))?;
                }
                Ok(())
            }
        }
    }
}
