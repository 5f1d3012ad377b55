// SPDX-License-Identifier: Apache-2.0

//! Restores what an earlier run left in the maps, and prunes what no frontend needs.

use std::fmt;

use skep_bpf_maps::lb::{IdMark, ServiceValue};
use skep_bpf_sys::MapError;
use skep_datapath_maps::transaction::{Deletions, Stage, WriteError};
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{BackendState, L3n4Addr, L4Proto};

use super::capacity::Capacity;
use super::stage::{Owner, add};
use super::state::FrontendEntry;
use super::{Ops, ReconcileError};
use crate::maps::key::{self, BackendKey};
use crate::maps::{
    AffinityMatches, Backends, LoadBalancerMaps, MaglevTables, ReverseNats, Services, SourceRanges,
};

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
    /// Backends in all slots, in their order.
    pub(super) backends: Box<[u32]>,
    /// Whether it has a lookup table.
    pub(super) has_table: bool,
}

impl Restored {
    fn new(mut found: Found, has_table: bool) -> Self {
        found.slots.sort_unstable();
        let high = found.slots.last().map_or(0, |(slot, _)| *slot);
        let in_a_row = found
            .slots
            .iter()
            .zip(1..)
            .take_while(|((slot, _), at)| slot == at);
        let sure = in_a_row.count() as u16;
        Self {
            high,
            sure,
            master: found.master.filter(|master| master.count <= sure),
            backends: found.slots.iter().map(|(_, backend)| *backend).collect(),
            has_table,
        }
    }

    /// Backends in the slots from 1 without a gap.
    pub(super) fn sure_backends(&self) -> &[u32] {
        &self.backends[..usize::from(self.sure)]
    }
}

impl Ops {
    /// Restores ids and quarantined backends from the maps; returns how many services have an id there. To be called
    /// once, before the first frontend.
    ///
    /// # Errors
    /// [`ReconcileError::Read`] if a map cannot be read. What was read so far stays.
    pub fn restore(&mut self) -> Result<usize, ReconcileError> {
        let maps = self.maps.clone();
        // Whatever is read: nothing is taken for free that may not be.
        self.service_ids.resume(IdMark::default());
        self.backend_ids.resume(IdMark::default());
        let [services, backends] = maps.id_marks()?;
        self.service_ids.resume(services);
        self.backend_ids.resume(backends);
        let mut leaving: HashSet<u32> = HashSet::default();
        maps.each_backend(|id, value| {
            self.backend_ids.restore(value.address, id);
            self.restored_backends.insert(id, value.address);
            if value.state != BackendState::Active.map_flags() {
                leaving.insert(id);
            }
        })?;
        let mut found: HashMap<L3n4Addr, Found> = HashMap::default();
        maps.each_service(|address, slot, value| {
            if key::is_wildcard(&address, slot) {
                return;
            }
            let found = found.entry(address).or_default();
            if slot == 0 {
                self.service_ids.restore(address, u32::from(value.rev_nat.get()));
                found.master = Some(value);
            } else {
                found.slots.push((slot, value.backend_id()));
            }
        })?;
        // Ids of services that were half deleted: what is left of them must not meet a new service.
        let ids = &mut self.service_ids;
        read(|| maps.each_reverse_nat(|id, _| ids.skip(u32::from(id))))?;
        read(|| maps.each_affinity(|id, _| ids.skip(u32::from(id))))?;
        read(|| maps.each_source_range(|id, _| ids.skip(u32::from(id))))?;
        let mut tables: HashSet<(u16, bool)> = HashSet::default();
        for ipv6 in [false, true] {
            let keys = maps.maglev.of(ipv6).keys()?;
            tables.extend(keys.iter().map(|key| (key.rev_nat.get(), ipv6)));
        }
        for (frontend, found) in found {
            let master = found.master.as_ref();
            let has_table =
                master.is_some_and(|master| tables.contains(&(master.rev_nat.get(), frontend.is_ipv6())));
            let (count, qcount) = found
                .master
                .map_or((0, 0), |master| (master.count, master.qcount));
            let slots = usize::from(count) + usize::from(qcount);
            if qcount > 0 && found.slots.len() == slots {
                // Those that end are behind the others, too.
                let behind = found.slots.iter();
                let behind = behind.filter(|(slot, id)| *slot > count && !leaving.contains(id));
                let backends: HashSet<L3n4Addr> = behind
                    .filter_map(|(_, id)| self.restored_backends.get(id))
                    .flat_map(|address| same_any_proto(*address))
                    .collect();
                for frontend in same_any_proto(frontend).filter(|_| !backends.is_empty()) {
                    self.quarantines.insert(frontend, backends.clone());
                }
            }
            self.restored.insert(frontend, Restored::new(found, has_table));
        }
        Ok(self.service_ids.restored_len())
    }

    /// Removes entries that no frontend needs, and forgets ids of an earlier run that were not claimed. To be called
    /// when every frontend is known.
    ///
    /// # Errors
    /// The first map that cannot be read, or entry that cannot be deleted; the rest is done all the same.
    pub fn prune(&mut self) -> Result<(), ReconcileError> {
        self.service_ids.drop_restored();
        self.backend_ids.drop_restored();
        self.restored = HashMap::default();
        self.restored_backends = HashMap::default();
        let entries = &self.entries;
        self.quarantines
            .retain(|frontend, _| entries.contains_key(frontend));
        let mut stale = Stale::default();
        self.find_stale(&mut stale)?;
        let (maps, freed) = (&*self.maps, &mut self.freed);
        add(&mut freed.services, &stale.services);
        add(&mut freed.backends, &stale.backends);
        add(&mut freed.reverse_nat, &stale.reverse_nat);
        add(&mut freed.maglev, &stale.maglev);
        add(&mut freed.source_ranges, &stale.source_ranges);
        freed.affinity = freed.affinity.saturating_add(stale.affinity.len() as u32);
        let results = [
            delete_all(stale.services, &maps.services),
            delete_all(stale.reverse_nat, &maps.reverse_nat),
            delete_all(stale.maglev, &maps.maglev),
            delete_all(stale.affinity, &maps.affinity),
            delete_all(stale.source_ranges, &maps.source_ranges),
            delete_all(stale.backends, &maps.backends),
        ];
        self.capacity = Capacity::UNKNOWN;
        self.find_retriable();
        Ok(results.into_iter().collect::<Result<(), WriteError>>()?)
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

    // Service id and backend id of each match that is wanted.
    fn wanted_affinity(&self) -> HashSet<(u16, u32)> {
        let entries = self
            .entries
            .values()
            .filter(|entry| entry.has_affinity && !entry.is_gone);
        let keys = entries.flat_map(|entry| {
            let active = entry.set.iter().filter(|row| row.keeps_clients());
            active.filter_map(|row| Some((entry.id, self.backends.get(&row.params.address)?.id)))
        });
        keys.collect()
    }

    fn find_stale(&self, stale: &mut Stale) -> Result<(), MapError> {
        let maps = &*self.maps;
        let by_id: HashMap<u16, &L3n4Addr> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_gone)
            .map(|(address, entry)| (entry.id, address))
            .collect();
        let entry_of = |id: u16| by_id.get(&id).and_then(|address| self.entries.get(*address));
        let is_of_family =
            |id: u16, ipv6: bool| by_id.get(&id).is_some_and(|address| address.is_ipv6() == ipv6);
        let mut services = Vec::new();
        read(|| {
            maps.each_service(|address, slot, _| {
                let is_wanted = if key::is_wildcard(&address, slot) {
                    self.wildcards
                        .get(&address.ip())
                        .is_some_and(|wildcard| !wildcard.parents.is_empty())
                } else {
                    let entry = self.entries.get(&address).filter(|entry| !entry.is_gone);
                    entry.is_some_and(|entry| match entry.is_dirty {
                        true => slot <= entry.high,
                        false => usize::from(slot) <= entry.slots.len(),
                    })
                };
                if !is_wanted {
                    services.push((slot, key::service(&address, slot)));
                }
            })
        })?;
        // Masters first: what leads to the others goes before them.
        services.sort_by_key(|(slot, _)| *slot);
        services
            .iter()
            .for_each(|(_, key)| stale.services.push(PRUNE, *key));
        let affinity = self.wanted_affinity();
        let named = named_backends(&self.entries);
        // Of a state that an earlier run wrote and that stays, not all entries are known.
        let is_kept = |id: u16| {
            let pending_deletes = entry_of(id).and_then(|entry| entry.pending_deletes.as_ref());
            pending_deletes.is_some_and(|pending_deletes| !pending_deletes.held.is_empty())
        };
        read(|| {
            maps.each_backend(|id, value| {
                let known = self.backends.get(&value.address);
                let key = key::backend(id, value.address.is_ipv6());
                if known.is_none_or(|known| known.id != id) && !named.contains(&key) {
                    stale.backends.push(PRUNE, key);
                }
            })
        })?;
        read(|| {
            maps.each_reverse_nat(|id, address| {
                let ipv6 = address.is_ipv6();
                if !is_of_family(id, ipv6) {
                    stale.reverse_nat.push(PRUNE, key::reverse_nat(id, ipv6));
                }
            })
        })?;
        read(|| {
            maps.each_maglev(|id, ipv6, _| {
                let is_wanted = entry_of(id).is_some_and(|entry| entry.has_maglev);
                if !is_wanted || !is_of_family(id, ipv6) {
                    stale.maglev.push(PRUNE, key::maglev(id, ipv6));
                }
            })
        })?;
        read(|| {
            maps.each_affinity(|id, backend| {
                if !affinity.contains(&(id, backend)) && !is_kept(id) {
                    stale.affinity.push(PRUNE, key::affinity(id, backend));
                }
            })
        })?;
        read(|| {
            maps.each_source_range(|id, cidr| {
                let is_of_family = is_of_family(id, cidr.addr().is_ipv6());
                if is_kept(id) && is_of_family {
                    return;
                }
                let ranges = entry_of(id).and_then(|entry| entry.ranges.as_deref());
                let mut ranges = ranges.unwrap_or_default().iter();
                if !is_of_family || !ranges.any(|net| net.trunc() == cidr) {
                    stale.source_ranges.push(PRUNE, key::source_range(id, &cidr));
                }
            })
        })
    }
}

/// The one owner of what a prune deletes.
const PRUNE: Owner = 0;

/// What no frontend needs.
#[derive(Default)]
struct Stale {
    services: Deletions<Services>,
    backends: Deletions<Backends>,
    reverse_nat: Deletions<ReverseNats>,
    maglev: Deletions<MaglevTables>,
    affinity: Deletions<AffinityMatches>,
    source_ranges: Deletions<SourceRanges>,
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

fn read(mut each: impl FnMut() -> Result<(), MapError>) -> Result<(), MapError> {
    let mut tries = 0;
    loop {
        // A failed read may have visited some entries; visiting them again is harmless, deleting twice as well.
        match each() {
            Err(_) if tries < PRUNE_TRIES => tries += 1,
            result => return result,
        }
    }
}

/// Backend entries without a row that slots of frontends may name.
pub(super) fn named_backends(entries: &HashMap<L3n4Addr, Box<FrontendEntry>>) -> HashSet<BackendKey> {
    let pending_deletes = entries
        .values()
        .filter_map(|entry| entry.pending_deletes.as_ref());
    let named = pending_deletes.flat_map(|pending_deletes| pending_deletes.backends.iter().copied());
    named.collect()
}

/// Backends in the lookup table of a service; none if it has no table, or that cannot be read.
pub(super) fn backends_of_table(maps: &LoadBalancerMaps, id: u16, ipv6: bool) -> HashSet<u32> {
    let key = key::maglev(id, ipv6).into_inner();
    let mut backends = HashSet::default();
    let result = read(|| {
        let table = maps.maglev.of(ipv6).lookup(&key)?;
        backends.extend(table.unwrap_or_default());
        Ok(())
    });
    if let Err(error) = result {
        tracing::warn!(id, error = hive::error_chain(&error), "Cannot read Maglev table");
    }
    backends
}

fn delete_all<S: Stage>(mut stage: S, map: &S::Map) -> Result<(), WriteError> {
    let mut last = None;
    for _ in 0..PRUNE_TRIES {
        last = None;
        stage.write(map, |_, error| last = Some(error));
        stage.retain_failed();
        if stage.is_empty() {
            break;
        }
    }
    last.map_or(Ok(()), Err)
}
