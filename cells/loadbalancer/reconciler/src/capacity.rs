// SPDX-License-Identifier: Apache-2.0

//! Which of the frontends that a full map refused are tried, and when.
//!
//! A round writes all of its frontends at once, and frontends that fail together may fit one by one. So those refused
//! are tried again alone, the one with the fewest entries first: most frontends are served that way. One that needs no
//! less of a map than another that the map just refused is not tried. Those that remain wait for a retry, or until
//! deletions made room for them; a deletion wakes no more of them than may fit.

use skep_bpf_maps::lb::{
    AFFINITY_MATCH, BACKENDS4, BACKENDS6, MAGLEV4, MAGLEV6, REVERSE_NAT4, REVERSE_NAT6, SERVICES4, SERVICES6,
    SOURCE_RANGE4, SOURCE_RANGE6,
};
use skep_datapath_maps::IpPair;
use skep_loadbalancer_model::types::{BackendState, Frontend, L3n4Addr};

use super::slots::{CLASSES, counts};
use super::{FrontendResult, Ops, ReconcileError};

const MAPS: usize = 11;

/// A count of entries for each map, as [`LoadBalancerMaps`](crate::maps::LoadBalancerMaps) has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) services: IpPair<u32, u32>,
    pub(super) backends: IpPair<u32, u32>,
    pub(super) reverse_nat: IpPair<u32, u32>,
    pub(super) source_ranges: IpPair<u32, u32>,
    pub(super) maglev: IpPair<u32, u32>,
    pub(super) affinity: u32,
}

/// Names of the maps, in the order of [`Capacity::all`].
fn names() -> [&'static str; MAPS] {
    [
        SERVICES4.name,
        SERVICES6.name,
        BACKENDS4.name,
        BACKENDS6.name,
        REVERSE_NAT4.name,
        REVERSE_NAT6.name,
        SOURCE_RANGE4.name,
        SOURCE_RANGE6.name,
        MAGLEV4.name,
        MAGLEV6.name,
        AFFINITY_MATCH.name,
    ]
}

impl Capacity {
    /// As much as there may be.
    pub(super) const UNKNOWN: Self = {
        const MOST: IpPair<u32, u32> = IpPair::new(u32::MAX, u32::MAX);
        Self {
            services: MOST,
            backends: MOST,
            reverse_nat: MOST,
            source_ranges: MOST,
            maglev: MOST,
            affinity: u32::MAX,
        }
    };

    fn all(mut self) -> [u32; MAPS] {
        self.all_mut().map(|count| *count)
    }

    fn all_mut(&mut self) -> [&mut u32; MAPS] {
        let Self {
            services,
            backends,
            reverse_nat,
            source_ranges,
            maglev,
            affinity,
        } = self;
        [
            &mut services.v4,
            &mut services.v6,
            &mut backends.v4,
            &mut backends.v6,
            &mut reverse_nat.v4,
            &mut reverse_nat.v6,
            &mut source_ranges.v4,
            &mut source_ranges.v6,
            &mut maglev.v4,
            &mut maglev.v6,
            affinity,
        ]
    }

    fn total(&self) -> u64 {
        self.all().into_iter().map(u64::from).sum()
    }

    fn fits_into(&self, capacity: &Self) -> bool {
        let mut both = self.all().into_iter().zip(capacity.all());
        both.all(|(need, capacity)| need <= capacity)
    }

    fn take(&mut self, need: &Self) {
        for (capacity, need) in self.all_mut().into_iter().zip(need.all()) {
            // What is not known stays so.
            if *capacity != u32::MAX {
                *capacity = capacity.saturating_sub(need);
            }
        }
    }

    fn grow(&mut self, freed: &Self) {
        let both = self.all_mut().into_iter().zip(freed.all());
        both.for_each(|(capacity, freed)| add(capacity, freed));
    }
}

fn add(count: &mut u32, entries: u32) {
    *count = count.saturating_add(entries);
}

/// A frontend that a full map refused.
#[derive(Debug)]
pub(super) struct Waiting {
    need: Capacity,
    /// Its backends that are not in the maps: their ids are kept for it.
    backends: Box<[L3n4Addr]>,
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
            // Else it may need more than is known, or less.
            let is_known = self.is_written_as_known(frontend);
            let mut limits = least.iter().zip(need.all());
            let limit = limits.find_map(|(least, need)| least.as_ref().filter(|(least, _)| need >= *least));
            let result = match limit {
                Some((_, error)) if is_known => Err(error.clone()),
                _ => {
                    self.upsert(frontend);
                    self.finish().pop().unwrap_or(Ok(0))
                }
            };
            if let Err(error) = &result
                && let Some(name) = error.full_map()
                && let Some(map) = names().iter().position(|known| *known == name)
            {
                // At least the entry that was refused, whatever is known of what the maps have.
                let needed = need.all()[map].max(1);
                if is_known && least[map].as_ref().is_none_or(|(least, _)| needed < *least) {
                    least[map] = Some((needed, error.clone()));
                    *self.capacity.all_mut()[map] = needed - 1;
                }
                *need.all_mut()[map] = needed;
                self.wait(frontend, need);
            } else if result.is_ok() && !need.fits_into(&self.capacity) {
                self.capacity = Capacity::UNKNOWN;
            }
            results[at] = result;
        }
        results
    }

    fn wait(&mut self, frontend: &Frontend, need: Capacity) {
        let rows = frontend.backends.iter().chain(&frontend.kept_backends);
        let addresses = rows.map(|row| row.params.address);
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

    // Whether the maps have of a frontend what its last round wanted, or nothing.
    fn is_written_as_known(&self, frontend: &Frontend) -> bool {
        let address = *frontend.address();
        let ips = frontend.node_addresses.as_deref().unwrap_or_default();
        let expanded = ips.iter().map(|ip| address.with_ip(*ip));
        let entries = std::iter::once(address).chain(expanded);
        entries
            .filter_map(|address| self.entries.get(&address))
            .all(|entry| !entry.is_dirty)
    }

    // Entries that the maps do not have and that the frontend needs.
    fn need(&self, frontend: &Frontend) -> Capacity {
        let frontend = &*frontend.with_kept_backends();
        let mut need = Capacity::default();
        let address = *frontend.address();
        let ipv6 = address.is_ipv6();
        let mut classes = [0; CLASSES];
        let mut active = 0;
        for row in &frontend.backends {
            if !self.backends.contains_key(&row.params.address) {
                add(need.backends.of_mut(row.params.address.is_ipv6()), 1);
            }
            if row.params.state != BackendState::Maintenance && !row.is_kept {
                classes[usize::from(u8::from(row.unhealthy) * 5 + row.params.state as u8)] += 1;
            }
            active += u32::from(row.keeps_clients());
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
            add(need.services.of_mut(ipv6), len.saturating_sub(sure) + is_new);
            add(need.reverse_nat.of_mut(ipv6), is_new);
            if frontend.service.session_affinity {
                let set = entry.filter(|entry| entry.has_affinity).map(|entry| &entry.set);
                let had = set.map_or(0, |set| {
                    let rows = frontend.backends.iter().filter(|row| row.keeps_clients());
                    let had = rows.filter(|row| {
                        set.get(&row.params.address)
                            .is_some_and(|row| row.keeps_clients())
                    });
                    had.count() as u32
                });
                add(&mut need.affinity, active - had);
            }
            let had = entry
                .and_then(|entry| entry.ranges.as_deref())
                .unwrap_or_default();
            let new = ranges
                .iter()
                .filter(|net| net.addr().is_ipv6() == ipv6 && !had.contains(net));
            add(need.source_ranges.of_mut(ipv6), new.count() as u32);
            let has_maglev = entry.is_some_and(|entry| entry.has_maglev);
            if !has_maglev && slots.count > 0 && self.settings.uses_maglev(frontend, &address) {
                add(need.maglev.of_mut(ipv6), 1);
            }
        }
        let wildcard = self.wildcards.get(&address.ip());
        let has_wildcard = wildcard.is_some_and(|wildcard| matches!(wildcard.written, Some(Some(_))));
        if !has_wildcard && self.settings.uses_wildcard(frontend) {
            add(need.services.of_mut(ipv6), 1);
        }
        need
    }
}
