// SPDX-License-Identifier: Apache-2.0

//! Does what a round has planned, and settles what failed.

use std::net::IpAddr;

use skep_bpf_maps::lb::ServiceValue;
use skep_datapath_maps::IpPair;
use skep_datapath_maps::transaction::{Phase, Stage as _};
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::L3n4Addr;

use super::super::restore::named_backends;
use super::super::stage::{Owner, Transaction};
use super::super::state::{FrontendEntry, Released, Round};
use super::Ops;
use super::master::kind_flag;
use super::release::GivenBack;
use crate::maps::key::{self, BackendKey};

impl Ops {
    // Does what is planned; owners and their errors stay until `finish`.
    pub(super) fn flush(&mut self) {
        self.write_marks();
        let mut wildcards = std::mem::take(&mut self.round.wildcards);
        for (owner, ip) in wildcards.iter().copied() {
            self.stage_wildcard(owner, ip);
        }
        let Round { stages, txn, .. } = &mut self.round;
        stages.run_backends(&self.maps, txn);
        self.note_unwritten();
        let Round { stages, txn, .. } = &mut self.round;
        stages.run_new(&self.maps, txn);
        self.refuse_as_a_whole();
        let Round { stages, txn, .. } = &mut self.round;
        stages.run_rest(&self.maps, txn);
        stages.count_deletions(&mut self.freed);
        let txn = std::mem::take(&mut self.round.txn);
        let deleted = self.settle_wildcards(&wildcards, &txn);
        self.freed.services.v4 = self.freed.services.v4.saturating_add(deleted.v4);
        self.freed.services.v6 = self.freed.services.v6.saturating_add(deleted.v6);
        self.round.txn = txn;
        let given = self.give_back(&wildcards);
        self.keep_named_backends(&given);
        self.release_unused(&given);
        self.delete_backends();
        self.write_unwritten();
        self.settle(&given);
        self.round.txn.enter(Phase::Add);
        self.round.stages.clear();
        self.round.number = self.round.number.wrapping_add(1).max(1);
        wildcards.clear();
        self.round.wildcards = wildcards;
        self.round.planned.clear();
        self.round.waits.clear();
        self.round.tables = None;
        self.service_ids.start_round();
        self.backend_ids.start_round();
    }

    // Before anything bears the ids that were allocated.
    fn write_marks(&mut self) {
        let marks = [self.service_ids.mark(), self.backend_ids.mark()];
        if marks == self.marks {
            return;
        }
        match self.maps.write_id_marks(marks) {
            Ok(()) => self.marks = marks,
            Err(error) => tracing::warn!(
                error = hive::error_chain(&error),
                "Cannot write the last allocated ids"
            ),
        }
    }

    // Forgets the backends that nothing refers to any more.
    fn release_unused(&mut self, given: &GivenBack) {
        let Self { round, backends, .. } = self;
        for dropped in round.dropped.drain(..) {
            let (owner, address) = (dropped.owner, dropped.address);
            let Some(known) = backends.get(&address).filter(|known| known.is_unused()) else {
                continue;
            };
            round.released.push(Released {
                owner,
                key: key::backend(known.id, address.is_ipv6()),
                kept_for: dropped.keeps_id.then_some(address),
            });
            backends.remove(&address);
        }
        for released in round
            .released
            .iter()
            .filter(|released| !given.settles(released.owner))
        {
            let freed = self.freed.backends.of_mut(released.key.is_ipv6());
            *freed = freed.saturating_add(1);
        }
    }

    // Deletes the backend entries that the round released, and those of earlier rounds that are left. Their ids are free
    // then, but for those that are kept for a retry. Entries of an earlier run stay until it is pruned if a state may name
    // them that it wrote: one of a frontend that this run has not seen, or has refused since.
    fn delete_backends(&mut self) {
        let is_refused = |entry: &FrontendEntry| {
            let pending_deletes = entry.pending_deletes.as_ref();
            pending_deletes.is_some_and(|pending_deletes| !pending_deletes.held.is_empty())
        };
        let keeps_restored = !self.restored_backends.is_empty()
            && (!self.restored.is_empty() || self.entries.values().any(|entry| is_refused(entry)));
        let Self {
            round,
            entries,
            backend_ids,
            restored_backends,
            lingering,
            has_named,
            ..
        } = self;
        let Round {
            stages,
            txn,
            released,
            frontends,
            ..
        } = round;
        // Several frontends that failed may name one entry: the last of them to be written releases it.
        if txn.has_failures() || *has_named {
            let named = named_backends(entries);
            *has_named = !named.is_empty();
            released.retain(|released| !named.contains(&released.key));
        }
        let stage = &mut stages.stale_backends;
        let mut kept: HashMap<BackendKey, L3n4Addr> = HashMap::default();
        for Released { owner, key, kept_for } in released.drain(..) {
            let id = key.into_inner().id;
            match restored_backends.get(&id).filter(|_| keeps_restored) {
                Some(address) => backend_ids.park(*address, id),
                None => stage.push(owner, key),
            }
            kept.extend(kept_for.map(|address| (key, address)));
        }
        // A deletion needs an owner.
        if !frontends.is_empty() {
            lingering.drain(..).for_each(|key| stage.push(0, key));
        }
        stages.run_stale_backends(&self.maps, txn);
        let stage = &stages.stale_backends;
        let undeleted: HashSet<BackendKey> = stage.failed().map(|(_, key)| key).collect();
        for (_, key) in stage.keys().filter(|(_, key)| !undeleted.contains(key)) {
            let id = key.into_inner().id;
            match kept.get(&key).copied() {
                Some(address) => backend_ids.park(address, id),
                None => backend_ids.release(id),
            }
        }
        lingering.extend(stage.failed().map(|(_, key)| key));
    }

    // Backends whose entry was not written when it had to say something else. No frontend relies on them: those that
    // do failed then, and write them themselves.
    fn write_unwritten(&mut self) {
        if self.unwritten.is_empty() || self.round.frontends.is_empty() {
            return;
        }
        self.round.stages.clear();
        for address in std::mem::take(&mut self.unwritten) {
            if let Some(known) = self
                .backends
                .get_mut(&address)
                .filter(|known| known.written.is_none())
            {
                known.write(0, address, &mut self.round);
            }
        }
        let Round { stages, txn, .. } = &mut self.round;
        stages.run_unwritten(&self.maps, txn);
        let unwritten = stages.unwritten().collect();
        self.forget_written(&unwritten);
    }

    // Every frontend that needs a wildcard entry writes it: one that fails leaves those of the others alone.
    pub(super) fn stage_wildcard(&mut self, owner: Owner, ip: IpAddr) {
        let Some(wildcard) = self.wildcards.get_mut(&ip) else {
            return;
        };
        let wanted = wildcard.parents.first().map(|(_, kind)| kind_flag(*kind));
        if wildcard.written == Some(wanted) {
            return;
        }
        let key = key::wildcard(ip);
        let stages = &mut self.round.stages;
        match wanted {
            Some(flags) => {
                let value = ServiceValue::master(0, 0, 0, flags);
                stages.wildcards.push(owner, key.with(value));
            }
            None => stages.stale_wildcards.push(owner, key),
        }
        wildcard.staged = Some(wanted);
    }

    // Notes what became of the wildcard entries, and forgets those that no frontend needs. Returns how many were deleted.
    pub(super) fn settle_wildcards(
        &mut self,
        wildcards: &[(Owner, IpAddr)],
        txn: &Transaction,
    ) -> IpPair<u32, u32> {
        let mut deleted = IpPair::default();
        for (owner, ip) in wildcards {
            if let Some(wildcard) = self.wildcards.get_mut(ip) {
                wildcard.settle(txn.is_incomplete(*owner));
            }
        }
        for (_, ip) in wildcards {
            if let Some(wildcard) = self.wildcards.get_mut(ip) {
                wildcard.staged = None;
                if wildcard.parents.is_empty() && wildcard.written == Some(None) {
                    self.wildcards.remove(ip);
                    *deleted.of_mut(ip.is_ipv6()) += 1;
                }
            }
        }
        deleted
    }

    // Backend entries that could not be written fail every frontend that relies on them.
    fn note_unwritten(&mut self) {
        let Round {
            stages, txn, waits, ..
        } = &mut self.round;
        let failed = stages.backends.failed();
        let unwritten: HashMap<u32, Owner> =
            failed.map(|(owner, key)| (key.into_inner().id, owner)).collect();
        if unwritten.is_empty() {
            return;
        }
        for (owner, id) in waits.iter() {
            if let Some(by) = unwritten.get(id)
                && let Some(error) = txn.error(*by).cloned()
            {
                txn.fail(*owner, error);
            }
        }
        self.forget_written(&unwritten.into_keys().collect());
    }

    // Backend entries that could not be written are written in the next round.
    pub(super) fn forget_written(&mut self, unwritten: &HashSet<u32>) {
        if unwritten.is_empty() {
            return;
        }
        for (address, known) in &mut self.backends {
            if unwritten.contains(&known.id) {
                known.written = None;
                self.unwritten.push(*address);
            }
        }
    }

    // Marks what failed as dirty, and drops what is gone.
    fn settle(&mut self, given: &GivenBack) {
        let round = &mut self.round;
        let mut failed: HashSet<u32> = HashSet::default();
        if round.txn.has_failures() {
            for plan in &round.planned {
                if !round.txn.is_incomplete(plan.owner) {
                    continue;
                }
                failed.insert(round.frontends[plan.owner as usize]);
                if !given.settles(plan.owner)
                    && let Some(entry) = self.entries.get_mut(&plan.address)
                {
                    entry.is_dirty = true;
                    entry.high = entry.high.max(plan.high);
                    entry.sure = entry.sure.min(entry.slots.len() as u16);
                }
            }
        }
        for plan in round.planned.iter().filter(|plan| !given.settles(plan.owner)) {
            if !round.txn.is_incomplete(plan.owner)
                && let Some(entry) = self.entries.get_mut(&plan.address)
                && !entry.is_gone
            {
                entry.sure = entry.slots.len() as u16;
                entry.is_served |= !failed.contains(&round.frontends[plan.owner as usize]);
            }
        }
        for (owner, address) in round.with_pending_deletes.drain(..) {
            if !given.settles(owner)
                && !round.txn.is_incomplete(owner)
                && let Some(entry) = self.entries.get_mut(&address)
            {
                entry.pending_deletes = None;
            }
        }
        for (owner, address) in round.gone.drain(..) {
            if round.txn.is_incomplete(owner) {
                continue;
            }
            if let Some(entry) = self.entries.remove(&address) {
                self.service_ids.release(u32::from(entry.id));
            }
        }
        for address in round.emptied.drain(..) {
            let Some(ips) = self.expansions.get_mut(&address) else {
                continue;
            };
            let entries = &self.entries;
            ips.retain(|ip| {
                entries
                    .get(&address.with_ip(*ip))
                    .is_some_and(|entry| entry.is_expansion)
            });
            if ips.is_empty() {
                self.expansions.remove(&address);
            }
        }
        for (address, ip) in round.vanished.drain(..) {
            if self.entries.contains_key(&address.with_ip(ip)) {
                let ips = self.expansions.entry(address).or_default();
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
            }
        }
        // The memory of a start-up or of a mass deletion is not kept.
        if self.entries.len() * 4 < self.entries.capacity() && self.entries.capacity() > 1024 {
            self.entries.shrink_to_fit();
            self.backends.shrink_to_fit();
            self.wildcards.shrink_to_fit();
        }
    }
}
