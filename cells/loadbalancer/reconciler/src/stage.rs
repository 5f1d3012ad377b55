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
use crate::maps::{
    AffinityKey, BackendKey, BackendValue, Entries, Failures, Keys, LbMaps, MaglevKey, RevNatKey,
    RevNatValue, ServiceKey, SourceRangeKey,
};

/// Number of a frontend in the round.
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

    fn clear(&mut self) {
        self.items.clear();
        self.owners.clear();
        // A round of thousands should not be paid for ever after.
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
        self.errors.drain(..)
    }

    pub(super) fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// Whether the frontend's own entries are not all as planned.
    pub(super) fn is_failed(&self, owner: Owner) -> bool {
        self.errors[owner as usize].is_some() && !self.late.contains(&owner)
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
    // One entry: when it is gone, and the wildcard, all of the frontend is.
    pub(super) gone_reverse: Stage<RevNatKey>,
    // Frontends that stay: what others refer to first.
    pub(super) backends: Stage<(BackendKey, BackendValue)>,
    pub(super) slots: Stage<(ServiceKey, ServiceValue)>,
    pub(super) affinity: Stage<AffinityKey>,
    pub(super) stale_affinity: Stage<AffinityKey>,
    pub(super) maglev: Stage<(MaglevKey, Arc<[u32]>)>,
    pub(super) stale_maglev: Stage<MaglevKey>,
    pub(super) ranges: Stage<SourceRangeKey>,
    pub(super) stale_ranges: Stage<SourceRangeKey>,
    pub(super) reverse: Stage<(RevNatKey, RevNatValue)>,
    pub(super) masters: Stage<(ServiceKey, ServiceValue)>,
    pub(super) wildcards: Stage<(ServiceKey, ServiceValue)>,
    pub(super) stale_wildcards: Stage<ServiceKey>,
    pub(super) stale_slots: Stage<ServiceKey>,
    // Backends nobody refers to any more.
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
    /// for. Gives the ids of those that could not be written.
    pub(super) fn run_backends(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> Vec<u32> {
        let delete = |keys: Keys<'_>| maps.delete(keys);
        run!(self, outcome, delete, Keys::Services: gone_masters, gone_slots);
        run!(self, outcome, delete, Keys::Maglev: gone_maglev);
        run!(self, outcome, delete, Keys::AffinityMatch: gone_affinity);
        run!(self, outcome, delete, Keys::SourceRange: gone_ranges);
        run!(self, outcome, delete, Keys::ReverseNat: gone_reverse);
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

    /// Second part: everything that leads to the backends.
    pub(super) fn run_rest(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) {
        let update = |entries: Entries<'_>| maps.update(entries);
        let delete = |keys: Keys<'_>| maps.delete(keys);
        run!(self, outcome, update, Entries::Services: slots);
        run!(self, outcome, update, Entries::AffinityMatch: affinity);
        run!(self, outcome, delete, Keys::AffinityMatch: stale_affinity);
        run!(self, outcome, update, Entries::Maglev: maglev);
        run!(self, outcome, delete, Keys::Maglev: stale_maglev);
        run!(self, outcome, update, Entries::SourceRange: ranges);
        run!(self, outcome, delete, Keys::SourceRange: stale_ranges);
        run!(self, outcome, update, Entries::ReverseNat: reverse);
        run!(self, outcome, update, Entries::Services: masters);
        run!(self, outcome, update, Entries::Services: wildcards);
        run!(self, outcome, delete, Keys::Services: stale_wildcards, stale_slots);
    }

    /// Last part: backends nobody refers to. Gives the keys that could not be deleted.
    pub(super) fn run_stale_backends(&mut self, maps: &dyn LbMaps, outcome: &mut Outcome) -> Vec<BackendKey> {
        if self.stale_backends.items.is_empty() {
            return Vec::new();
        }
        let failures = maps.delete(Keys::Backends(&self.stale_backends.items));
        let failed = failures
            .iter()
            .map(|(index, _)| self.stale_backends.items[*index])
            .collect();
        for (index, _) in &failures {
            let owner = self.stale_backends.owners[*index];
            if outcome.errors[owner as usize].is_none() {
                outcome.late.insert(owner);
            }
        }
        outcome.take(failures, &self.stale_backends.owners);
        failed
    }

    pub(super) fn clear(&mut self) {
        let Self {
            gone_masters,
            gone_slots,
            gone_maglev,
            gone_affinity,
            gone_reverse,
            gone_ranges,
            backends,
            slots,
            affinity,
            stale_affinity,
            maglev,
            stale_maglev,
            ranges,
            stale_ranges,
            reverse,
            masters,
            wildcards,
            stale_wildcards,
            stale_slots,
            stale_backends,
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
        [slots, masters, wildcards].into_iter().for_each(Stage::clear);
        gone_reverse.clear();
        backends.clear();
        maglev.clear();
        reverse.clear();
        stale_backends.clear();
    }
}
