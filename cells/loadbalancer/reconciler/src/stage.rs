// SPDX-License-Identifier: Apache-2.0

//! Map operations of a round, gathered over many frontends and done stage by stage.
//!
//! The order inside one frontend is what a packet that arrives meanwhile relies on: nothing refers to what does not
//! exist yet, or does not exist any more. Doing one stage for all frontends of a round before the next keeps it and
//! needs few system calls. A frontend whose operation fails takes no part in the stages that follow.

use std::sync::Arc;

use skep_bpf_maps::lb::ServiceValue;
use skep_loadbalancer_model::hash::HashSet;

use super::ReconcileError;
use super::capacity::Capacity;
use crate::maps::{
    AffinityKey, BackendKey, BackendValue, Entries, Failures, Keys, LbMaps, MaglevKey, MapKind, RevNatKey,
    RevNatValue, ServiceKey, SourceRangeKey,
};

/// Index of a frontend in the round.
pub(super) type Owner = u32;

/// Operations of one stage, each with the frontend it is for.
#[derive(Debug)]
pub(super) struct Stage<T> {
    items: Vec<T>,
    owners: Vec<Owner>,
}

impl<T> Default for Stage<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            owners: Vec::new(),
        }
    }
}

impl<T> Stage<T> {
    pub(super) fn push(&mut self, owner: Owner, item: T) {
        self.items.push(item);
        self.owners.push(owner);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Owner, &T)> {
        self.owners.iter().copied().zip(&self.items)
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Keeps the items that a predicate accepts.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(usize, Owner, &T) -> bool) {
        let mut kept = (0..self.items.len()).map(|at| keep(at, self.owners[at], &self.items[at]));
        let kept: Vec<bool> = kept.by_ref().collect();
        let mut at = kept.iter();
        self.items.retain(|_| at.next().is_none_or(|kept| *kept));
        let mut at = kept.iter();
        self.owners.retain(|_| at.next().is_none_or(|kept| *kept));
    }

    fn clear(&mut self) {
        self.items.clear();
        self.owners.clear();
        // The memory of a round of thousands is not kept.
        if self.items.capacity() > 8192 {
            self.items.shrink_to(1024);
            self.owners.shrink_to(1024);
        }
    }

    fn drop_failed(&mut self, outcome: &Outcome) {
        if outcome.failed == 0 {
            return;
        }
        let mut keep = self
            .owners
            .iter()
            .map(|owner| outcome.errors[*owner as usize].is_none());
        self.items.retain(|_| keep.next().unwrap_or(true));
        self.owners
            .retain(|owner| outcome.errors[*owner as usize].is_none());
    }
}

/// Errors of a round, by owner.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<Option<ReconcileError>>,
    failed: usize,
    // Owners of which everything is done but the deletion of backends.
    late: HashSet<Owner>,
    // Owners that failed before anything was overwritten that the maps held before.
    early: HashSet<Owner>,
}

impl Outcome {
    pub(super) fn add_owner(&mut self) -> Owner {
        self.errors.push(None);
        (self.errors.len() - 1) as Owner
    }

    pub(super) fn fail(&mut self, owner: Owner, error: ReconcileError) {
        let slot = &mut self.errors[owner as usize];
        if slot.is_none() {
            *slot = Some(error);
            self.failed += 1;
        }
    }

    /// Takes the errors out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Option<ReconcileError>> {
        self.failed = 0;
        self.late.clear();
        self.early.clear();
        self.errors.drain(..)
    }

    pub(super) fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// Whether the frontend's own entries are not all as planned.
    pub(super) fn is_failed(&self, owner: Owner) -> bool {
        self.errors[owner as usize].is_some() && !self.late.contains(&owner)
    }

    /// Whether nothing was overwritten that the maps held before the round.
    pub(super) fn is_early(&self, owner: Owner) -> bool {
        self.early.contains(&owner)
    }

    /// Fails an owner whose frontend failed early.
    pub(super) fn fail_early(&mut self, owner: Owner, error: ReconcileError) {
        self.fail(owner, error);
        self.early.insert(owner);
    }

    fn note_early(&mut self) {
        if self.failed > 0 {
            let failed = self.errors.iter().zip(0..);
            self.early.extend(
                failed
                    .filter(|(error, _)| error.is_some())
                    .map(|(_, at): (_, Owner)| at),
            );
        }
    }

    // Failures that do not concern the entries of the owners themselves: something is left to be retried.
    fn take_late(&mut self, failures: Failures, owners: &[Owner]) {
        for (index, _) in &failures {
            let owner = owners[*index];
            if self.errors[owner as usize].is_none() {
                self.late.insert(owner);
            }
        }
        self.take(failures, owners);
    }

    fn take(&mut self, failures: Failures, owners: &[Owner]) {
        for (index, error) in failures {
            self.fail(owners[index], error.into());
        }
    }
}

/// The stages of a round, in the order they are done.
#[derive(Debug, Default)]
pub(super) struct Stages {
    // Frontends that go: what leads to the others first.
    pub(super) gone_masters: Stage<ServiceKey>,
    pub(super) gone_slots: Stage<ServiceKey>,
    pub(super) gone_maglev: Stage<MaglevKey>,
    pub(super) gone_affinity: Stage<AffinityKey>,
    pub(super) gone_ranges: Stage<SourceRangeKey>,
    // The last entry of a frontend to be deleted, but for the wildcard entry.
    pub(super) gone_reverse: Stage<RevNatKey>,
    // Frontends that stay: what others refer to first. These add entries to a map; a frontend that does not fit fails
    // here, before anything is changed that packets rely on.
    pub(super) backends: Stage<(BackendKey, BackendValue)>,
    pub(super) new_slots: Stage<(ServiceKey, ServiceValue)>,
    pub(super) affinity: Stage<AffinityKey>,
    pub(super) ranges: Stage<SourceRangeKey>,
    pub(super) reverse: Stage<(RevNatKey, RevNatValue)>,
    pub(super) new_maglev: Stage<(MaglevKey, Arc<[u32]>)>,
    // These replace entries and delete them, but for the master entries of new frontends.
    pub(super) slots: Stage<(ServiceKey, ServiceValue)>,
    pub(super) stale_affinity: Stage<AffinityKey>,
    pub(super) maglev: Stage<(MaglevKey, Arc<[u32]>)>,
    pub(super) stale_maglev: Stage<MaglevKey>,
    pub(super) stale_ranges: Stage<SourceRangeKey>,
    pub(super) masters: Stage<(ServiceKey, ServiceValue)>,
    pub(super) wildcards: Stage<(ServiceKey, ServiceValue)>,
    pub(super) stale_wildcards: Stage<ServiceKey>,
    pub(super) stale_slots: Stage<ServiceKey>,
    // Backends without references.
    pub(super) stale_backends: Stage<BackendKey>,
}

macro_rules! run {
    ($self:ident, $outcome:ident, $call:expr, $kind:path: $($stage:ident),*) => {$(
        $self.$stage.drop_failed($outcome);
        if !$self.$stage.items.is_empty() {
            let failures = $call($kind(&$self.$stage.items));
            $outcome.take(failures, &$self.$stage.owners);
        }
    )*};
}

impl Stages {
    /// First part: everything up to and including the backend entries, which other frontends of the round may wait
    /// for. Returns the ids of those that could not be written.
    pub(super) fn run_backends(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> Vec<u32> {
        self.run_gone(maps, outcome);
        if self.backends.items.is_empty() {
            return Vec::new();
        }
        let failures = maps.update(Entries::Backends(&self.backends.items));
        let failed = failures
            .iter()
            .map(|(index, _)| self.backends.items[*index].0.id)
            .collect();
        outcome.take(failures, &self.backends.owners);
        failed
    }

    fn run_gone(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) {
        let delete = |keys: Keys<'_>| maps.delete(keys);
        run!(self, outcome, delete, Keys::Services: gone_masters, gone_slots);
        run!(self, outcome, delete, Keys::Maglev: gone_maglev);
        run!(self, outcome, delete, Keys::AffinityMatch: gone_affinity);
        run!(self, outcome, delete, Keys::SourceRange: gone_ranges);
        run!(self, outcome, delete, Keys::ReverseNat: gone_reverse);
    }

    /// Deletes what refused frontends had, and writes what the others share with them. Returns the ids of backends that
    /// could not be written.
    pub(super) fn run_release(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> HashSet<u32> {
        self.run_gone(maps, outcome);
        self.run_wildcards(maps, outcome);
        if self.backends.items.is_empty() {
            return HashSet::default();
        }
        let failures = maps.update(Entries::Backends(&self.backends.items));
        let ids = failures.iter().map(|(index, _)| self.backends.items[*index].0.id);
        ids.collect()
    }

    fn run_wildcards(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) {
        let update = |entries: Entries<'_>| maps.update(entries);
        let delete = |keys: Keys<'_>| maps.delete(keys);
        run!(self, outcome, update, Entries::Services: wildcards);
        run!(self, outcome, delete, Keys::Services: stale_wildcards);
    }

    /// Second part: what else adds entries to a map.
    pub(super) fn run_new(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) {
        let update = |entries: Entries<'_>| maps.update(entries);
        run!(self, outcome, update, Entries::Services: new_slots);
        run!(self, outcome, update, Entries::AffinityMatch: affinity);
        run!(self, outcome, update, Entries::SourceRange: ranges);
        run!(self, outcome, update, Entries::ReverseNat: reverse);
        run!(self, outcome, update, Entries::Maglev: new_maglev);
        outcome.note_early();
    }

    /// Third part: what packets see of it.
    pub(super) fn run_rest(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) {
        let update = |entries: Entries<'_>| maps.update(entries);
        let delete = |keys: Keys<'_>| maps.delete(keys);
        run!(self, outcome, update, Entries::Services: slots);
        run!(self, outcome, delete, Keys::AffinityMatch: stale_affinity);
        run!(self, outcome, update, Entries::Maglev: maglev);
        run!(self, outcome, delete, Keys::Maglev: stale_maglev);
        run!(self, outcome, delete, Keys::SourceRange: stale_ranges);
        run!(self, outcome, update, Entries::Services: masters);
        self.run_wildcards(maps, outcome);
        run!(self, outcome, delete, Keys::Services: stale_slots);
    }

    /// Backends that earlier rounds left unwritten. Returns the ids of those that still are.
    pub(super) fn run_unwritten(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> HashSet<u32> {
        if self.backends.items.is_empty() {
            return HashSet::default();
        }
        let failures = maps.update(Entries::Backends(&self.backends.items));
        let failed = failures.iter().map(|(index, _)| self.backends.items[*index].0.id);
        let failed = failed.collect();
        outcome.take_late(failures, &self.backends.owners);
        failed
    }

    /// Last part: backends without references. Returns the keys that could not be deleted.
    pub(super) fn run_stale_backends(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> Vec<BackendKey> {
        if self.stale_backends.items.is_empty() {
            return Vec::new();
        }
        let failures = maps.delete(Keys::Backends(&self.stale_backends.items));
        let failed = failures
            .iter()
            .map(|(index, _)| self.stale_backends.items[*index])
            .collect();
        outcome.take_late(failures, &self.stale_backends.owners);
        failed
    }

    /// Number of deletions of what no packet needs, by map.
    pub(super) fn count_deletions(&self, counts: &mut Capacity) {
        let services = [
            &self.gone_masters,
            &self.gone_slots,
            &self.stale_wildcards,
            &self.stale_slots,
        ];
        for stage in services {
            stage
                .items
                .iter()
                .for_each(|key| counts.add(MapKind::Services, key.address.is_ipv6(), 1));
        }
        for stage in [&self.gone_maglev, &self.stale_maglev] {
            stage
                .items
                .iter()
                .for_each(|key| counts.add(MapKind::Maglev, key.ipv6, 1));
        }
        let affinity = self.gone_affinity.len() + self.stale_affinity.len();
        counts.add(MapKind::AffinityMatch, false, affinity as u32);
        for stage in [&self.gone_ranges, &self.stale_ranges] {
            stage
                .items
                .iter()
                .for_each(|key| counts.add(MapKind::SourceRange, key.cidr.addr().is_ipv6(), 1));
        }
        for key in &self.gone_reverse.items {
            counts.add(MapKind::ReverseNat, key.ipv6, 1);
        }
        for key in &self.stale_backends.items {
            counts.add(MapKind::Backends, key.ipv6, 1);
        }
    }

    pub(super) fn clear(&mut self) {
        self.clear_all_but_backends();
        self.stale_backends.clear();
    }

    /// Clears what was done before the last part.
    pub(super) fn clear_all_but_backends(&mut self) {
        let Self {
            gone_masters,
            gone_slots,
            gone_maglev,
            gone_affinity,
            gone_reverse,
            gone_ranges,
            backends,
            new_slots,
            slots,
            affinity,
            stale_affinity,
            new_maglev,
            maglev,
            stale_maglev,
            ranges,
            stale_ranges,
            reverse,
            masters,
            wildcards,
            stale_wildcards,
            stale_slots,
            stale_backends: _,
        } = self;
        [gone_masters, gone_slots, stale_wildcards, stale_slots]
            .into_iter()
            .for_each(Stage::clear);
        [gone_maglev, stale_maglev].into_iter().for_each(Stage::clear);
        [gone_affinity, affinity, stale_affinity]
            .into_iter()
            .for_each(Stage::clear);
        [gone_ranges, ranges, stale_ranges]
            .into_iter()
            .for_each(Stage::clear);
        [new_slots, slots, masters, wildcards]
            .into_iter()
            .for_each(Stage::clear);
        gone_reverse.clear();
        backends.clear();
        new_maglev.clear();
        maglev.clear();
        reverse.clear();
    }
}
