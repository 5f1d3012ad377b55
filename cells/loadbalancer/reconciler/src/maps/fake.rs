// SPDX-License-Identifier: Apache-2.0

//! The maps in memory, with the limits of the real ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use skep_bpf_maps::lb::{LbMapSizes, ServiceValue};

use super::{
    AffinityKey, BackendKey, BackendValue, Entries, Failures, Keys, LbMaps, MaglevKey, MapEntry, MapError,
    MapKind, MapUsage, RevNatKey, RevNatValue, ServiceKey, SourceRangeKey,
};

/// Maps in memory. Full ones refuse new keys as the kernel does.
#[derive(Debug)]
pub struct FakeMaps {
    sizes: LbMapSizes,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    services: [HashMap<ServiceKey, ServiceValue>; 2],
    backends: [HashMap<BackendKey, BackendValue>; 2],
    reverse_nat: [HashMap<RevNatKey, RevNatValue>; 2],
    affinity: [HashMap<AffinityKey, ()>; 1],
    source_range: [HashMap<SourceRangeKey, ()>; 2],
    maglev: [HashMap<MaglevKey, Arc<[u32]>>; 2],
}

impl FakeMaps {
    /// Empty maps with the given limits.
    pub fn new(sizes: LbMapSizes) -> Self {
        Self {
            sizes,
            tables: Mutex::default(),
        }
    }

    const fn max(&self, kind: MapKind) -> u32 {
        match kind {
            MapKind::Services => self.sizes.services,
            MapKind::Backends => self.sizes.backends,
            MapKind::ReverseNat => self.sizes.reverse_nat,
            MapKind::AffinityMatch => self.sizes.affinity,
            MapKind::SourceRange => self.sizes.source_range,
            MapKind::Maglev => self.sizes.maglev,
        }
    }
}

impl Default for FakeMaps {
    fn default() -> Self {
        Self::new(LbMapSizes::default())
    }
}

// Puts entries into the table of their family.
fn put<K: Eq + Hash, V, const N: usize>(
    tables: &mut [HashMap<K, V>; N],
    kind: MapKind,
    max: u32,
    entries: impl Iterator<Item = (bool, K, V)>,
) -> Failures {
    let mut failures = Failures::new();
    for (index, (ipv6, key, value)) in entries.enumerate() {
        let table = &mut tables[usize::from(ipv6) % N];
        if table.len() >= max as usize && !table.contains_key(&key) {
            failures.push((
                index,
                MapError::Full {
                    map: kind.name(ipv6),
                    max,
                },
            ));
        } else {
            table.insert(key, value);
        }
    }
    failures
}

fn take<K: Eq + Hash, V, const N: usize>(tables: &mut [HashMap<K, V>; N], keys: &[K]) {
    for key in keys {
        tables.iter_mut().for_each(|table| {
            table.remove(key);
        });
    }
}

impl LbMaps for FakeMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        let tables = &mut *self.tables.lock();
        match entries {
            Entries::Services(entries) => {
                let kind = MapKind::Services;
                let entries = entries
                    .iter()
                    .map(|(key, value)| (key.address.is_ipv6(), *key, *value));
                put(&mut tables.services, kind, self.max(kind), entries)
            }
            Entries::Backends(entries) => {
                let kind = MapKind::Backends;
                let entries = entries.iter().map(|(key, value)| (key.ipv6, *key, *value));
                put(&mut tables.backends, kind, self.max(kind), entries)
            }
            Entries::ReverseNat(entries) => {
                let kind = MapKind::ReverseNat;
                let entries = entries.iter().map(|(key, value)| (key.ipv6, *key, *value));
                put(&mut tables.reverse_nat, kind, self.max(kind), entries)
            }
            Entries::AffinityMatch(entries) => {
                let kind = MapKind::AffinityMatch;
                put(
                    &mut tables.affinity,
                    kind,
                    self.max(kind),
                    entries.iter().map(|key| (false, *key, ())),
                )
            }
            Entries::SourceRange(entries) => {
                let kind = MapKind::SourceRange;
                let entries = entries.iter().map(|key| {
                    let cidr = key.cidr.trunc();
                    (cidr.addr().is_ipv6(), SourceRangeKey { cidr, ..*key }, ())
                });
                put(&mut tables.source_range, kind, self.max(kind), entries)
            }
            Entries::Maglev(entries) => {
                let kind = MapKind::Maglev;
                let entries = entries.iter().map(|(key, table)| (key.ipv6, *key, table.clone()));
                put(&mut tables.maglev, kind, self.max(kind), entries)
            }
        }
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        let tables = &mut *self.tables.lock();
        match keys {
            Keys::Services(keys) => take(&mut tables.services, keys),
            Keys::Backends(keys) => take(&mut tables.backends, keys),
            Keys::ReverseNat(keys) => take(&mut tables.reverse_nat, keys),
            Keys::AffinityMatch(keys) => take(&mut tables.affinity, keys),
            Keys::SourceRange(keys) => {
                for key in keys {
                    take(
                        &mut tables.source_range,
                        &[SourceRangeKey {
                            cidr: key.cidr.trunc(),
                            ..*key
                        }],
                    );
                }
            }
            Keys::Maglev(keys) => take(&mut tables.maglev, keys),
        }
        Failures::new()
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        let tables = self.tables.lock();
        match kind {
            MapKind::Services => {
                tables
                    .services
                    .iter()
                    .flatten()
                    .for_each(|(k, v)| visit(MapEntry::Service(*k, *v)));
            }
            MapKind::Backends => {
                tables
                    .backends
                    .iter()
                    .flatten()
                    .for_each(|(k, v)| visit(MapEntry::Backend(*k, *v)));
            }
            MapKind::ReverseNat => {
                tables
                    .reverse_nat
                    .iter()
                    .flatten()
                    .for_each(|(k, v)| visit(MapEntry::ReverseNat(*k, *v)));
            }
            MapKind::AffinityMatch => {
                tables
                    .affinity
                    .iter()
                    .flatten()
                    .for_each(|(k, ())| visit(MapEntry::AffinityMatch(*k)));
            }
            MapKind::SourceRange => {
                tables
                    .source_range
                    .iter()
                    .flatten()
                    .for_each(|(k, ())| visit(MapEntry::SourceRange(*k)));
            }
            MapKind::Maglev => {
                tables
                    .maglev
                    .iter()
                    .flatten()
                    .for_each(|(k, v)| visit(MapEntry::Maglev(*k, v.clone())));
            }
        }
        Ok(())
    }

    fn usage(&self) -> Vec<MapUsage> {
        let tables = self.tables.lock();
        let usage = |kind, ipv6, entries: usize| MapUsage {
            kind,
            ipv6,
            entries: u32::try_from(entries).unwrap_or(u32::MAX),
            max: self.max(kind),
        };
        let mut all = vec![usage(MapKind::AffinityMatch, false, tables.affinity[0].len())];
        for (at, ipv6) in [(0, false), (1, true)] {
            all.push(usage(MapKind::Services, ipv6, tables.services[at].len()));
            all.push(usage(MapKind::Backends, ipv6, tables.backends[at].len()));
            all.push(usage(MapKind::ReverseNat, ipv6, tables.reverse_nat[at].len()));
        }
        all
    }
}
