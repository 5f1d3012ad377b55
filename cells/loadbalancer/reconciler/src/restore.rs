// SPDX-License-Identifier: Apache-2.0

//! Restores what an earlier run left in the maps, and prunes what no frontend needs.

use std::fmt;

use skep_bpf_maps::lb::ServiceValue;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{BackendState, L3n4Addr, L4Proto};

use super::Ops;
use super::capacity::Capacity;
use crate::maps::{AffinityKey, BackendKey, Keys, LbMaps, MapEntry, MapError, MapKind, ServiceKey};

/// How often a deletion of a prune is tried.
const PRUNE_TRIES: usize = 16;

/// Sizes of what [`Ops`] remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "fields are named like the lines they print")]
pub struct Summary {
    pub service_ids: usize,
    pub restored_service_ids: usize,
    pub backend_ids: usize,
    pub restored_backend_ids: usize,
    pub backend_states: usize,
    pub backend_references: usize,
    pub node_port_addr_by_port: usize,
    pub prev_source_ranges: usize,
    pub restored_quarantines: usize,
    pub wildcard_references: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "serviceIDs: {}", self.service_ids)?;
        writeln!(f, "restoredServiceIDs: {}", self.restored_service_ids)?;
        writeln!(f, "backendIDs: {}", self.backend_ids)?;
        writeln!(f, "restoredBackendIDs: {}", self.restored_backend_ids)?;
        writeln!(f, "backendStates: {}", self.backend_states)?;
        writeln!(f, "backendReferences: {}", self.backend_references)?;
        writeln!(f, "nodePortAddrByPort: {}", self.node_port_addr_by_port)?;
        writeln!(f, "prevSourceRanges: {}", self.prev_source_ranges)?;
        writeln!(f, "restoredQuarantines: {}", self.restored_quarantines)?;
        writeln!(f, "wildcardReferences: {}", self.wildcard_references)
    }
}

// What the service map says about one frontend.
#[derive(Default)]
struct Found {
    master: Option<ServiceValue>,
    slots: Vec<(u16, u32)>,
}

/// What an earlier run left of a frontend.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Highest slot.
    pub(super) high: u16,
    /// Slots from 1 without a gap.
    pub(super) sure: u16,
    /// The master entry, if all slots that it counts are there.
    pub(super) master: Option<ServiceValue>,
    /// Backends in those slots.
    pub(super) backends: Box<[u32]>,
}

impl Restored {
    fn new(mut found: Found) -> Self {
        found.slots.sort_unstable();
        let high = found.slots.last().map_or(0, |(slot, _)| *slot);
        let in_a_row = found
            .slots
            .iter()
            .zip(1..)
            .take_while(|((slot, _), at)| slot == at);
        let sure = in_a_row.count() as u16;
        let backends = found.slots.iter().take(usize::from(sure));
        Self {
            high,
            sure,
            master: found.master.filter(|master| master.count <= sure),
            backends: backends.map(|(_, backend)| *backend).collect(),
        }
    }
}

impl Ops {
    /// Restores ids and quarantined backends from the maps; returns how many services have an id there. To be called
    /// once, before the first frontend.
    ///
    /// # Errors
    /// If a map cannot be read. What was read so far stays.
    pub fn restore(&mut self) -> Result<usize, MapError> {
        let maps = self.maps.clone();
        maps.dump(MapKind::Backends, &mut |entry| {
            if let MapEntry::Backend(key, value) = entry {
                self.backend_ids.restore(value.address, key.id);
                self.restored_backends.insert(key.id, value.address);
            }
        })?;
        let mut found: HashMap<L3n4Addr, Found> = HashMap::default();
        maps.dump(MapKind::Services, &mut |entry| {
            let MapEntry::Service(key, value) = entry else {
                return;
            };
            if key.is_wildcard() {
                return;
            }
            if key.slot == 0 {
                self.service_ids
                    .restore(key.address, u32::from(value.rev_nat.get()));
                let found = found.entry(key.address).or_default();
                found.master = Some(value);
            } else {
                found
                    .entry(key.address)
                    .or_default()
                    .slots
                    .push((key.slot, value.backend_id()));
            }
        })?;
        // Ids of services that were half deleted: what is left of them must not meet a new service.
        for kind in [MapKind::ReverseNat, MapKind::AffinityMatch, MapKind::SourceRange] {
            read(&*maps, kind, &mut |entry| match entry {
                MapEntry::ReverseNat(key, _) => self.service_ids.skip(u32::from(key.id)),
                MapEntry::AffinityMatch(key) => self.service_ids.skip(u32::from(key.id)),
                MapEntry::SourceRange(key) => self.service_ids.skip(u32::from(key.id)),
                _ => {}
            })?;
        }
        for (frontend, found) in found {
            let (count, qcount) = found
                .master
                .map_or((0, 0), |master| (master.count, master.qcount));
            let slots = usize::from(count) + usize::from(qcount);
            if qcount > 0 && found.slots.len() == slots {
                let behind = found.slots.iter().filter(|(slot, _)| *slot > count);
                let backends: HashSet<L3n4Addr> = behind
                    .filter_map(|(_, id)| self.restored_backends.get(id))
                    .flat_map(|address| same_any_proto(*address))
                    .collect();
                for frontend in same_any_proto(frontend) {
                    self.quarantines.insert(frontend, backends.clone());
                }
            }
            self.restored.insert(frontend, Restored::new(found));
        }
        Ok(self.service_ids.restored_len())
    }

    /// Removes entries that no frontend needs, and forgets ids of an earlier run that were not claimed. To be called
    /// when every frontend is known.
    ///
    /// # Errors
    /// The first map that cannot be read, or entry that cannot be deleted; the rest is done all the same.
    pub fn prune(&mut self) -> Result<(), MapError> {
        self.service_ids.drop_restored();
        self.backend_ids.drop_restored();
        self.restored = HashMap::default();
        self.restored_backends = HashMap::default();
        let entries = &self.entries;
        self.quarantines
            .retain(|frontend, _| entries.contains_key(frontend));
        let stale = self.stale()?;
        let maps = &*self.maps;
        let freed = &mut self.freed;
        let keys = stale.services.iter().map(|key| key.address.is_ipv6());
        keys.for_each(|ipv6| freed.add(MapKind::Services, ipv6, 1));
        let keys = stale.backends.iter().map(|key| key.ipv6);
        keys.for_each(|ipv6| freed.add(MapKind::Backends, ipv6, 1));
        let keys = stale.reverse.iter().map(|key| key.ipv6);
        keys.for_each(|ipv6| freed.add(MapKind::ReverseNat, ipv6, 1));
        let keys = stale.maglev.iter().map(|key| key.ipv6);
        keys.for_each(|ipv6| freed.add(MapKind::Maglev, ipv6, 1));
        freed.add(MapKind::AffinityMatch, false, stale.affinity.len() as u32);
        let keys = stale.ranges.iter().map(|key| key.cidr.addr().is_ipv6());
        keys.for_each(|ipv6| freed.add(MapKind::SourceRange, ipv6, 1));
        let results = [
            delete_all(stale.services, |keys| maps.delete(Keys::Services(keys))),
            delete_all(stale.reverse, |keys| maps.delete(Keys::ReverseNat(keys))),
            delete_all(stale.maglev, |keys| maps.delete(Keys::Maglev(keys))),
            delete_all(stale.affinity, |keys| maps.delete(Keys::AffinityMatch(keys))),
            delete_all(stale.ranges, |keys| maps.delete(Keys::SourceRange(keys))),
            delete_all(stale.backends, |keys| maps.delete(Keys::Backends(keys))),
        ];
        self.capacity = Capacity::UNKNOWN;
        self.find_retriable();
        results.into_iter().collect()
    }

    /// Sizes of what is remembered.
    pub fn summary(&self) -> Summary {
        Summary {
            service_ids: self.service_ids.len(),
            restored_service_ids: self.service_ids.restored_len(),
            backend_ids: self.backend_ids.len(),
            restored_backend_ids: self.backend_ids.restored_len(),
            backend_states: self.backends.len(),
            backend_references: self.entries.len(),
            node_port_addr_by_port: self.expansions.len(),
            prev_source_ranges: self
                .entries
                .values()
                .filter(|entry| entry.ranges.is_some())
                .count(),
            restored_quarantines: self.quarantines.len(),
            wildcard_references: self.wildcards.len(),
        }
    }

    fn wanted_affinity(&self) -> HashSet<AffinityKey> {
        let entries = self
            .entries
            .values()
            .filter(|entry| entry.has_affinity && !entry.is_gone);
        let keys = entries.flat_map(|entry| {
            let active = entry
                .set
                .iter()
                .filter(|row| row.params.state == BackendState::Active);
            active.filter_map(|row| {
                let backend = self.backends.get(&row.params.address)?.id;
                Some(AffinityKey {
                    id: entry.id,
                    backend,
                })
            })
        });
        keys.collect()
    }

    fn stale(&self) -> Result<Stale, MapError> {
        let mut stale = Stale::default();
        let by_id: HashMap<u16, &L3n4Addr> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_gone)
            .map(|(address, entry)| (entry.id, address))
            .collect();
        let entry_of = |id: u16| by_id.get(&id).and_then(|address| self.entries.get(*address));
        read(&*self.maps, MapKind::Services, &mut |entry| {
            let MapEntry::Service(key, _) = entry else { return };
            let is_wanted = if key.is_wildcard() {
                self.wildcards
                    .get(&key.address.ip())
                    .is_some_and(|wildcard| !wildcard.parents.is_empty())
            } else {
                let entry = self.entries.get(&key.address).filter(|entry| !entry.is_gone);
                entry.is_some_and(|entry| match entry.is_dirty {
                    true => key.slot <= entry.high,
                    false => usize::from(key.slot) <= entry.slots.len(),
                })
            };
            if !is_wanted {
                stale.services.push(key);
            }
        })?;
        // Masters first: what leads to the others goes before them.
        stale.services.sort_by_key(|key: &ServiceKey| key.slot);
        let affinity = self.wanted_affinity();
        let pending_deletes = self
            .entries
            .values()
            .filter_map(|entry| entry.pending_deletes.as_ref());
        let named: HashSet<BackendKey> = pending_deletes
            .flat_map(|pending_deletes| pending_deletes.backends.iter().copied())
            .collect();
        // Of a state that an earlier run wrote and that stays, not all entries are known.
        let is_kept = |id: u16| {
            let pending_deletes = entry_of(id).and_then(|entry| entry.pending_deletes.as_ref());
            pending_deletes.is_some_and(|pending_deletes| !pending_deletes.held.is_empty())
        };
        read(&*self.maps, MapKind::Backends, &mut |entry| {
            let MapEntry::Backend(key, value) = entry else {
                return;
            };
            let known = self.backends.get(&value.address);
            if known.is_none_or(|known| known.id != key.id) && !named.contains(&key) {
                stale.backends.push(key);
            }
        })?;
        read(&*self.maps, MapKind::ReverseNat, &mut |entry| {
            let MapEntry::ReverseNat(key, _) = entry else {
                return;
            };
            if by_id
                .get(&key.id)
                .is_none_or(|address| address.is_ipv6() != key.ipv6)
            {
                stale.reverse.push(key);
            }
        })?;
        read(&*self.maps, MapKind::Maglev, &mut |entry| {
            let MapEntry::Maglev(key, _) = entry else { return };
            let is_wanted = entry_of(key.id).is_some_and(|entry| entry.has_maglev);
            if !is_wanted
                || by_id
                    .get(&key.id)
                    .is_none_or(|address| address.is_ipv6() != key.ipv6)
            {
                stale.maglev.push(key);
            }
        })?;
        read(&*self.maps, MapKind::AffinityMatch, &mut |entry| {
            let MapEntry::AffinityMatch(key) = entry else {
                return;
            };
            if !affinity.contains(&key) && !is_kept(key.id) {
                stale.affinity.push(key);
            }
        })?;
        read(&*self.maps, MapKind::SourceRange, &mut |entry| {
            let MapEntry::SourceRange(key) = entry else {
                return;
            };
            let is_of_family = by_id
                .get(&key.id)
                .is_some_and(|a| a.is_ipv6() == key.cidr.addr().is_ipv6());
            let ranges = entry_of(key.id)
                .and_then(|entry| entry.ranges.as_deref())
                .unwrap_or_default();
            if is_kept(key.id) && is_of_family {
                return;
            }
            if !is_of_family || !ranges.iter().any(|net| net.trunc() == key.cidr) {
                stale.ranges.push(key);
            }
        })?;
        Ok(stale)
    }
}

#[derive(Default)]
struct Stale {
    services: Vec<ServiceKey>,
    backends: Vec<BackendKey>,
    reverse: Vec<crate::maps::RevNatKey>,
    maglev: Vec<crate::maps::MaglevKey>,
    affinity: Vec<AffinityKey>,
    ranges: Vec<crate::maps::SourceRangeKey>,
}

// An address of protocol ANY stands for the three real ones.
fn same_any_proto(address: L3n4Addr) -> impl Iterator<Item = L3n4Addr> {
    let any = address.proto() == L4Proto::Any;
    let protos: &[L4Proto] = if any {
        &[L4Proto::Tcp, L4Proto::Udp, L4Proto::Sctp]
    } else {
        &[L4Proto::None]
    };
    protos
        .iter()
        .map(move |proto| if any { address.with_proto(*proto) } else { address })
}

fn read(maps: &dyn LbMaps, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
    let mut tries = 0;
    loop {
        // A failed read may have visited some entries; visiting them again is harmless, deleting twice as well.
        match maps.dump(kind, visit) {
            Err(_) if tries < PRUNE_TRIES => tries += 1,
            result => return result,
        }
    }
}

fn delete_all<K: Copy>(
    mut keys: Vec<K>,
    delete: impl Fn(&[K]) -> Vec<(usize, MapError)>,
) -> Result<(), MapError> {
    let mut last = None;
    for _ in 0..PRUNE_TRIES {
        if keys.is_empty() {
            return Ok(());
        }
        let failures = delete(&keys);
        keys = failures.iter().map(|(index, _)| keys[*index]).collect();
        last = failures.into_iter().next().map(|(_, error)| error);
    }
    last.map_or(Ok(()), Err)
}
