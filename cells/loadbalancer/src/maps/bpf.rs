// SPDX-License-Identifier: Apache-2.0

//! The pinned maps in the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf::lb::{
    AffinityMatchKey, Backend4, Backend6, BackendKey as RawBackendKey, IPV4_MAPS, IPV6_MAPS, LbMapSizes,
    LbMapSpecs, MaglevKey as RawMaglevKey, ReverseNat4, ReverseNat6, ReverseNatKey, Scope as RawScope,
    Service4Key, Service6Key, ServiceValue, SourceRange4Key, SourceRange6Key,
};
use skep_bpf::map::{BatchError, Plain};
use skep_bpf::{Map, MapStore, NestedMap};

use super::{
    AffinityKey, BackendKey, BackendValue, Entries, Failures, Keys, LbMaps, MaglevKey, MapEntry, MapError,
    MapKind, MapUsage, RevNatKey, RevNatValue, ServiceKey, SourceRangeKey,
};
use crate::types::{L3n4Addr, L4Proto, Scope};

/// The maps of both families, opened or created and pinned.
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
    /// Opens the pinned maps, or creates and pins those that are missing or do not fit. The maps of a family that is
    /// off are made but not left pinned.
    ///
    /// # Errors
    /// If a map cannot be made: no privileges, no BPF file system, no memory.
    pub fn open(
        store: &MapStore,
        sizes: LbMapSizes,
        ipv4: bool,
        ipv6: bool,
    ) -> Result<Self, skep_bpf::MapError> {
        let specs = LbMapSpecs::new(sizes);
        let maps = Self {
            services4: store.open_or_create(&specs.services4)?,
            services6: store.open_or_create(&specs.services6)?,
            backends4: store.open_or_create(&specs.backends4)?,
            backends6: store.open_or_create(&specs.backends6)?,
            reverse4: store.open_or_create(&specs.reverse_nat4)?,
            reverse6: store.open_or_create(&specs.reverse_nat6)?,
            affinity: store.open_or_create(&specs.affinity_match)?,
            ranges4: store.open_or_create(&specs.source_range4)?,
            ranges6: store.open_or_create(&specs.source_range6)?,
            maglev4: store.open_or_create_nested(&specs.maglev4)?,
            maglev6: store.open_or_create_nested(&specs.maglev6)?,
        };
        // Used by the programs only, but made whatever is configured, so that every reader finds them.
        store.open_or_create(&specs.affinity4)?;
        store.open_or_create(&specs.affinity6)?;
        store.open_or_create(&specs.reverse_sk4)?;
        store.open_or_create(&specs.reverse_sk6)?;
        store.open_or_create(&specs.skip4)?;
        store.open_or_create(&specs.skip6)?;
        for (is_on, names) in [(ipv4, IPV4_MAPS), (ipv6, IPV6_MAPS)] {
            for name in names.into_iter().filter(|_| !is_on) {
                store.unpin(name)?;
            }
        }
        Ok(maps)
    }
}

/// Entries of one family, with their places in the batch.
struct Part<K, V> {
    places: Vec<u32>,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K, V> Default for Part<K, V> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        }
    }
}

/// Parts of both families; the one that all of a batch mostly belongs to has room for all.
fn parts<K4, K6, V4, V6>(count: usize, is_ipv6: bool) -> (Part<K4, V4>, Part<K6, V6>) {
    if is_ipv6 {
        (Part::default(), Part::with_room(count))
    } else {
        (Part::with_room(count), Part::default())
    }
}

impl<K, V> Part<K, V> {
    fn with_room(count: usize) -> Self {
        Self {
            places: Vec::with_capacity(count),
            keys: Vec::with_capacity(count),
            values: Vec::with_capacity(count),
        }
    }
}

impl<K: Plain, V: Plain> Part<K, V> {
    fn push(&mut self, place: usize, key: K, value: V) {
        self.places.push(place as u32);
        self.keys.push(key);
        self.values.push(value);
    }

    fn update(self, map: &Map<K, V>, kind: MapKind, ipv6: bool, failures: &mut Failures) {
        let mut at = 0;
        while at < self.keys.len() {
            let Err(BatchError { done, error }) = map.update_batch(&self.keys[at..], &self.values[at..])
            else {
                break;
            };
            failures.push((
                self.places[at + done] as usize,
                failure(kind, ipv6, map.max_entries(), "update", error),
            ));
            at += done + 1;
        }
    }
}

impl<K: Plain> Part<K, ()> {
    fn delete<V: Plain>(self, map: &Map<K, V>, kind: MapKind, ipv6: bool, failures: &mut Failures) {
        let mut at = 0;
        while at < self.keys.len() {
            let Err(BatchError { done, error }) = map.delete_batch(&self.keys[at..]) else {
                break;
            };
            failures.push((
                self.places[at + done] as usize,
                failure(kind, ipv6, map.max_entries(), "delete", error),
            ));
            at += done + 1;
        }
    }

    fn key(&mut self, place: usize, key: K) {
        self.places.push(place as u32);
        self.keys.push(key);
    }
}

fn failure(
    kind: MapKind,
    ipv6: bool,
    max: u32,
    operation: &'static str,
    error: skep_bpf::MapError,
) -> MapError {
    let map = kind.name(ipv6);
    if error.is_full() {
        MapError::Full { map, max }
    } else {
        MapError::System {
            map,
            operation,
            cause: Arc::new(error),
        }
    }
}

const fn raw_scope(scope: Scope) -> RawScope {
    match scope {
        Scope::External => RawScope::External,
        Scope::Internal => RawScope::Internal,
    }
}

fn service4(key: &ServiceKey) -> Option<Service4Key> {
    let addr = &key.address;
    let raw = Service4Key::new(
        addr.ipv4()?,
        addr.port(),
        addr.proto().number(),
        raw_scope(addr.scope()),
    );
    Some(raw.at(key.slot))
}

fn service6(key: &ServiceKey) -> Service6Key {
    let addr = &key.address;
    let ip = (*addr.ip_bytes()).into();
    Service6Key::new(ip, addr.port(), addr.proto().number(), raw_scope(addr.scope())).at(key.slot)
}

fn address(ip: IpAddr, port: u16, proto: u8, scope: u8) -> L3n4Addr {
    let scope = if scope == 0 {
        Scope::External
    } else {
        Scope::Internal
    };
    L3n4Addr::with_scope(ip, port, L4Proto::from_number(proto), scope)
}

impl LbMaps for BpfMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        let mut failures = Failures::new();
        match entries {
            Entries::Services(entries) => {
                let is_ipv6 = entries.first().is_some_and(|(key, _)| key.address.is_ipv6());
                let (mut v4, mut v6) = parts(entries.len(), is_ipv6);
                for (place, (key, value)) in entries.iter().enumerate() {
                    match service4(key) {
                        Some(raw) => v4.push(place, raw, *value),
                        None => v6.push(place, service6(key), *value),
                    }
                }
                v4.update(&self.services4, MapKind::Services, false, &mut failures);
                v6.update(&self.services6, MapKind::Services, true, &mut failures);
            }
            Entries::Backends(entries) => {
                let is_ipv6 = entries.first().is_some_and(|(key, _)| key.ipv6);
                let (mut v4, mut v6) = parts(entries.len(), is_ipv6);
                for (place, (key, value)) in entries.iter().enumerate() {
                    let addr = &value.address;
                    let (id, proto) = (RawBackendKey::new(key.id), addr.proto().number());
                    // The field has 16 bits; larger ids do not exist.
                    let cluster_id = addr.cluster_id() as u16;
                    match addr.ipv4() {
                        Some(ip) => {
                            let raw = Backend4::new(ip, addr.port(), proto);
                            v4.push(
                                place,
                                id,
                                Backend4 {
                                    state: value.state,
                                    zone: value.zone,
                                    cluster_id,
                                    ..raw
                                },
                            );
                        }
                        None => {
                            let raw = Backend6::new((*addr.ip_bytes()).into(), addr.port(), proto);
                            v6.push(
                                place,
                                id,
                                Backend6 {
                                    state: value.state,
                                    zone: value.zone,
                                    cluster_id,
                                    ..raw
                                },
                            );
                        }
                    }
                }
                v4.update(&self.backends4, MapKind::Backends, false, &mut failures);
                v6.update(&self.backends6, MapKind::Backends, true, &mut failures);
            }
            Entries::ReverseNat(entries) => {
                let is_ipv6 = entries.first().is_some_and(|(key, _)| key.ipv6);
                let (mut v4, mut v6) = parts(entries.len(), is_ipv6);
                for (place, (key, value)) in entries.iter().enumerate() {
                    let id = ReverseNatKey::new(key.id);
                    match value.ip {
                        IpAddr::V4(ip) => v4.push(place, id, ReverseNat4::new(ip, value.port)),
                        IpAddr::V6(ip) => v6.push(place, id, ReverseNat6::new(ip, value.port)),
                    }
                }
                v4.update(&self.reverse4, MapKind::ReverseNat, false, &mut failures);
                v6.update(&self.reverse6, MapKind::ReverseNat, true, &mut failures);
            }
            Entries::AffinityMatch(keys) => {
                let mut part = Part::default();
                for (place, key) in keys.iter().enumerate() {
                    part.push(place, AffinityMatchKey::new(key.backend, key.id), 0);
                }
                part.update(&self.affinity, MapKind::AffinityMatch, false, &mut failures);
            }
            Entries::SourceRange(keys) => {
                let (mut v4, mut v6) = (Part::default(), Part::default());
                for (place, key) in keys.iter().enumerate() {
                    match key.cidr.trunc() {
                        IpNet::V4(net) => {
                            v4.push(
                                place,
                                SourceRange4Key::new(key.id, net.network(), net.prefix_len()),
                                0,
                            );
                        }
                        IpNet::V6(net) => {
                            v6.push(
                                place,
                                SourceRange6Key::new(key.id, net.network(), net.prefix_len()),
                                0,
                            );
                        }
                    }
                }
                v4.update(&self.ranges4, MapKind::SourceRange, false, &mut failures);
                v6.update(&self.ranges6, MapKind::SourceRange, true, &mut failures);
            }
            Entries::Maglev(entries) => {
                for (place, (key, table)) in entries.iter().enumerate() {
                    let map = if key.ipv6 { &self.maglev6 } else { &self.maglev4 };
                    if let Err(error) = map.update(&RawMaglevKey::new(key.id), table) {
                        failures.push((
                            place,
                            failure(MapKind::Maglev, key.ipv6, map.max_entries(), "update", error),
                        ));
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
                let is_ipv6 = keys.first().is_some_and(|key| key.address.is_ipv6());
                let (mut v4, mut v6) = parts(keys.len(), is_ipv6);
                for (place, key) in keys.iter().enumerate() {
                    match service4(key) {
                        Some(raw) => v4.key(place, raw),
                        None => v6.key(place, service6(key)),
                    }
                }
                v4.delete(&self.services4, MapKind::Services, false, &mut failures);
                v6.delete(&self.services6, MapKind::Services, true, &mut failures);
            }
            Keys::Backends(keys) => {
                let is_ipv6 = keys.first().is_some_and(|key| key.ipv6);
                let (mut v4, mut v6) = parts(keys.len(), is_ipv6);
                for (place, key) in keys.iter().enumerate() {
                    let part = if key.ipv6 { &mut v6 } else { &mut v4 };
                    part.key(place, RawBackendKey::new(key.id));
                }
                v4.delete(&self.backends4, MapKind::Backends, false, &mut failures);
                v6.delete(&self.backends6, MapKind::Backends, true, &mut failures);
            }
            Keys::ReverseNat(keys) => {
                let is_ipv6 = keys.first().is_some_and(|key| key.ipv6);
                let (mut v4, mut v6) = parts(keys.len(), is_ipv6);
                for (place, key) in keys.iter().enumerate() {
                    let part = if key.ipv6 { &mut v6 } else { &mut v4 };
                    part.key(place, ReverseNatKey::new(key.id));
                }
                v4.delete(&self.reverse4, MapKind::ReverseNat, false, &mut failures);
                v6.delete(&self.reverse6, MapKind::ReverseNat, true, &mut failures);
            }
            Keys::AffinityMatch(keys) => {
                let mut part = Part::default();
                for (place, key) in keys.iter().enumerate() {
                    part.key(place, AffinityMatchKey::new(key.backend, key.id));
                }
                part.delete(&self.affinity, MapKind::AffinityMatch, false, &mut failures);
            }
            Keys::SourceRange(keys) => {
                let (mut v4, mut v6) = (Part::default(), Part::default());
                for (place, key) in keys.iter().enumerate() {
                    match key.cidr.trunc() {
                        IpNet::V4(net) => {
                            v4.key(
                                place,
                                SourceRange4Key::new(key.id, net.network(), net.prefix_len()),
                            );
                        }
                        IpNet::V6(net) => {
                            v6.key(
                                place,
                                SourceRange6Key::new(key.id, net.network(), net.prefix_len()),
                            );
                        }
                    }
                }
                v4.delete(&self.ranges4, MapKind::SourceRange, false, &mut failures);
                v6.delete(&self.ranges6, MapKind::SourceRange, true, &mut failures);
            }
            Keys::Maglev(keys) => {
                for (place, key) in keys.iter().enumerate() {
                    let map = if key.ipv6 { &self.maglev6 } else { &self.maglev4 };
                    if let Err(error) = map.delete(&RawMaglevKey::new(key.id)) {
                        failures.push((
                            place,
                            failure(MapKind::Maglev, key.ipv6, map.max_entries(), "delete", error),
                        ));
                    }
                }
            }
        }
        failures.sort_by_key(|(place, _)| *place);
        failures
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        let failed = |ipv6, max| move |error| failure(kind, ipv6, max, "dump", error);
        match kind {
            MapKind::Services => {
                let found = self.services4.for_each(|key, value| {
                    let address = address(key.addr(), key.port.get(), key.proto, key.scope);
                    visit(MapEntry::Service(
                        ServiceKey {
                            address,
                            slot: key.slot,
                        },
                        value,
                    ));
                });
                found.map_err(failed(false, 0))?;
                let found = self.services6.for_each(|key, value| {
                    let address = address(key.addr(), key.port.get(), key.proto, key.scope);
                    visit(MapEntry::Service(
                        ServiceKey {
                            address,
                            slot: key.slot,
                        },
                        value,
                    ));
                });
                found.map_err(failed(true, 0))
            }
            MapKind::Backends => {
                let found = self.backends4.for_each(|key, value| {
                    let address = address(value.addr(), value.port.get(), value.proto, 0);
                    let address = address.in_cluster(value.cluster_id.into());
                    let value = BackendValue {
                        address,
                        state: value.state,
                        zone: value.zone,
                    };
                    visit(MapEntry::Backend(
                        BackendKey {
                            id: key.id,
                            ipv6: false,
                        },
                        value,
                    ));
                });
                found.map_err(failed(false, 0))?;
                let found = self.backends6.for_each(|key, value| {
                    let address = address(value.addr(), value.port.get(), value.proto, 0);
                    let address = address.in_cluster(value.cluster_id.into());
                    let value = BackendValue {
                        address,
                        state: value.state,
                        zone: value.zone,
                    };
                    visit(MapEntry::Backend(
                        BackendKey {
                            id: key.id,
                            ipv6: true,
                        },
                        value,
                    ));
                });
                found.map_err(failed(true, 0))
            }
            MapKind::ReverseNat => {
                let found = self.reverse4.for_each(|key, value| {
                    let key = RevNatKey {
                        id: key.rev_nat.get(),
                        ipv6: false,
                    };
                    visit(MapEntry::ReverseNat(
                        key,
                        RevNatValue {
                            ip: value.addr(),
                            port: value.port.get(),
                        },
                    ));
                });
                found.map_err(failed(false, 0))?;
                let found = self.reverse6.for_each(|key, value| {
                    let key = RevNatKey {
                        id: key.rev_nat.get(),
                        ipv6: true,
                    };
                    visit(MapEntry::ReverseNat(
                        key,
                        RevNatValue {
                            ip: value.addr(),
                            port: value.port.get(),
                        },
                    ));
                });
                found.map_err(failed(true, 0))
            }
            MapKind::AffinityMatch => {
                let found = self.affinity.for_each(|key, _| {
                    visit(MapEntry::AffinityMatch(AffinityKey {
                        id: key.rev_nat.get(),
                        backend: key.backend_id,
                    }));
                });
                found.map_err(failed(false, 0))
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
                found.map_err(failed(false, 0))?;
                let found = self
                    .ranges6
                    .for_each(|key, _| range(key.rev_nat.get(), key.cidr()));
                found.map_err(failed(true, 0))
            }
            MapKind::Maglev => {
                for (map, ipv6) in [(&self.maglev4, false), (&self.maglev6, true)] {
                    for key in map.keys().map_err(failed(ipv6, 0))? {
                        if let Some(table) = map.lookup(&key).map_err(failed(ipv6, 0))? {
                            visit(MapEntry::Maglev(
                                MaglevKey {
                                    id: key.rev_nat.get(),
                                    ipv6,
                                },
                                table.into(),
                            ));
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn usage(&self) -> Vec<MapUsage> {
        fn count<K: Plain, V: Plain>(map: &Map<K, V>, kind: MapKind, ipv6: bool) -> Option<MapUsage> {
            let entries = map.keys().ok()?.len();
            Some(MapUsage {
                kind,
                ipv6,
                entries: u32::try_from(entries).unwrap_or(u32::MAX),
                max: map.max_entries(),
            })
        }
        let usage = [
            count(&self.services4, MapKind::Services, false),
            count(&self.services6, MapKind::Services, true),
            count(&self.backends4, MapKind::Backends, false),
            count(&self.backends6, MapKind::Backends, true),
            count(&self.reverse4, MapKind::ReverseNat, false),
            count(&self.reverse6, MapKind::ReverseNat, true),
            count(&self.affinity, MapKind::AffinityMatch, false),
        ];
        usage.into_iter().flatten().collect()
    }
}
