// SPDX-License-Identifier: Apache-2.0

//! Releases what frontends hold that a full map refused.
//!
//! A frontend that fits only in part would keep others from fitting: it leaves the maps within the round. If the maps
//! had a state of it that packets could use, that state stays, and only what was added to it goes. This works since
//! everything that adds entries to a map is written before anything is overwritten (see [`Stages`](super::super::stage::Stages)).

use std::net::IpAddr;

use ipnet::IpNet;
use skep_bpf_maps::lb::{AffinityMatchKey, MaglevKey};
use skep_datapath_maps::IpEither;
use skep_datapath_maps::transaction::{Phase, Stage as _};
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{Change, L3n4Addr};

use super::super::ReconcileError;
use super::super::ids::Ids;
use super::super::restore::backends_of_table;
use super::super::select::release;
use super::super::slots::Slots;
use super::super::stage::{Owner, Transaction};
use super::super::state::{BackendEntry, PendingDeletes, Planned, Released, Served};
use super::Ops;
use crate::maps::LoadBalancerMaps;
use crate::maps::key::{self, ServiceKey, SourceRangeKey};

/// What was done for owners that full maps refused.
#[derive(Default)]
pub(super) struct GivenBack {
    /// Owners that have nothing in the maps any more, but for deletions that failed.
    released: HashSet<Owner>,
    /// Owners that have in the maps what they had before.
    restored: HashSet<Owner>,
    /// Those of both of which something could not be deleted.
    failed: HashSet<Owner>,
}

impl GivenBack {
    /// Whether something that an owner was to write or to delete is left.
    fn is_unfinished(&self, owner: Owner, txn: &Transaction) -> bool {
        match self.settles(owner) {
            true => self.failed.contains(&owner),
            false => txn.is_incomplete(owner),
        }
    }

    /// Whether the state of an owner is settled.
    pub(super) fn settles(&self, owner: Owner) -> bool {
        self.released.contains(&owner) || self.restored.contains(&owner)
    }
}

// Keys that a frontend added to a state that stays.
#[derive(Default)]
struct Added {
    slots: Vec<(Owner, ServiceKey)>,
    affinity: Vec<(Owner, AffinityMatchKey)>,
    ranges: Vec<(Owner, SourceRangeKey)>,
    maglev: Vec<(Owner, IpEither<MaglevKey, MaglevKey>)>,
}

impl Ops {
    pub(super) fn give_back(&mut self, wildcards: &[(Owner, IpAddr)]) -> GivenBack {
        let mut given = GivenBack::default();
        let refused = self.refused_frontends();
        if refused.is_empty() {
            return given;
        }
        let mut planned = std::mem::take(&mut self.round.planned);
        let mut restore: Vec<(Owner, L3n4Addr, u16, Box<Served>)> = Vec::new();
        let mut release: Vec<(Owner, L3n4Addr)> = Vec::new();
        self.part(&refused, &mut planned, &mut restore, &mut release);
        given.restored = restore.iter().map(|(owner, ..)| *owner).collect();
        given.released = release.iter().map(|(owner, _)| *owner).collect();

        let served: HashMap<Owner, &Served> = restore
            .iter()
            .map(|(owner, _, _, served)| (*owner, &**served))
            .collect();
        let added = self.added(&served);
        self.round.stages.clear();
        let before = self.round.dropped.len();
        for (owner, address, high, served) in &restore {
            self.restore_served(*owner, *address, *high, served);
        }
        let undone = self.round.dropped.iter_mut().skip(before);
        undone.for_each(|dropped| dropped.is_named = false);
        // They are among the deletions that their states wait for.
        let of_restored = |released: &Released| given.restored.contains(&released.owner);
        self.round.released.retain(|released| !of_restored(released));
        let gone = std::mem::take(&mut self.round.gone);
        release
            .iter()
            .for_each(|(owner, address)| self.stage_gone(*owner, *address));
        // A retry gets the same ids.
        let of_refused = self.round.dropped.iter_mut().skip(before);
        of_refused.for_each(|dropped| dropped.keeps_id = true);
        // What was refused may have been what writes the wildcard entry of a state that stays.
        let of_restored = wildcards
            .iter()
            .filter(|(owner, _)| given.restored.contains(owner));
        self.round.wildcards.extend(of_restored);
        let marks = std::mem::take(&mut self.round.wildcards);
        for (owner, ip) in &marks {
            self.stage_wildcard(*owner, *ip);
        }
        let stages = &mut self.round.stages;
        added
            .slots
            .iter()
            .for_each(|(owner, key)| stages.gone_slots.push(*owner, *key));
        added
            .affinity
            .iter()
            .for_each(|(owner, key)| stages.gone_affinity.push(*owner, *key));
        added
            .ranges
            .iter()
            .for_each(|(owner, key)| stages.gone_ranges.push(*owner, *key));
        added
            .maglev
            .iter()
            .for_each(|(owner, key)| stages.gone_maglev.push(*owner, *key));

        let mut txn = Transaction::with_owners(self.round.txn.owners());
        self.round.stages.run_release(&self.maps, &mut txn);
        let unwritten = self.round.stages.unwritten().collect();
        self.forget_written(&unwritten);
        self.settle_given_back(&restore, &release, &added, &txn);
        self.settle_wildcards(&marks, &txn);
        let owners = given.released.iter().chain(&given.restored);
        given.failed = owners
            .copied()
            .filter(|owner| txn.is_incomplete(*owner))
            .collect();
        self.round.gone = gone;
        self.round.planned = planned;
        given
    }

    /// Keeps the entries of backends that slots of failed frontends may still name.
    pub(super) fn keep_named_backends(&mut self, given: &GivenBack) {
        if !self.round.txn.has_failures() {
            return;
        }
        self.hold_named_backends(given);
        let Self { round, entries, .. } = self;
        let txn = &round.txn;
        let planned = round.planned.iter();
        let addresses: HashMap<Owner, L3n4Addr> = planned.map(|plan| (plan.owner, plan.address)).collect();
        round.released.retain(|released| {
            let address = addresses.get(&released.owner);
            let entry = address.and_then(|address| entries.get_mut(address));
            let Some(entry) = entry.filter(|_| given.is_unfinished(released.owner, txn)) else {
                return true;
            };
            let pending_deletes = entry.pending_deletes.get_or_insert_default();
            pending_deletes.backends.push(released.key);
            false
        });
    }

    // Frontends that failed hold what their slots may name and they do not refer to any more, and what an earlier run wrote.
    fn hold_named_backends(&mut self, given: &GivenBack) {
        let Self {
            round,
            entries,
            backends,
            backend_ids,
            restored_backends,
            maps,
            ..
        } = self;
        let mut addresses: HashMap<Owner, L3n4Addr> = HashMap::default();
        for plan in &round.planned {
            addresses.insert(plan.owner, plan.address);
            if !given.settles(plan.owner)
                && round.txn.is_incomplete(plan.owner)
                && let Some(served) = &plan.served
                && let Some(entry) = entries.get_mut(&plan.address)
            {
                let mut pending_deletes = entry.pending_deletes.take().unwrap_or_default();
                hold_restored(
                    (entry.id, plan.address.is_ipv6()),
                    (&served.restored, served.has_maglev),
                    maps,
                    (backends, backend_ids, restored_backends),
                    &mut pending_deletes,
                );
                entry.pending_deletes = (pending_deletes != Box::default()).then_some(pending_deletes);
            }
        }
        for dropped in round.dropped.iter().filter(|dropped| dropped.is_named) {
            let address = addresses.get(&dropped.owner);
            let entry = address.and_then(|address| entries.get_mut(address));
            if let Some(entry) = entry.filter(|_| given.is_unfinished(dropped.owner, &round.txn))
                && let Some(known) = backends.get_mut(&dropped.address)
            {
                let pending_deletes = entry.pending_deletes.get_or_insert_default();
                if !pending_deletes.shared.contains(&dropped.address) {
                    known.holds += 1;
                    pending_deletes.shared.push(dropped.address);
                }
            }
        }
    }

    // Frontends of the round that a full map refused, and its answer.
    fn refused_frontends(&self) -> HashMap<u32, ReconcileError> {
        let round = &self.round;
        if !round.txn.has_failures() {
            return HashMap::default();
        }
        let refused = round.txn.incomplete().filter(|(_, error)| error.is_full());
        refused
            .map(|(owner, error)| (round.frontends[owner as usize], error.clone()))
            .collect()
    }

    /// A frontend of which one address was refused stays as it is at all of them.
    pub(super) fn refuse_as_a_whole(&mut self) {
        let refused = self.refused_frontends();
        if refused.is_empty() {
            return;
        }
        let round = &mut self.round;
        for plan in &round.planned {
            let is_gone = self.entries.get(&plan.address).is_none_or(|entry| entry.is_gone);
            if let Some(error) = refused.get(&round.frontends[plan.owner as usize])
                && !is_gone
                && !round.txn.is_incomplete(plan.owner)
            {
                round.txn.fail(plan.owner, error.clone());
            }
        }
    }

    // Decides what happens to each address of the refused frontends.
    fn part(
        &self,
        refused: &HashMap<u32, ReconcileError>,
        planned: &mut [Planned],
        restore: &mut Vec<(Owner, L3n4Addr, u16, Box<Served>)>,
        release: &mut Vec<(Owner, L3n4Addr)>,
    ) {
        let (frontends, txn) = (&self.round.frontends, &self.round.txn);
        let mut served: HashSet<u32> = HashSet::default();
        for plan in planned.iter() {
            if plan.served.is_some() {
                served.insert(frontends[plan.owner as usize]);
            }
        }
        for plan in planned {
            let frontend = frontends[plan.owner as usize];
            let entry = self.entries.get(&plan.address);
            if !refused.contains_key(&frontend) || entry.is_none_or(|entry| entry.is_gone) {
                continue;
            }
            let is_failed = txn.is_incomplete(plan.owner);
            let is_full = txn.error(plan.owner).is_some_and(ReconcileError::is_full);
            let is_early = txn.failed_in(plan.owner) == Some(Phase::Add);
            match plan.served.take() {
                Some(served) if is_early && is_full => {
                    restore.push((plan.owner, plan.address, plan.high, served));
                }
                Some(served) => plan.served = Some(served),
                None if is_failed || !served.contains(&frontend) => release.push((plan.owner, plan.address)),
                None => {}
            }
        }
    }

    // What was written for owners beyond the state that they had.
    fn added(&self, served: &HashMap<Owner, &Served>) -> Added {
        let mut added = Added::default();
        if served.is_empty() {
            return added;
        }
        let stages = &self.round.stages;
        for (owner, key) in stages.new_slots.keys() {
            if served.contains_key(&owner) {
                added.slots.push((owner, key));
            }
        }
        let mut matched: HashSet<(Owner, u32)> = HashSet::default();
        for (owner, served) in served {
            let rows = served.set.iter().filter(|_| served.has_affinity);
            let rows = rows.filter(|row| row.keeps_clients());
            let ids = rows.filter_map(|row| self.backends.get(&row.params.address));
            matched.extend(ids.map(|known| (*owner, known.id)));
            matched.extend(served.restored.iter().map(|id| (*owner, *id)));
        }
        for (owner, key) in stages.affinity.keys() {
            if served.contains_key(&owner) && !matched.contains(&(owner, key.backend_id)) {
                added.affinity.push((owner, key));
            }
        }
        for (owner, key) in stages.ranges.keys() {
            // An earlier run may have written what was written again.
            let Some(served) = served.get(&owner).filter(|served| served.restored.is_empty()) else {
                continue;
            };
            let cidr = cidr(&key);
            let mut had = served.ranges.iter().flat_map(|nets| nets.iter());
            if !had.any(|net| Some(net.trunc()) == cidr) {
                added.ranges.push((owner, key));
            }
        }
        for (owner, key) in stages.new_maglev.keys() {
            if served.get(&owner).is_some_and(|served| !served.has_maglev) {
                added.maglev.push((owner, key));
            }
        }
        added
    }

    // Takes the state of a frontend address back that the maps still hold.
    fn restore_served(&mut self, owner: Owner, address: L3n4Addr, high: u16, served: &Served) {
        let Self {
            entries,
            backends,
            backend_ids,
            restored_backends,
            maps,
            round,
            settings,
            ..
        } = self;
        let Some(entry) = entries.get_mut(&address) else {
            return;
        };
        let mut pending_deletes = served.pending_deletes.clone().unwrap_or_default();
        for address in pending_deletes.held.iter().chain(&pending_deletes.shared) {
            if let Some(known) = backends.get_mut(address) {
                known.holds += 1;
            }
        }
        hold_restored(
            (entry.id, address.is_ipv6()),
            (&served.restored, served.has_maglev),
            maps,
            (backends, backend_ids, restored_backends),
            &mut pending_deletes,
        );
        let new = std::mem::replace(&mut entry.set, served.set.clone());
        for change in served.set.diff(&new) {
            match change {
                Change::Added(row) => release(owner, row, backends, round),
                Change::Removed(row) => {
                    if let Some(known) = backends.get_mut(&row.params.address) {
                        known.add(row, row.revision(), settings);
                    }
                }
                // The newest row says what the backend entry says.
                Change::Updated { new, .. } => entry.set = entry.set.with(new.clone()),
            }
        }
        entry.pending_deletes = (pending_deletes != Box::default()).then_some(pending_deletes);
        entry.master = served.master;
        entry.ranges = served.ranges.clone();
        entry.has_affinity = served.has_affinity;
        entry.has_maglev = served.has_maglev;
        entry.slots = Slots::None;
        entry.high = high;
        entry.is_dirty = true;
    }

    fn settle_given_back(
        &mut self,
        restore: &[(Owner, L3n4Addr, u16, Box<Served>)],
        release: &[(Owner, L3n4Addr)],
        added: &Added,
        txn: &Transaction,
    ) {
        for (owner, address) in release {
            if txn.is_incomplete(*owner) {
                if let Some(entry) = self.entries.get_mut(address) {
                    entry.is_dirty = true;
                }
            } else if let Some(entry) = self.entries.remove(address) {
                self.service_ids.park(*address, u32::from(entry.id));
            }
        }
        for (owner, address, ..) in restore.iter().filter(|(owner, ..)| txn.is_incomplete(*owner)) {
            let Some(entry) = self.entries.get_mut(address) else {
                continue;
            };
            let of_owner = |by: Owner| by == *owner;
            let slots = added.slots.iter().filter(|(by, _)| of_owner(*by));
            let slots = slots.map(|(_, key)| key.map(|v4| v4.slot, |v6| v6.slot).into_inner());
            entry.high = slots.fold(entry.high, u16::max);
            entry.has_maglev |= added.maglev.iter().any(|(by, _)| of_owner(*by));
            let affinity = added.affinity.iter().filter(|(by, _)| of_owner(*by));
            let ranges = added.ranges.iter().filter(|(by, _)| of_owner(*by));
            let pending_deletes = entry.pending_deletes.get_or_insert_default();
            pending_deletes.add(
                affinity.map(|(_, key)| key.backend_id),
                ranges.filter_map(|(_, key)| cidr(key)),
            );
        }
    }
}

// Holds the backends that slots of an earlier run name, and its lookup table.
fn hold_restored(
    (id, ipv6): (u16, bool),
    (slots, has_table): (&[u32], bool),
    maps: &LoadBalancerMaps,
    (backends, backend_ids, restored_backends): (
        &mut HashMap<L3n4Addr, BackendEntry>,
        &mut Ids,
        &HashMap<u32, L3n4Addr>,
    ),
    pending_deletes: &mut PendingDeletes,
) {
    if slots.is_empty() {
        return;
    }
    let mut named: HashSet<u32> = slots.iter().copied().collect();
    // Slots and table may be of different states, if a write failed between them.
    if has_table {
        named.extend(backends_of_table(maps, id, ipv6));
    }
    for id in &named {
        let Some(address) = restored_backends.get(id).copied() else {
            continue;
        };
        if !backends.contains_key(&address)
            && let Some(taken) = backend_ids.allocate(&address)
        {
            if taken == *id {
                backends.insert(address, BackendEntry::new(*id));
            } else {
                backend_ids.release(taken);
            }
        }
        match backends.get_mut(&address).filter(|known| known.id == *id) {
            Some(known) => {
                known.holds += 1;
                pending_deletes.held.push(address);
            }
            // The address has another entry.
            None => pending_deletes.backends.push(key::backend(*id, ipv6)),
        }
    }
}

fn cidr(key: &SourceRangeKey) -> Option<IpNet> {
    let (ip, bits) = key.map(|v4| v4.cidr(), |v6| v6.cidr()).into_inner();
    IpNet::new(ip, bits).ok()
}
