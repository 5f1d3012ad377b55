// SPDX-License-Identifier: Apache-2.0

//! Brings frontends into the maps, writing only what differs from what was written before.
//!
//! [`Ops`] remembers for each address what is in the maps: id, slots, master entry. Frontends are *planned* one
//! after the other, which allocates ids and gathers map operations; [`finish`](Ops::finish) does the operations of all of
//! them in stages. What failed is marked dirty and written in full at the next try, so every step may be repeated.
//!
//! A frontend that a full map refuses keeps nothing in the maps; one that worked before keeps what it had
//! ([`release`]). [`retry_refused`](Ops::retry_refused) then finds those that fit one by one.

mod entry;
mod finish;
mod master;
mod moved;
mod release;

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use roaring::RoaringBitmap;
use skep_bpf_maps::lb::IdMark;
use skep_datapath_maps::transaction::Stage as _;
use skep_loadbalancer_maglev::Maglev;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{Change, Frontend, L3n4Addr};
use smallvec::SmallVec;

use self::entry::{EntryPlan, release_pending};
use self::master::check_features;
use self::moved::is_same_object;
use super::capacity::{Capacity, Waiting};
use super::ids::Ids;
use super::restore::Restored;
use super::select::{Quarantine, release};
use super::slots::Slots;
use super::stage::Owner;
use super::state::{BackendEntry, FrontendEntry, Planned, Round, Served, Wildcard};
use super::{ReconcileError, Settings};
use crate::maps::key::{self, BackendKey};
use crate::maps::{BorneIds, LoadBalancerMaps};

/// Slot operations after which a round is done early, to bound memory.
const FLUSH_AT: usize = 16_384;

/// The state of the maps as the reconciler knows it, and the operations that change it.
pub struct Ops {
    pub(super) settings: Settings,
    pub(super) maps: Arc<LoadBalancerMaps>,
    pub(super) maglev: Maglev,
    pub(super) service_ids: Ids,
    pub(super) backend_ids: Ids,
    // How far ids were allocated, as the maps say.
    pub(super) marks: [IdMark; 2],
    // Boxed: a table that grows moves what it holds.
    pub(super) entries: HashMap<L3n4Addr, Box<FrontendEntry>>,
    pub(super) backends: HashMap<L3n4Addr, BackendEntry>,
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
    pub(super) capacity: Capacity,
    // Deletions since that was looked at.
    pub(super) freed: Capacity,
    // Backend entries whose deletion failed.
    lingering: Vec<BackendKey>,
    // Whether slots of frontends that failed may name backend entries without an owner.
    has_named: bool,
    // Backends whose entry could not be written.
    unwritten: Vec<L3n4Addr>,
    // Frontends that a full map refused and that may fit now.
    pub(super) retriable: Vec<L3n4Addr>,
    round: Round,
}

fn bearers(
    maps: &Arc<LoadBalancerMaps>,
    of_kind: fn(BorneIds) -> RoaringBitmap,
) -> Box<dyn Fn() -> Option<RoaringBitmap> + Send> {
    let maps = maps.clone();
    Box::new(move || match maps.borne_ids() {
        Ok(borne) => Some(of_kind(borne)),
        Err(error) => {
            tracing::warn!(
                error = hive::error_chain(&error),
                "Cannot restore service ids from maps"
            );
            None
        }
    })
}

/// Result for one frontend of a round: its id.
pub type FrontendResult = Result<u16, ReconcileError>;

impl Ops {
    /// Knows nothing yet; see [`restore`](Self::restore).
    pub fn new(settings: Settings, maps: Arc<LoadBalancerMaps>, maglev: Maglev) -> Self {
        Self {
            settings,
            maglev,
            service_ids: Ids::new(u32::from(u16::MAX), bearers(&maps, |borne| borne.services)),
            backend_ids: Ids::new(u32::MAX, bearers(&maps, |borne| borne.backends)),
            marks: Default::default(),
            maps,
            entries: HashMap::default(),
            backends: HashMap::default(),
            expansions: HashMap::default(),
            wildcards: HashMap::default(),
            quarantines: HashMap::default(),
            restored: HashMap::default(),
            restored_backends: HashMap::default(),
            waiting: HashMap::default(),
            capacity: Capacity::UNKNOWN,
            freed: Capacity::default(),
            lingering: Vec::new(),
            has_named: false,
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

    /// Puts a layer between the reconciler and its maps.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wrap_maps(&mut self, wrap: impl FnOnce(&LoadBalancerMaps) -> LoadBalancerMaps) {
        self.maps = Arc::new(wrap(&self.maps));
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
        let is_own = self.entries.get(address).is_some_and(|entry| !entry.is_expansion);
        if is_own {
            self.plan_gone(*address);
        }
        // Kept until all are gone: what failed is tried again.
        if let Some(ips) = self.expansions.get(address) {
            let mut expanded: SmallVec<[L3n4Addr; 4]> = ips.iter().map(|ip| address.with_ip(*ip)).collect();
            expanded.retain(|address| self.entries.get(address).is_some_and(|entry| entry.is_expansion));
            if expanded.is_empty() {
                self.expansions.remove(address);
            }
            expanded.into_iter().for_each(|address| self.plan_gone(address));
            self.round.emptied.push(*address);
        }
        let is_backend_left = !self.lingering.is_empty() || !self.unwritten.is_empty();
        if self.round.frontends.is_empty() && is_backend_left {
            // Gone before but for backends, whose deletion needs an owner.
            self.add_owner();
        }
    }

    /// Backends of a frontend that an earlier run quarantined and no health checker has looked at since.
    pub fn quarantined(&self, frontend: &L3n4Addr) -> Option<Box<[L3n4Addr]>> {
        let quarantined = self.quarantines.get(frontend)?;
        let mut addresses: Box<[L3n4Addr]> = quarantined.iter().copied().collect();
        addresses.sort_unstable();
        Some(addresses)
    }

    /// Frontends in the maps that are not known.
    pub fn unknown_frontends(&self, is_known: impl Fn(&L3n4Addr) -> bool) -> Vec<L3n4Addr> {
        let own = self
            .entries
            .iter()
            .filter(|(address, entry)| !entry.is_expansion && !is_known(address));
        own.map(|(address, _)| *address).collect()
    }

    /// Does what was planned since the last call; one result for each planned frontend, in order.
    pub fn finish(&mut self) -> Vec<FrontendResult> {
        self.flush();
        let mut results: Vec<FrontendResult> = self.round.ids.drain(..).map(Ok).collect();
        for (frontend, error) in self.round.frontends.drain(..).zip(self.round.txn.finish()) {
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
        self.round.txn.add_owner()
    }

    fn plan_frontend(&mut self, frontend: &Frontend) {
        let embedding = self.settings.embedding;
        let frontend = &*frontend.with_kept_backends();
        let frontend = &*embedding.map_or(Cow::Borrowed(frontend), |embedding| embedding.view(frontend));
        let twins = embedding.map_or_else(SmallVec::new, |embedding| embedding.twins(frontend));
        let owner = self.add_owner();
        let address = *frontend.address();
        // First: packets that change their family look for these.
        self.plan_expansions(frontend, &twins);
        let planned =
            check_features(frontend).and_then(|()| self.plan_entry(owner, frontend, address, false));
        let id = match planned {
            Ok(id) => id,
            Err(error) => return self.round.txn.fail(owner, error),
        };
        if let Some(last) = self.round.ids.last_mut() {
            *last = id;
        }
        self.plan_wildcard(owner, frontend, id);
        let node_addresses = frontend.node_addresses.as_deref().unwrap_or_default();
        let wanted = [node_addresses, &twins].concat();
        if wanted.is_empty() && self.expansions.is_empty() {
            return;
        }
        for ip in self.expansions.remove(&address).unwrap_or_default() {
            let expanded = address.with_ip(ip);
            let is_unwanted = !wanted.contains(&ip);
            if is_unwanted
                && self
                    .entries
                    .get(&expanded)
                    .is_some_and(|entry| entry.is_expansion)
            {
                self.plan_gone(expanded);
                // Remembered until it is gone.
                self.round.vanished.push((address, ip));
            }
        }
        self.plan_expansions(frontend, node_addresses);
        if !wanted.is_empty() {
            self.expansions.insert(address, wanted);
        }
    }

    // Further addresses at which a frontend is served.
    fn plan_expansions(&mut self, frontend: &Frontend, ips: &[IpAddr]) {
        for ip in ips {
            let owner = self.add_owner();
            let address = frontend.address().with_ip(*ip);
            if let Err(error) = self.plan_entry(owner, frontend, address, true) {
                self.round.txn.fail(owner, error);
            }
        }
    }

    fn plan_entry(
        &mut self,
        owner: Owner,
        frontend: &Frontend,
        address: L3n4Addr,
        is_expansion: bool,
    ) -> Result<u16, ReconcileError> {
        let mut restored: Box<[u32]> = Box::default();
        if let Some(entry) = self.entries.get(&address) {
            let is_moved = !is_same_object(&entry.service, &frontend.service.name);
            if entry.round == self.round.number {
                self.flush();
            }
            if is_moved {
                // What flows to the address bear meant the other service.
                self.plan_gone(address);
                self.flush();
            }
        }
        if !self.entries.contains_key(&address) {
            let id = self.service_ids.allocate(&address).ok_or(ReconcileError::NoId)?;
            let found = self.restored.remove(&address).unwrap_or_default();
            let mut entry = FrontendEntry::new(id as u16, 0, frontend.service.name.clone());
            entry.has_maglev = found.has_table;
            (entry.high, entry.sure) = (found.high, found.sure);
            if let Some(master) = found.master {
                (entry.master, entry.is_served) = (master, true);
                restored = found.sure_backends().into();
            }
            self.entries.insert(address, Box::new(entry));
        }
        let planned = self.plan_known_entry(owner, frontend, address, (is_expansion, restored));
        if planned.is_err()
            && let Some(entry) = self.entries.get_mut(&address)
        {
            entry.is_dirty = true;
        }
        planned
    }

    fn plan_known_entry(
        &mut self,
        owner: Owner,
        frontend: &Frontend,
        address: L3n4Addr,
        (is_expansion, restored): (bool, Box<[u32]>),
    ) -> Result<u16, ReconcileError> {
        let flags = self.flags(frontend, &address);
        let head = self.master(frontend, flags)?;
        let Some(entry) = self.entries.get_mut(&address) else {
            return Err(ReconcileError::NoId);
        };
        entry.round = self.round.number;
        entry.is_expansion = is_expansion;
        let rewrite = entry.is_fresh || entry.is_dirty || entry.is_gone;
        entry.is_gone = false;
        let served = entry.is_served.then(|| {
            Box::new(Served {
                set: entry.set.clone(),
                master: entry.master,
                ranges: entry.ranges.clone(),
                pending_deletes: entry.pending_deletes.clone(),
                has_affinity: entry.has_affinity,
                has_maglev: entry.has_maglev,
                restored,
            })
        });
        self.round.planned.push(Planned {
            owner,
            address,
            high: entry.high,
            served,
        });
        let old_set = std::mem::take(&mut entry.set);
        let changes: SmallVec<[Change<'_>; 4]> = old_set.diff(&frontend.backends).collect();
        let plan = EntryPlan {
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
            entry,
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
                    staged: None,
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
            .entries
            .get(&address)
            .is_some_and(|entry| entry.round == self.round.number)
        {
            self.flush();
        }
        self.stage_gone(owner, address);
    }

    // Stages the deletion of all that a frontend address has in the maps.
    fn stage_gone(&mut self, owner: Owner, address: L3n4Addr) {
        let Self {
            entries,
            backends,
            round,
            wildcards,
            quarantines,
            ..
        } = self;
        let Some(entry) = entries.get_mut(&address) else {
            return;
        };
        quarantines.remove(&address);
        entry.round = round.number;
        entry.is_gone = true;
        let id = entry.id;
        let ipv6 = address.is_ipv6();
        let high = entry.high.max(entry.slots.len() as u16);
        entry.is_served = false;
        entry.sure = 0;
        round.planned.push(Planned {
            owner,
            address,
            high,
            served: None,
        });
        round.gone.push((owner, address));

        let set = std::mem::take(&mut entry.set);
        let ranges = entry.ranges.take();
        let affinity = set.iter().filter(|row| entry.has_affinity && row.keeps_clients());
        let affinity = affinity.filter_map(|row| Some(backends.get(&row.params.address)?.id));
        let ranges = ranges
            .iter()
            .flat_map(|nets| nets.iter())
            .filter(|net| net.addr().is_ipv6() == ipv6);
        let (mut affinity, mut ranges) = (affinity.peekable(), ranges.peekable());
        if affinity.peek().is_some() || ranges.peek().is_some() {
            entry
                .pending_deletes
                .get_or_insert_default()
                .add(affinity, ranges.copied());
        }
        let stages = &mut round.stages;
        stages.gone_masters.push(owner, key::service(&address, 0));
        (1..=high).for_each(|slot| stages.gone_slots.push(owner, key::service(&address, slot)));
        if entry.has_maglev || entry.is_dirty {
            stages.gone_maglev.push(owner, key::maglev(id, ipv6));
        }
        if let Some(pending_deletes) = &mut entry.pending_deletes {
            for backend in &pending_deletes.affinity {
                stages.gone_affinity.push(owner, key::affinity(id, *backend));
            }
            for cidr in &pending_deletes.ranges {
                stages.gone_ranges.push(owner, key::source_range(id, cidr));
            }
            release_pending(owner, pending_deletes, backends, round);
        }
        round.stages.gone_reverse.push(owner, key::reverse_nat(id, ipv6));
        set.iter().for_each(|row| release(owner, row, backends, round));
        entry.slots = Slots::None;
        entry.has_maglev = false;
        entry.has_affinity = false;
        if let Some(wildcard) = wildcards.get_mut(&address.ip()) {
            let parents = wildcard.parents.len();
            wildcard.parents.retain(|(parent, _)| *parent != id);
            if parents != wildcard.parents.len() || wildcard.written.is_none() {
                round.wildcards.push((owner, address.ip()));
            }
        }
    }
}
