// SPDX-License-Identifier: Apache-2.0

//! Plans what of one frontend address differs from what the maps hold, part by part in the order of the stages.

use std::net::SocketAddr;

use ipnet::IpNet;
use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_datapath_maps::transaction::Stage as _;
use skep_loadbalancer_maglev::Maglev;
use skep_loadbalancer_model::hash::HashMap;
use skep_loadbalancer_model::types::{BackendRow, BackendSet, Change, Frontend, L3n4Addr};
use smallvec::SmallVec;

use super::super::ids::Ids;
use super::super::select::{Quarantine, acquire, lookup_table, moves, order, release, release_hold};
use super::super::slots::{self, Counts, Slots};
use super::super::stage::Owner;
use super::super::state::{BackendEntry, FrontendEntry, PendingDeletes, Released, Round};
use super::super::{ReconcileError, Settings};
use crate::maps::key;

/// One frontend address on its way into the round.
pub(super) struct EntryPlan<'a> {
    pub(super) owner: Owner,
    pub(super) frontend: &'a Frontend,
    pub(super) address: L3n4Addr,
    pub(super) flags: ServiceFlags,
    pub(super) settings: &'a Settings,
    pub(super) maglev: &'a Maglev,
    pub(super) backend_ids: &'a mut Ids,
    pub(super) backends: &'a mut HashMap<L3n4Addr, BackendEntry>,
    pub(super) quarantine: Quarantine<'a>,
    pub(super) round: &'a mut Round,
    pub(super) entry: &'a mut FrontendEntry,
    /// Backends that are in the maps for it.
    pub(super) old_set: &'a BackendSet,
    /// What is different about the backends that it has now.
    pub(super) changes: &'a [Change<'a>],
    /// Everything is written, whatever is known of the maps.
    pub(super) rewrite: bool,
    /// Backends came or went, or their order may be another.
    pub(super) is_changed: bool,
    /// A weight changed.
    pub(super) is_reweighted: bool,
}

impl EntryPlan<'_> {
    /// Plans everything; `head` is the master entry without counts and id. Returns the id.
    pub(super) fn run(mut self, head: ServiceValue) -> Result<u16, ReconcileError> {
        let highest = self.entry.high.max(self.entry.slots.len() as u16);
        self.take_backends()?;
        let counts = self.fill_slots();
        self.match_affinity();
        self.fill_lookup_table(counts);
        self.limit_clients();
        self.repeat_deletions();
        self.write_master(head, counts);
        self.drop_slots_up_to(highest);
        self.release_backends();
        let Self { frontend, entry, .. } = self;
        entry.set = frontend.backends.clone();
        entry.is_fresh = false;
        entry.is_dirty = false;
        Ok(entry.id)
    }

    /// Allocates ids for new backends, in slot order. Nothing of the entry changes before all have one.
    fn take_backends(&mut self) -> Result<(), ReconcileError> {
        let (owner, frontend, settings) = (self.owner, self.frontend, self.settings);
        let Self {
            backends,
            round,
            quarantine,
            ..
        } = self;
        let mut added: SmallVec<[&BackendRow; 4]> = SmallVec::new();
        self.is_changed = quarantine.is_active();
        for change in self.changes {
            match *change {
                Change::Added(row) => added.push(row),
                Change::Removed(_) => self.is_changed = true,
                Change::Updated { old, new } => {
                    self.is_changed |= quarantine.class(old) != quarantine.class(new);
                    self.is_reweighted |= old.params.weight != new.params.weight;
                }
            }
        }
        if added.len() > 1 {
            added.sort_by_key(|row| quarantine.sort_key(row));
        }
        for (done, row) in added.iter().enumerate() {
            if acquire(owner, row, backends, self.backend_ids, settings, round).is_none() {
                let before = round.dropped.len();
                for row in &added[..done] {
                    release(owner, row, backends, round);
                }
                let undone = round.dropped.iter_mut().skip(before);
                undone.for_each(|dropped| dropped.is_named = false);
                self.entry.set = self.old_set.clone();
                return Err(ReconcileError::NoId);
            }
        }
        self.is_changed |= !added.is_empty();
        for change in self.changes {
            if let Change::Updated { old, new } = *change
                && let Some(known) = backends.get_mut(&new.params.address)
            {
                known.add(new, new.revision(), settings);
                known.remove(old);
                known.write(owner, new.params.address, round);
            }
        }
        if self.entry.is_dirty {
            for row in &frontend.backends {
                if let Some(known) = backends.get_mut(&row.params.address) {
                    known.write(owner, row.params.address, round);
                }
            }
        }
        Ok(())
    }

    fn fill_slots(&mut self) -> Counts {
        let is_reflagged = self.rewrite || self.entry.master.service_flags() != self.flags;
        let mut old = std::mem::take(&mut self.entry.slots);
        if !self.is_changed && !self.rewrite {
            if is_reflagged {
                for (at, backend) in old.as_slice().iter().enumerate() {
                    self.put_slot(at, *backend);
                }
            }
            self.entry.slots = old;
            return Counts {
                count: self.entry.master.count,
                qcount: self.entry.master.qcount,
            };
        }
        let set = &self.frontend.backends;
        if let Slots::Stable(stable) = &mut old
            && !is_reflagged
            && !self.quarantine.is_active()
        {
            let mut touched = Vec::new();
            if stable.apply(&moves(self.changes, self.backends), &mut touched) {
                touched.sort_unstable();
                touched.dedup();
                for at in touched {
                    if let Some(backend) = old.as_slice().get(at as usize) {
                        self.put_slot(at as usize, *backend);
                    }
                }
                let counts = old.counts();
                self.entry.slots = old;
                return counts;
            }
        }
        let (slots, classes) = order(set, &self.quarantine, self.backends);
        let old = old.as_slice();
        for (at, backend) in slots.as_slice().iter().enumerate() {
            if is_reflagged || old.get(at) != Some(backend) {
                self.put_slot(at, *backend);
            }
        }
        self.entry.slots = slots;
        slots::counts(&classes)
    }

    fn put_slot(&mut self, at: usize, backend: u32) {
        let slot = at as u16 + 1;
        let value = ServiceValue::slot(backend, self.entry.id, self.flags);
        let stages = &mut self.round.stages;
        let stage = match slot > self.entry.high {
            true => &mut stages.new_slots,
            false => &mut stages.slots,
        };
        stage.push(self.owner, key::service(&self.address, slot).with(value));
    }

    /// A fresh entry has no affinity matches to delete: what an earlier run left is pruned.
    fn match_affinity(&mut self) {
        let Self {
            owner,
            frontend,
            ref backends,
            old_set,
            changes,
            rewrite,
            ..
        } = *self;
        let entry = &mut *self.entry;
        let wants_affinity = frontend.service.session_affinity;
        if !wants_affinity && !entry.has_affinity {
            return;
        }
        let id = entry.id;
        let affinity = &mut self.round.stages.affinity;
        let mut stale: SmallVec<[u32; 4]> = SmallVec::new();
        if wants_affinity && (rewrite || !entry.has_affinity) {
            for row in &frontend.backends {
                let Some(known) = backends.get(&row.params.address) else {
                    continue;
                };
                if row.keeps_clients() {
                    affinity.push(owner, (key::affinity(id, known.id), 0));
                } else if !entry.is_fresh {
                    stale.push(known.id);
                }
            }
        }
        if !wants_affinity {
            let rows = old_set.iter().filter(|row| row.keeps_clients());
            stale.extend(rows.filter_map(|row| Some(backends.get(&row.params.address)?.id)));
        } else if entry.has_affinity {
            for change in changes {
                let (row, wanted, had) = match *change {
                    Change::Added(row) => (row, row.keeps_clients(), false),
                    Change::Removed(row) => (row, false, row.keeps_clients()),
                    Change::Updated { old, new } => (new, new.keeps_clients(), old.keeps_clients()),
                };
                let Some(known) = backends.get(&row.params.address) else {
                    continue;
                };
                if wanted && !had && !rewrite {
                    affinity.push(owner, (key::affinity(id, known.id), 0));
                } else if !wanted && had {
                    stale.push(known.id);
                }
            }
        }
        entry.has_affinity = wants_affinity;
        if !stale.is_empty() {
            entry.pending_deletes.get_or_insert_default().add(stale, []);
        }
    }

    fn fill_lookup_table(&mut self, counts: Counts) {
        let frontend = self.frontend;
        let is_wanted = self.settings.uses_maglev(frontend, &self.address) && counts.count > 0;
        let (id, ipv6) = (self.entry.id, self.address.is_ipv6());
        let round = &mut *self.round;
        if is_wanted && (self.rewrite || !self.entry.has_maglev || self.is_changed || self.is_reweighted) {
            // Frontends of one service follow each other and have the same backends.
            let cached = round
                .tables
                .take()
                .filter(|(set, _)| set.is_same(&frontend.backends) && !self.quarantine.is_active());
            let table = match cached {
                Some((_, table)) => table,
                None => lookup_table(self.maglev, &frontend.backends, &self.quarantine, self.backends),
            };
            if !self.quarantine.is_active() {
                round.tables = Some((frontend.backends.clone(), table.clone()));
            }
            let stages = &mut round.stages;
            let stage = match self.entry.has_maglev {
                true => &mut stages.maglev,
                false => &mut stages.new_maglev,
            };
            stage.push(self.owner, key::maglev(id, ipv6).with(table));
        } else if !is_wanted && (self.entry.has_maglev || self.entry.is_dirty) {
            round.stages.stale_maglev.push(self.owner, key::maglev(id, ipv6));
        }
        self.entry.has_maglev = is_wanted;
    }

    /// Client networks of the family of the address.
    fn limit_clients(&mut self) {
        let (id, rewrite, entry) = (self.entry.id, self.rewrite, &mut *self.entry);
        let ranges = &self.frontend.service.source_ranges;
        if !rewrite && *ranges == entry.ranges {
            return;
        }
        let is_ipv6 = self.address.is_ipv6();
        let of_family = |net: &&IpNet| net.addr().is_ipv6() == is_ipv6;
        let old = entry.ranges.as_deref().unwrap_or_default();
        let new = ranges.as_deref().unwrap_or_default();
        for cidr in new.iter().filter(of_family) {
            if rewrite || !old.contains(cidr) {
                let key = key::source_range(id, cidr);
                self.round.stages.ranges.push(self.owner, key.with(0));
            }
        }
        let stale = old.iter().filter(of_family).filter(|net| !new.contains(net));
        let stale: SmallVec<[IpNet; 4]> = stale.copied().collect();
        if !stale.is_empty() {
            entry.pending_deletes.get_or_insert_default().add([], stale);
        }
        entry.ranges = ranges.clone();
    }

    /// Deletes what is left over, now or from earlier rounds, and not wanted again.
    fn repeat_deletions(&mut self) {
        let (owner, frontend, backends) = (self.owner, self.frontend, &*self.backends);
        let id = self.entry.id;
        let Some(pending_deletes) = &mut self.entry.pending_deletes else {
            return;
        };
        self.round.with_pending_deletes.push((owner, self.address));
        let service = &frontend.service;
        let is_matched = |backend: u32| {
            let has_id = |row: &BackendRow| {
                let known = backends.get(&row.params.address);
                known.is_some_and(|known| known.id == backend)
            };
            let mut rows = frontend.backends.iter();
            service.session_affinity && rows.any(|row| row.keeps_clients() && has_id(row))
        };
        pending_deletes.affinity.retain(|backend| !is_matched(*backend));
        let ranges = service.source_ranges.as_deref().unwrap_or_default();
        // By key: networks that differ only in bits that do not count are one entry.
        let is_wanted = |net: &IpNet| ranges.iter().any(|range| range.trunc() == net.trunc());
        pending_deletes.ranges.retain(|net| !is_wanted(net));
        let stages = &mut self.round.stages;
        for backend in &pending_deletes.affinity {
            stages.stale_affinity.push(owner, key::affinity(id, *backend));
        }
        for cidr in &pending_deletes.ranges {
            stages.stale_ranges.push(owner, key::source_range(id, cidr));
        }
        release_pending(owner, pending_deletes, self.backends, self.round);
    }

    /// The reverse entry and the master entry.
    fn write_master(&mut self, head: ServiceValue, counts: Counts) {
        let (owner, address, id) = (self.owner, self.address, self.entry.id);
        let stages = &mut self.round.stages;
        if self.rewrite {
            let at = SocketAddr::new(address.ip(), address.port());
            stages.reverse.push(owner, key::reverse_nat_entry(id, at));
        }
        let master = ServiceValue {
            count: counts.count,
            qcount: counts.qcount,
            rev_nat: id.into(),
            ..head
        };
        if self.rewrite || master != self.entry.master {
            stages.masters.push(owner, key::service(&address, 0).with(master));
        }
        self.entry.master = master;
    }

    fn drop_slots_up_to(&mut self, highest: u16) {
        let (address, len) = (self.address, self.entry.slots.len() as u16);
        for before in len..highest {
            let slot = before + 1;
            let key = key::service(&address, slot);
            self.round.stages.stale_slots.push(self.owner, key);
        }
        self.entry.high = len;
    }

    fn release_backends(&mut self) {
        for change in self.changes {
            if let Change::Removed(row) = change {
                release(self.owner, row, self.backends, self.round);
            }
        }
    }
}

/// Releases the backends that slots of an earlier state named.
pub(super) fn release_pending(
    owner: Owner,
    pending_deletes: &mut PendingDeletes,
    backends: &mut HashMap<L3n4Addr, BackendEntry>,
    round: &mut Round,
) {
    for key in std::mem::take(&mut pending_deletes.backends) {
        round.released.push(Released {
            owner,
            key,
            kept_for: None,
        });
    }
    let held = std::mem::take(&mut pending_deletes.held);
    for address in held
        .into_iter()
        .chain(std::mem::take(&mut pending_deletes.shared))
    {
        release_hold(owner, address, backends, round);
    }
}
