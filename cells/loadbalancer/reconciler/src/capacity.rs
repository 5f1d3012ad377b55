// SPDX-License-Identifier: Apache-2.0

//! Which of the frontends that a full map refused are tried, and when.
//!
//! A round writes all of its frontends at once, and frontends that fail together may fit one by one. So those refused
//! are tried again alone, the one with the fewest entries first: most frontends are served that way. One that needs no
//! less of a map than another that the map just refused is not tried. Those that remain wait for a retry, or until
//! deletions made room for them; a deletion wakes no more of them than may fit.

use skep_loadbalancer_model::types::{BackendState, Frontend, L3n4Addr};

use super::slots::{CLASSES, counts};
use super::{FrontendResult, Ops, ReconcileError};
use crate::maps::{MapError, MapKind};

const MAPS: usize = MapKind::ALL.len() * 2;

/// A count of entries for each map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity([u32; MAPS]);

impl Capacity {
    /// As much as there may be.
    pub(super) const UNKNOWN: Self = Self([u32::MAX; MAPS]);

    const fn at(kind: MapKind, ipv6: bool) -> usize {
        kind as usize * 2 + ipv6 as usize
    }

    /// Adds entries of a map.
    pub(super) fn add(&mut self, kind: MapKind, ipv6: bool, entries: u32) {
        let count = &mut self.0[Self::at(kind, ipv6)];
        *count = count.saturating_add(entries);
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    fn fits_into(&self, capacity: &Self) -> bool {
        self.0
            .iter()
            .zip(&capacity.0)
            .all(|(need, capacity)| need <= capacity)
    }

    fn take(&mut self, need: &Self) {
        for (capacity, need) in self.0.iter_mut().zip(&need.0) {
            // What is not known stays so.
            if *capacity != u32::MAX {
                *capacity = capacity.saturating_sub(*need);
            }
        }
    }

    fn grow(&mut self, freed: &Self) {
        let both = self.0.iter_mut().zip(&freed.0);
        both.for_each(|(capacity, freed)| *capacity = capacity.saturating_add(*freed));
    }
}

/// A frontend that a full map refused.
#[derive(Debug)]
pub(super) struct Waiting {
    need: Capacity,
    /// Its backends that are not in the maps: their ids are kept for it.
    backends: Box<[L3n4Addr]>,
}

impl ReconcileError {
    /// Whether a map was full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Map(MapError::Full { .. }))
    }

    fn full_map(&self) -> Option<usize> {
        let Self::Map(MapError::Full { map, .. }) = self else {
            return None;
        };
        let all = MapKind::ALL
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)]);
        let found = all.filter(|(kind, ipv6)| kind.name(*ipv6) == *map);
        found.map(|(kind, ipv6)| Capacity::at(kind, ipv6)).next()
    }
}

impl Ops {
    /// Tries frontends that full maps refused in a round once more, each alone. One result for each, in order.
    pub fn retry_refused(&mut self, refused: &[(&Frontend, ReconcileError)]) -> Vec<FrontendResult> {
        let mut order: Vec<(Capacity, usize)> = refused
            .iter()
            .enumerate()
            .map(|(at, (frontend, _))| (self.need(frontend), at))
            .collect();
        order.sort_by_key(|(need, at)| (need.total(), *at));
        let mut results: Vec<FrontendResult> = refused.iter().map(|(_, error)| Err(error.clone())).collect();
        // The least that each map refused, and how.
        let mut least: [Option<(u32, ReconcileError)>; MAPS] = Default::default();
        for (mut need, at) in order {
            let frontend = refused[at].0;
            let mut limits = least.iter().zip(&need.0);
            let limit = limits.find_map(|(least, need)| least.as_ref().filter(|(least, _)| need >= least));
            let result = match limit {
                Some((_, error)) => Err(error.clone()),
                None => {
                    self.upsert(frontend);
                    self.finish().pop().unwrap_or(Ok(0))
                }
            };
            if let Err(error) = &result
                && let Some(map) = error.full_map()
            {
                // At least the entry that was refused, whatever is known of what the maps have.
                let needed = need.0[map].max(1);
                if least[map].as_ref().is_none_or(|(least, _)| needed < *least) {
                    least[map] = Some((needed, error.clone()));
                    self.capacity.0[map] = needed - 1;
                }
                need.0[map] = needed;
                self.wait(frontend, need);
            } else if result.is_ok() && !need.fits_into(&self.capacity) {
                self.capacity = Capacity::UNKNOWN;
            }
            results[at] = result;
        }
        results
    }

    fn wait(&mut self, frontend: &Frontend, need: Capacity) {
        let addresses = frontend.backends.iter().map(|row| row.params.address);
        let backends: Box<[L3n4Addr]> = addresses
            .filter(|address| !self.backends.contains_key(address))
            .collect();
        let waiting = Waiting { need, backends };
        if let Some(before) = self.waiting.insert(*frontend.address(), waiting) {
            let now = &self.waiting[frontend.address()].backends;
            let gone = before.backends.iter().filter(|address| !now.contains(address));
            gone.for_each(|address| self.backend_ids.forget(address));
        }
    }

    /// Forgets a frontend that waits, and the ids kept for its backends. Returns whether it did.
    pub(super) fn stop_waiting(&mut self, frontend: &L3n4Addr) -> bool {
        let Some(waiting) = self.waiting.remove(frontend) else {
            return false;
        };
        let backends = waiting.backends.iter();
        backends.for_each(|address| self.backend_ids.forget(address));
        true
    }

    /// Finds the frontends that may fit since entries were deleted.
    pub(super) fn find_retriable(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        self.capacity.grow(&freed);
        if self.waiting.is_empty() || freed == Capacity::default() {
            return;
        }
        let mut waiting: Vec<(L3n4Addr, Capacity)> = self
            .waiting
            .iter()
            .map(|(address, waiting)| (*address, waiting.need))
            .collect();
        waiting.sort_by_key(|(address, need)| (need.total(), *address));
        for (address, need) in waiting {
            if need.fits_into(&self.capacity) {
                self.capacity.take(&need);
                self.retriable.push(address);
            }
        }
    }

    // Entries that the maps do not have and that the frontend needs.
    fn need(&self, frontend: &Frontend) -> Capacity {
        let mut need = Capacity::default();
        let address = *frontend.address();
        let ipv6 = address.is_ipv6();
        let mut classes = [0; CLASSES];
        let mut active = 0;
        for row in &frontend.backends {
            if !self.backends.contains_key(&row.params.address) {
                need.add(MapKind::Backends, row.params.address.is_ipv6(), 1);
            }
            if row.params.state != BackendState::Maintenance {
                classes[usize::from(u8::from(row.unhealthy) * 5 + row.params.state as u8)] += 1;
            }
            active += u32::from(row.params.state == BackendState::Active);
        }
        let slots = counts(&classes);
        let len = u32::from(slots.count) + u32::from(slots.qcount);
        let ranges = frontend.service.source_ranges.as_deref().unwrap_or_default();
        let ips = frontend.node_addresses.as_deref().unwrap_or_default();
        let expanded = ips.iter().map(|ip| address.with_ip(*ip));
        for address in std::iter::once(address).chain(expanded) {
            let entry = self.entries.get(&address).filter(|entry| entry.is_served);
            let sure = entry.map_or(0, |entry| u32::from(entry.sure));
            let is_new = u32::from(entry.is_none());
            need.add(MapKind::Services, ipv6, len.saturating_sub(sure) + is_new);
            need.add(MapKind::ReverseNat, ipv6, is_new);
            if frontend.service.session_affinity {
                let set = entry.filter(|entry| entry.has_affinity).map(|entry| &entry.set);
                let had = set.map_or(0, |set| {
                    let is_active = |state| state == BackendState::Active;
                    let rows = frontend.backends.iter().filter(|row| is_active(row.params.state));
                    let had = rows.filter(|row| {
                        set.get(&row.params.address)
                            .is_some_and(|row| is_active(row.params.state))
                    });
                    had.count() as u32
                });
                need.add(MapKind::AffinityMatch, false, active - had);
            }
            let had = entry
                .and_then(|entry| entry.ranges.as_deref())
                .unwrap_or_default();
            let new = ranges
                .iter()
                .filter(|net| net.addr().is_ipv6() == ipv6 && !had.contains(net));
            need.add(MapKind::SourceRange, ipv6, new.count() as u32);
            let has_maglev = entry.is_some_and(|entry| entry.has_maglev);
            if !has_maglev && slots.count > 0 && self.settings.uses_maglev(frontend, &address) {
                need.add(MapKind::Maglev, ipv6, 1);
            }
        }
        let has_wildcard = self.wildcards.contains_key(&address.ip());
        if !has_wildcard && self.settings.uses_wildcard(frontend) {
            need.add(MapKind::Services, ipv6, 1);
        }
        need
    }
}
