// SPDX-License-Identifier: Apache-2.0

//! Brings frontends into the maps, writing only what differs from what was written before.
//!
//! [`Ops`] remembers for each address what is in the maps: number, slots, master entry. Frontends are *planned* one
//! after the other, which gives out numbers and gathers map operations; [`finish`](Ops::finish) does the operations of all of
//! them in stages. What failed is marked dirty and written in full at the next try, so every step may be repeated.
//!
//! A frontend that a full map refuses keeps nothing in the maps; one that worked before keeps what it had
//! ([`release`]). [`retry_refused`](Ops::retry_refused) then finds those that fit one by one.

mod finish;
mod master;
mod release;
mod unit;

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{BackendState, Change, Frontend, L3n4Addr};
use skep_maglev::Maglev;
use smallvec::SmallVec;

use self::master::check_features;
use self::unit::{UnitPlan, release_leftovers};
use super::ids::Ids;
use super::restore::Restored;
use super::room::{Room, Waiting};
use super::select::{Quarantine, release};
use super::slots::Slots;
use super::stage::Owner;
use super::state::{Known, Planned, Round, Served, Unit, Wildcard};
use super::{ReconcileError, Settings};
use crate::maps::{AffinityKey, BackendKey, LbMaps, MaglevKey, RevNatKey, ServiceKey, SourceRangeKey};

/// Slot operations after which a round is done early, to bound memory.
const FLUSH_AT: usize = 16_384;

/// The state of the maps as the reconciler knows it, and the operations that change it.
pub struct Ops {
    pub(super) settings: Settings,
    pub(super) maps: Arc<dyn LbMaps>,
    pub(super) maglev: Maglev,
    pub(super) service_ids: Ids,
    pub(super) backend_ids: Ids,
    // Boxed: a table that grows moves what it holds.
    pub(super) units: HashMap<L3n4Addr, Box<Unit>>,
    pub(super) backends: HashMap<L3n4Addr, Known>,
    // Node addresses that a frontend without address was expanded to.
    pub(super) expansions: HashMap<L3n4Addr, Vec<IpAddr>>,
    pub(super) wildcards: HashMap<IpAddr, Wildcard>,
    // Backends that were quarantined in an earlier run, by frontend.
    pub(super) quarantines: HashMap<L3n4Addr, HashSet<L3n4Addr>>,
    // What was found in the maps at start, by frontend, and the backends that it names.
    pub(super) restored: HashMap<L3n4Addr, Restored>,
    pub(super) restored_backends: HashMap<u32, L3n4Addr>,
    // Frontends that a full map refused.
    pub(super) waiting: HashMap<L3n4Addr, Waiting>,
    // Most entries that each map can take, as far as it is known.
    pub(super) room: Room,
    // Deletions since that was looked at.
    pub(super) freed: Room,
    // Backend entries whose deletion failed.
    lingering: Vec<BackendKey>,
    // Backends whose entry could not be written.
    unwritten: Vec<L3n4Addr>,
    // Frontends that a full map refused and that may fit now.
    pub(super) retriable: Vec<L3n4Addr>,
    round: Round,
}

/// Result for one frontend of a round: its number.
pub type FrontendResult = Result<u16, ReconcileError>;

impl Ops {
    /// Knows nothing yet; see [`restore`](Self::restore).
    pub fn new(settings: Settings, maps: Arc<dyn LbMaps>, maglev: Maglev) -> Self {
        Self {
            settings,
            maps,
            maglev,
            service_ids: Ids::new(u32::from(u16::MAX)),
            backend_ids: Ids::new(u32::MAX),
            units: HashMap::default(),
            backends: HashMap::default(),
            expansions: HashMap::default(),
            wildcards: HashMap::default(),
            quarantines: HashMap::default(),
            restored: HashMap::default(),
            restored_backends: HashMap::default(),
            waiting: HashMap::default(),
            room: Room::UNKNOWN,
            freed: Room::default(),
            lingering: Vec::new(),
            unwritten: Vec::new(),
            retriable: Vec::new(),
            round: Round {
                number: 1,
                ..Round::default()
            },
        }
    }

    /// Forgets everything, as a restart does.
    pub fn reset(&mut self) {
        let new = Self::new(self.settings.clone(), self.maps.clone(), self.maglev);
        *self = new;
    }

    /// The maps.
    pub fn maps(&self) -> &Arc<dyn LbMaps> {
        &self.maps
    }

    /// Puts a layer between the reconciler and its maps.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wrap_maps(&mut self, wrap: impl FnOnce(Arc<dyn LbMaps>) -> Arc<dyn LbMaps>) {
        self.maps = wrap(self.maps.clone());
    }

    /// Plans a frontend that is to be in the maps.
    pub fn upsert(&mut self, frontend: &Frontend) {
        if self.round.stages.slots.len() + self.round.stages.new_slots.len() > FLUSH_AT {
            self.flush();
        }
        self.round.ids.push(0);
        self.round.addresses.push(*frontend.address());
        if self.settings.handles(frontend.address()) {
            self.plan_frontend(frontend);
        }
    }

    /// Plans a frontend that is to leave the maps.
    pub fn remove(&mut self, address: &L3n4Addr) {
        self.round.ids.push(0);
        self.round.addresses.push(*address);
        if self.stop_waiting(address) {
            self.service_ids.forget(address);
        }
        let is_own = self.units.get(address).is_some_and(|unit| !unit.is_expansion);
        if is_own {
            self.plan_gone(*address);
        }
        // Kept until all are gone: what failed is tried again.
        if let Some(ips) = self.expansions.get(address) {
            let mut expanded: SmallVec<[L3n4Addr; 4]> = ips.iter().map(|ip| address.with_ip(*ip)).collect();
            expanded.retain(|address| self.units.get(address).is_some_and(|unit| unit.is_expansion));
            if expanded.is_empty() {
                self.expansions.remove(address);
            }
            expanded.into_iter().for_each(|address| self.plan_gone(address));
            self.round.emptied.push(*address);
        }
        let is_backend_left = !self.lingering.is_empty() || !self.unwritten.is_empty();
        if self.round.frontends.is_empty() && is_backend_left {
            // Gone before but for backends, which have to be deleted in somebody's name.
            self.add_owner();
        }
    }

    /// Frontends in the maps that are not known.
    pub fn unknown_frontends(&self, is_known: impl Fn(&L3n4Addr) -> bool) -> Vec<L3n4Addr> {
        let own = self
            .units
            .iter()
            .filter(|(address, unit)| !unit.is_expansion && !is_known(address));
        own.map(|(address, _)| *address).collect()
    }

    /// Does what was planned since the last call; one result for each planned frontend, in order.
    pub fn finish(&mut self) -> Vec<FrontendResult> {
        self.flush();
        let mut results: Vec<FrontendResult> = self.round.ids.drain(..).map(Ok).collect();
        for (frontend, error) in self.round.frontends.drain(..).zip(self.round.outcome.drain()) {
            let result = &mut results[frontend as usize];
            if let (Ok(_), Some(error)) = (&result, error) {
                *result = Err(error);
            }
        }
        let addresses = std::mem::take(&mut self.round.addresses);
        if !self.waiting.is_empty() {
            let written = addresses
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_ok());
            for (address, _) in written {
                self.stop_waiting(address);
            }
        }
        self.round.addresses = addresses;
        self.round.addresses.clear();
        self.find_retriable();
        results
    }

    /// Frontends that a full map refused and that may fit now.
    pub fn take_retriable(&mut self) -> Vec<L3n4Addr> {
        std::mem::take(&mut self.retriable)
    }

    // Units fail each for itself, so that the others of the frontend need not be written again.
    fn add_owner(&mut self) -> Owner {
        self.round.frontends.push(self.round.ids.len() as u32 - 1);
        self.round.outcome.add_owner()
    }

    fn plan_frontend(&mut self, frontend: &Frontend) {
        let owner = self.add_owner();
        let address = *frontend.address();
        let planned = check_features(frontend).and_then(|()| self.plan_unit(owner, frontend, address, false));
        let id = match planned {
            Ok(id) => id,
            Err(error) => return self.round.outcome.fail(owner, error),
        };
        if let Some(last) = self.round.ids.last_mut() {
            *last = id;
        }
        self.plan_wildcard(owner, frontend, id);
        let wanted = frontend.node_addresses.as_deref().unwrap_or_default();
        if wanted.is_empty() && self.expansions.is_empty() {
            return;
        }
        for ip in self.expansions.remove(&address).unwrap_or_default() {
            let expanded = address.with_ip(ip);
            let is_unwanted = !wanted.contains(&ip);
            if is_unwanted && self.units.get(&expanded).is_some_and(|unit| unit.is_expansion) {
                self.plan_gone(expanded);
                // Remembered until it is gone.
                self.round.vanished.push((address, ip));
            }
        }
        for ip in wanted {
            let owner = self.add_owner();
            if let Err(error) = self.plan_unit(owner, frontend, address.with_ip(*ip), true) {
                self.round.outcome.fail(owner, error);
            }
        }
        if !wanted.is_empty() {
            self.expansions.insert(address, wanted.to_vec());
        }
    }

    fn plan_unit(
        &mut self,
        owner: Owner,
        frontend: &Frontend,
        address: L3n4Addr,
        is_expansion: bool,
    ) -> Result<u16, ReconcileError> {
        let mut is_known = false;
        let mut restored: Box<[u32]> = Box::default();
        if let Some(unit) = self.units.get(&address) {
            is_known = true;
            if unit.round == self.round.number {
                self.flush();
                is_known = self.units.contains_key(&address);
            }
        }
        if !is_known {
            let id = self.service_ids.take(&address).ok_or(ReconcileError::NoId)?;
            let found = self.restored.remove(&address);
            let mut unit = Unit::new(id as u16, 0);
            // An earlier run may have left a lookup table.
            unit.has_maglev = found.is_some();
            let found = found.unwrap_or_default();
            (unit.high, unit.sure) = (found.high, found.sure);
            if let Some(master) = found.master {
                (unit.master, unit.is_served) = (master, true);
                restored = found.backends;
            }
            self.units.insert(address, Box::new(unit));
        }
        let planned = self.plan_known_unit(owner, frontend, address, (is_expansion, restored));
        if planned.is_err()
            && let Some(unit) = self.units.get_mut(&address)
        {
            unit.is_dirty = true;
        }
        planned
    }

    fn plan_known_unit(
        &mut self,
        owner: Owner,
        frontend: &Frontend,
        address: L3n4Addr,
        (is_expansion, restored): (bool, Box<[u32]>),
    ) -> Result<u16, ReconcileError> {
        let flags = self.flags(frontend, &address);
        let head = self.master(frontend, flags)?;
        let Some(unit) = self.units.get_mut(&address) else {
            return Err(ReconcileError::NoId);
        };
        unit.round = self.round.number;
        unit.is_expansion = is_expansion;
        let rewrite = unit.is_fresh || unit.is_dirty || unit.is_gone;
        unit.is_gone = false;
        let served = unit.is_served.then(|| {
            Box::new(Served {
                set: unit.set.clone(),
                master: unit.master,
                ranges: unit.ranges.clone(),
                leftovers: unit.leftovers.clone(),
                has_affinity: unit.has_affinity,
                has_maglev: unit.has_maglev,
                restored,
            })
        });
        self.round.planned.push(Planned {
            owner,
            address,
            high: unit.high,
            served,
        });
        let old_set = std::mem::take(&mut unit.set);
        let changes: SmallVec<[Change<'_>; 4]> = old_set.diff(&frontend.backends).collect();
        let plan = UnitPlan {
            owner,
            frontend,
            address,
            flags,
            settings: &self.settings,
            maglev: &self.maglev,
            backend_ids: &mut self.backend_ids,
            backends: &mut self.backends,
            quarantine: Quarantine::update(&mut self.quarantines, &address, &frontend.backends),
            round: &mut self.round,
            old_set: &old_set,
            changes: &changes,
            unit,
            rewrite,
            is_changed: false,
            is_reweighted: false,
        };
        plan.run(head)
    }

    fn plan_wildcard(&mut self, owner: Owner, frontend: &Frontend, id: u16) {
        let ip = frontend.address().ip();
        let wanted = self.settings.uses_wildcard(frontend);
        let parent = (id, frontend.params.kind);
        match self.wildcards.entry(ip) {
            Entry::Vacant(entry) if wanted => {
                entry.insert(Wildcard {
                    parents: SmallVec::from_elem(parent, 1),
                    written: Some(None),
                });
            }
            Entry::Vacant(_) => return,
            Entry::Occupied(mut entry) => {
                let wildcard = entry.get_mut();
                let at = wildcard.parents.iter().position(|(parent, _)| *parent == id);
                match (at, wanted) {
                    (None, true) => wildcard.parents.push(parent),
                    (Some(at), false) => drop(wildcard.parents.remove(at)),
                    (Some(at), true) => wildcard.parents[at] = parent,
                    (None, false) => {}
                }
            }
        }
        self.round.wildcards.push((owner, ip));
    }

    fn plan_gone(&mut self, address: L3n4Addr) {
        let owner = self.add_owner();
        if self
            .units
            .get(&address)
            .is_some_and(|unit| unit.round == self.round.number)
        {
            self.flush();
        }
        self.stage_gone(owner, address);
    }

    // Stages the deletion of all that a frontend address has in the maps.
    fn stage_gone(&mut self, owner: Owner, address: L3n4Addr) {
        let Self {
            units,
            backends,
            round,
            wildcards,
            quarantines,
            ..
        } = self;
        let Some(unit) = units.get_mut(&address) else {
            return;
        };
        quarantines.remove(&address);
        unit.round = round.number;
        unit.is_gone = true;
        let id = unit.id;
        let ipv6 = address.is_ipv6();
        let high = unit.high.max(unit.slots.len() as u16);
        unit.is_served = false;
        unit.sure = 0;
        round.planned.push(Planned {
            owner,
            address,
            high,
            served: None,
        });
        round.gone.push((owner, address));

        let set = std::mem::take(&mut unit.set);
        let ranges = unit.ranges.take();
        let affinity = set
            .iter()
            .filter(|row| unit.has_affinity && row.params.state == BackendState::Active);
        let affinity = affinity.filter_map(|row| Some(backends.get(&row.params.address)?.id));
        let ranges = ranges
            .iter()
            .flat_map(|nets| nets.iter())
            .filter(|net| net.addr().is_ipv6() == ipv6);
        let (mut affinity, mut ranges) = (affinity.peekable(), ranges.peekable());
        if affinity.peek().is_some() || ranges.peek().is_some() {
            unit.leftovers
                .get_or_insert_default()
                .add(affinity, ranges.copied());
        }
        let stages = &mut round.stages;
        stages.gone_masters.push(owner, ServiceKey { address, slot: 0 });
        (1..=high).for_each(|slot| stages.gone_slots.push(owner, ServiceKey { address, slot }));
        if unit.has_maglev || unit.is_dirty {
            stages.gone_maglev.push(owner, MaglevKey { id, ipv6 });
        }
        if let Some(leftovers) = &mut unit.leftovers {
            for backend in &leftovers.affinity {
                stages.gone_affinity.push(
                    owner,
                    AffinityKey {
                        id,
                        backend: *backend,
                    },
                );
            }
            for cidr in &leftovers.ranges {
                stages.gone_ranges.push(owner, SourceRangeKey { id, cidr: *cidr });
            }
            release_leftovers(owner, leftovers, backends, round);
        }
        round.stages.gone_reverse.push(owner, RevNatKey { id, ipv6 });
        set.iter().for_each(|row| release(owner, row, backends, round));
        unit.slots = Slots::None;
        unit.has_maglev = false;
        unit.has_affinity = false;
        if let Some(wildcard) = wildcards.get_mut(&address.ip()) {
            let parents = wildcard.parents.len();
            wildcard.parents.retain(|(parent, _)| *parent != id);
            if parents != wildcard.parents.len() || parents == 0 || wildcard.written.is_none() {
                round.wildcards.push((owner, address.ip()));
            }
        }
    }
}
