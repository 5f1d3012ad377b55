// SPDX-License-Identifier: Apache-2.0

//! Does what a round has planned, and settles what failed.

use std::net::IpAddr;

use skep_bpf_maps::lb::ServiceValue;
use skep_loadbalancer_model::hash::HashSet;

use super::super::stage::{Outcome, Owner};
use super::super::state::Round;
use super::Ops;
use super::master::kind_flag;
use super::release::GivenBack;
use crate::maps::ServiceKey;

impl Ops {
    // Does what is planned; owners and their errors stay until `finish`.
    pub(super) fn flush(&mut self) {
        let mut wildcards = std::mem::take(&mut self.round.wildcards);
        let mut is_any_unwanted = false;
        for (owner, ip) in wildcards.iter().copied() {
            is_any_unwanted |= self.stage_wildcard(owner, ip);
        }
        let Round { stages, outcome, .. } = &mut self.round;
        let unwritten = stages.run_backends(&*self.maps, outcome);
        if !unwritten.is_empty() {
            self.note_unwritten(&unwritten);
        }
        let Round { stages, outcome, .. } = &mut self.round;
        stages.run_new(&*self.maps, outcome);
        self.refuse_as_a_whole();
        let Round { stages, outcome, .. } = &mut self.round;
        stages.run_rest(&*self.maps, outcome);
        stages.count_deletions(&mut self.freed);
        let stale = self.round.released.len();
        let given = self.give_back(&mut wildcards);
        self.keep_named_backends(&given, stale);
        for key in std::mem::take(&mut self.lingering) {
            if !self.round.frontends.is_empty() {
                self.round.stages.stale_backends.push(0, key);
            } else {
                self.lingering.push(key);
            }
        }
        let Round { stages, outcome, .. } = &mut self.round;
        let undeleted = stages.run_stale_backends(&*self.maps, outcome);
        for (_, key) in self.round.stages.stale_backends.iter() {
            if undeleted.contains(key) {
                continue;
            }
            match given.kept_id(key.id) {
                Some(address) => self.backend_ids.park(address, key.id),
                None => self.backend_ids.release(key.id),
            }
        }
        self.lingering.extend(undeleted);
        self.write_unwritten();
        if is_any_unwanted || self.round.outcome.has_failures() {
            self.settle_wildcards(&wildcards);
        }
        self.settle(&given);
        self.round.stages.clear();
        self.round.released.clear();
        self.round.number = self.round.number.wrapping_add(1).max(1);
        wildcards.clear();
        self.round.wildcards = wildcards;
        self.round.planned.clear();
        self.round.waits.clear();
        self.round.tables = None;
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
        let Round { stages, outcome, .. } = &mut self.round;
        let unwritten = stages.run_unwritten(&*self.maps, outcome);
        self.forget_written(&unwritten);
    }

    // Returns whether no frontend wants it any more.
    pub(super) fn stage_wildcard(&mut self, owner: Owner, ip: IpAddr) -> bool {
        let Some(wildcard) = self.wildcards.get_mut(&ip) else {
            return false;
        };
        let wanted = wildcard.parents.first().map(|(_, kind)| kind_flag(*kind));
        if wildcard.written == Some(wanted) {
            return wanted.is_none();
        }
        wildcard.written = Some(wanted);
        let key = ServiceKey::wildcard(ip);
        match wanted {
            Some(flags) => self
                .round
                .stages
                .wildcards
                .push(owner, (key, ServiceValue::master(0, 0, 0, flags))),
            None => self.round.stages.stale_wildcards.push(owner, key),
        }
        wanted.is_none()
    }

    fn settle_wildcards(&mut self, wildcards: &[(Owner, IpAddr)]) {
        for (owner, ip) in wildcards {
            let Some(wildcard) = self.wildcards.get_mut(ip) else {
                continue;
            };
            if self.round.outcome.is_failed(*owner) {
                wildcard.written = None;
            } else if wildcard.parents.is_empty() && wildcard.written == Some(None) {
                self.wildcards.remove(ip);
            }
        }
    }

    // Backend entries that could not be written fail every frontend that relies on them.
    pub(super) fn note_unwritten(&mut self, unwritten: &[u32]) {
        let unwritten: HashSet<u32> = unwritten.iter().copied().collect();
        let Round {
            stages,
            outcome,
            waits,
            ..
        } = &mut self.round;
        let error = |outcome: &Outcome, id: u32| {
            let owner = stages
                .backends
                .iter()
                .find(|(_, (key, _))| key.id == id)
                .map(|(owner, _)| owner)?;
            outcome.errors[owner as usize].clone()
        };
        for (owner, id) in waits.iter() {
            if unwritten.contains(id)
                && let Some(error) = error(outcome, *id)
            {
                outcome.fail(*owner, error);
            }
        }
        self.forget_written(&unwritten);
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
        if round.outcome.has_failures() {
            for plan in &round.planned {
                if !round.outcome.is_failed(plan.owner) {
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
            if !round.outcome.is_failed(plan.owner)
                && let Some(entry) = self.entries.get_mut(&plan.address)
                && !entry.is_gone
            {
                entry.sure = entry.slots.len() as u16;
                entry.is_served |= !failed.contains(&round.frontends[plan.owner as usize]);
            }
        }
        for (owner, address) in round.with_pending_deletes.drain(..) {
            if !round.outcome.is_failed(owner)
                && let Some(entry) = self.entries.get_mut(&address)
            {
                entry.pending_deletes = None;
            }
        }
        for (owner, address) in round.gone.drain(..) {
            if round.outcome.is_failed(owner) {
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
