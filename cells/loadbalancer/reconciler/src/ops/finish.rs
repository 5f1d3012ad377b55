// SPDX-License-Identifier: Apache-2.0

//! Does what a round has planned, and settles what failed.

use std::net::IpAddr;

use skep_bpf_maps::lb::ServiceValue;
use skep_loadbalancer_model::hash::HashSet;

use super::super::stage::{Outcome, Owner};
use super::super::state::Round;
use super::Ops;
use super::master::kind_flag;
use crate::maps::ServiceKey;

impl Ops {
    // Does what is planned; owners and their errors stay until `finish`.
    pub(super) fn flush(&mut self) {
        let mut wildcards = std::mem::take(&mut self.round.wildcards);
        let mut is_any_unwanted = false;
        for (owner, ip) in wildcards.iter().copied() {
            is_any_unwanted |= self.stage_wildcard(owner, ip);
        }
        for key in std::mem::take(&mut self.lingering) {
            if !self.round.frontends.is_empty() {
                self.round.stages.stale_backends.push(0, key);
            } else {
                self.lingering.push(key);
            }
        }
        let Round { stages, outcome, .. } = &mut self.round;
        let unwritten = stages.run_backends(&*self.maps, outcome);
        if !unwritten.is_empty() {
            self.note_unwritten(&unwritten);
        }
        let Round { stages, outcome, .. } = &mut self.round;
        stages.run_rest(&*self.maps, outcome);
        let undeleted = stages.run_stale_backends(&*self.maps, outcome);
        for (_, key) in self.round.stages.stale_backends.iter() {
            if !undeleted.contains(key) {
                self.backend_ids.free(key.id);
            }
        }
        self.lingering.extend(undeleted);
        if is_any_unwanted || self.round.outcome.has_failures() {
            self.settle_wildcards(&wildcards);
        }
        self.settle();
        self.round.stages.clear();
        self.round.number = self.round.number.wrapping_add(1).max(1);
        wildcards.clear();
        self.round.wildcards = wildcards;
        self.round.planned.clear();
        self.round.waits.clear();
        self.round.tables = None;
    }

    // Gives whether nobody wants it any more.
    fn stage_wildcard(&mut self, owner: Owner, ip: IpAddr) -> bool {
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
        for known in self
            .backends
            .values_mut()
            .filter(|known| unwritten.contains(&known.id))
        {
            known.revision = 0;
        }
    }

    // Marks what failed as dirty, and drops what is gone.
    fn settle(&mut self) {
        let round = &mut self.round;
        if round.outcome.has_failures() {
            for (owner, address, high) in &round.planned {
                if round.outcome.is_failed(*owner)
                    && let Some(unit) = self.units.get_mut(address)
                {
                    unit.is_dirty = true;
                    unit.high = unit.high.max(*high);
                }
            }
        }
        for (owner, address) in round.with_leftovers.drain(..) {
            if !round.outcome.is_failed(owner)
                && let Some(unit) = self.units.get_mut(&address)
            {
                unit.leftovers = None;
            }
        }
        for (owner, address) in round.gone.drain(..) {
            if round.outcome.is_failed(owner) {
                continue;
            }
            if let Some(unit) = self.units.remove(&address) {
                self.service_ids.free(u32::from(unit.id));
                let any = if address.is_ipv6() {
                    [0; 16].into()
                } else {
                    [0; 4].into()
                };
                let shared = address.with_ip(any);
                if !unit.is_expansion && shared != address && self.units.contains_key(&shared) {
                    self.requeue.push(shared);
                }
            }
        }
        for address in round.emptied.drain(..) {
            let Some(ips) = self.expansions.get_mut(&address) else {
                continue;
            };
            let units = &self.units;
            ips.retain(|ip| {
                units
                    .get(&address.with_ip(*ip))
                    .is_some_and(|unit| unit.is_expansion)
            });
            if ips.is_empty() {
                self.expansions.remove(&address);
            }
        }
        for (address, ip) in round.vanished.drain(..) {
            if self.units.contains_key(&address.with_ip(ip)) {
                let ips = self.expansions.entry(address).or_default();
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
            }
        }
        // Rounds of a start-up or of a mass deletion should not cost memory for ever.
        if self.units.len() * 4 < self.units.capacity() && self.units.capacity() > 1024 {
            self.units.shrink_to_fit();
            self.backends.shrink_to_fit();
            self.wildcards.shrink_to_fit();
        }
    }
}
