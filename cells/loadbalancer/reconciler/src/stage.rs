// SPDX-License-Identifier: Apache-2.0

//! The stages of a round: which map each is on, and in which order they are carried out.
//!
//! The order inside one frontend is what a packet that arrives meanwhile relies on: nothing refers to what does not
//! exist yet, or does not exist any more.

use skep_datapath_maps::IpPair;
use skep_datapath_maps::transaction::{Deletions, Phase, Stage, Updates};

use super::ReconcileError;
use super::capacity::Capacity;
use crate::maps::{
    AffinityMatches, Backends, LoadBalancerMaps, MaglevTables, ReverseNats, Services, SourceRanges,
};

pub(super) use skep_datapath_maps::transaction::Owner;

/// The transaction of a round. Owners are frontend addresses; an owner that fails early keeps what the maps held of it, or
/// leaves them; one that fails late only has deletions left.
pub(super) type Transaction = skep_datapath_maps::transaction::Transaction<ReconcileError>;

skep_datapath_maps::stages! {
    /// Map operations of a round, gathered over many frontends.
    pub(super) struct Stages {
        // Frontends that go.
        pub(super) gone_masters: Deletions<Services>,
        pub(super) gone_slots: Deletions<Services>,
        pub(super) gone_maglev: Deletions<MaglevTables>,
        pub(super) gone_affinity: Deletions<AffinityMatches>,
        pub(super) gone_ranges: Deletions<SourceRanges>,
        pub(super) gone_reverse: Deletions<ReverseNats>,
        // Frontends that stay: what is new.
        pub(super) backends: Updates<Backends>,
        pub(super) new_slots: Updates<Services>,
        pub(super) affinity: Updates<AffinityMatches>,
        pub(super) ranges: Updates<SourceRanges>,
        pub(super) reverse: Updates<ReverseNats>,
        pub(super) new_maglev: Updates<MaglevTables>,
        // What is replaced or deleted, and the master entries.
        pub(super) slots: Updates<Services>,
        pub(super) stale_affinity: Deletions<AffinityMatches>,
        pub(super) maglev: Updates<MaglevTables>,
        pub(super) stale_maglev: Deletions<MaglevTables>,
        pub(super) stale_ranges: Deletions<SourceRanges>,
        pub(super) masters: Updates<Services>,
        pub(super) wildcards: Updates<Services>,
        pub(super) stale_wildcards: Deletions<Services>,
        pub(super) stale_slots: Deletions<Services>,
        // Backends without references.
        pub(super) stale_backends: Deletions<Backends>,
    }
}

impl Stages {
    /// Frontends that go: what leads to the others first. The reverse entry is the last of a frontend, but for the
    /// wildcard entry.
    fn run_gone(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.run(&mut self.gone_masters, &maps.services);
        txn.run(&mut self.gone_slots, &maps.services);
        txn.run(&mut self.gone_maglev, &maps.maglev);
        txn.run(&mut self.gone_affinity, &maps.affinity);
        txn.run(&mut self.gone_ranges, &maps.source_ranges);
        txn.run(&mut self.gone_reverse, &maps.reverse_nat);
    }

    /// First part: everything up to and including the backend entries, which other frontends of the round may wait for.
    pub(super) fn run_backends(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        self.run_gone(maps, txn);
        txn.run_shared(&mut self.backends, &maps.backends);
    }

    /// Second part: what else adds entries to a map, what others refer to first. A frontend that does not fit fails here,
    /// before anything is changed that packets rely on.
    pub(super) fn run_new(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.run(&mut self.new_slots, &maps.services);
        txn.run(&mut self.affinity, &maps.affinity);
        txn.run(&mut self.ranges, &maps.source_ranges);
        txn.run(&mut self.reverse, &maps.reverse_nat);
        txn.run(&mut self.new_maglev, &maps.maglev);
    }

    /// Third part: what packets see of it. These replace entries and delete them, but for the master entries of new
    /// frontends.
    pub(super) fn run_rest(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.enter(Phase::Change);
        txn.run(&mut self.slots, &maps.services);
        txn.run(&mut self.stale_affinity, &maps.affinity);
        txn.run(&mut self.maglev, &maps.maglev);
        txn.run(&mut self.stale_maglev, &maps.maglev);
        txn.run(&mut self.stale_ranges, &maps.source_ranges);
        txn.run(&mut self.masters, &maps.services);
        self.run_wildcards(maps, txn);
        txn.run(&mut self.stale_slots, &maps.services);
    }

    fn run_wildcards(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.run(&mut self.wildcards, &maps.services);
        txn.run(&mut self.stale_wildcards, &maps.services);
    }

    /// Last part: backends without references.
    pub(super) fn run_stale_backends(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.enter(Phase::CleanUp);
        txn.run_shared(&mut self.stale_backends, &maps.backends);
    }

    /// Backends that earlier rounds left unwritten: no owner relies on them.
    pub(super) fn run_unwritten(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        txn.enter(Phase::CleanUp);
        txn.run_shared(&mut self.backends, &maps.backends);
    }

    /// Deletes what refused frontends had, and writes what the others share with them: its transaction is one of its own.
    pub(super) fn run_release(&mut self, maps: &LoadBalancerMaps, txn: &mut Transaction) {
        self.run_gone(maps, txn);
        self.run_wildcards(maps, txn);
        // Backends that cannot be written are no failure of who was refused.
        self.backends.write(&maps.backends, |_, _| {});
    }

    /// Ids of the backends that could not be written.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = u32> {
        self.backends.failed().map(|(_, key)| key.into_inner().id)
    }

    /// Number of deletions of what no packet needs, by map. Those of backends are counted where they are decided.
    pub(super) fn count_deletions(&self, counts: &mut Capacity) {
        for stage in [
            &self.gone_masters,
            &self.gone_slots,
            &self.stale_wildcards,
            &self.stale_slots,
        ] {
            add(&mut counts.services, stage);
        }
        add(&mut counts.maglev, &self.gone_maglev);
        add(&mut counts.maglev, &self.stale_maglev);
        let affinity = self.gone_affinity.len() + self.stale_affinity.len();
        counts.affinity = counts.affinity.saturating_add(affinity as u32);
        add(&mut counts.source_ranges, &self.gone_ranges);
        add(&mut counts.source_ranges, &self.stale_ranges);
        add(&mut counts.reverse_nat, &self.gone_reverse);
    }
}

/// Adds the number of entries of a stage.
pub(super) fn add(counts: &mut IpPair<u32, u32>, stage: &IpPair<impl Stage, impl Stage>) {
    counts.v4 = counts.v4.saturating_add(stage.v4.len() as u32);
    counts.v6 = counts.v6.saturating_add(stage.v6.len() as u32);
}
