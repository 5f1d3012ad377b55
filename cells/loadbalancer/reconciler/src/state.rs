// SPDX-License-Identifier: Apache-2.0

//! What the machine remembers of the maps, and of the round that it plans.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_loadbalancer_model::types::{BackendSet, FrontendKind, L3n4Addr, ServiceName};
use smallvec::SmallVec;

use super::slots::Slots;
use super::stage::{Owner, Stages, Transaction};
use crate::maps::key::BackendKey;

/// One frontend address in the maps: a frontend, or the expansion of one to a node address.
#[derive(Debug)]
pub(super) struct FrontendEntry {
    pub(super) id: u16,
    pub(super) service: ServiceName,
    // Highest slot that may be in the map.
    pub(super) high: u16,
    // Slots from 1 that are in the map.
    pub(super) sure: u16,
    pub(super) master: ServiceValue,
    pub(super) slots: Slots,
    pub(super) set: BackendSet,
    pub(super) ranges: Option<Arc<[IpNet]>>,
    pub(super) pending_deletes: Option<Box<PendingDeletes>>,
    pub(super) round: u32,
    pub(super) is_expansion: bool,
    pub(super) is_gone: bool,
    // The maps have a state of it that packets can use.
    pub(super) is_served: bool,
    pub(super) has_affinity: bool,
    pub(super) has_maglev: bool,
    pub(super) is_fresh: bool,
    pub(super) is_dirty: bool,
}

/// Deletions that may not have happened yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PendingDeletes {
    pub(super) affinity: Vec<u32>,
    pub(super) ranges: Vec<IpNet>,
    // Backends that are not its own any more, but that its slots may name: entries without a row, and those of others.
    pub(super) backends: Vec<BackendKey>,
    // Those with an entry: of a state that an earlier run wrote, of which affinity and ranges are not known, ...
    pub(super) held: Vec<L3n4Addr>,
    // ... and those that a change of it gave up, which then failed.
    pub(super) shared: Vec<L3n4Addr>,
}

impl PendingDeletes {
    /// Adds deletions, each once however often it fails.
    pub(super) fn add(
        &mut self,
        affinity: impl IntoIterator<Item = u32>,
        ranges: impl IntoIterator<Item = IpNet>,
    ) {
        self.affinity.extend(affinity);
        self.affinity.sort_unstable();
        self.affinity.dedup();
        self.ranges.extend(ranges);
        self.ranges.sort_unstable();
        self.ranges.dedup();
    }
}

/// A backend entry.
#[derive(Debug)]
pub(super) struct BackendEntry {
    pub(super) id: u32,
    // Frontends of which the maps hold a state that names it: one of an earlier run, or before a change that failed.
    pub(super) holds: u32,
    // Rows of the address that frontends have, of one service each. The newest counts.
    pub(super) rows: SmallVec<[RowRef; 1]>,
    // State and zone in the map; `None`: not known.
    pub(super) written: Option<(u8, u8)>,
    // Round of the last write.
    pub(super) round: u32,
}

/// A row that frontends refer to.
#[derive(Debug)]
pub(super) struct RowRef {
    pub(super) revision: u64,
    pub(super) refs: u32,
    // State and zone.
    pub(super) value: (u8, u8),
}

/// A reference to a backend that an owner gave up. The backend stays until the end of the round: others may take it.
pub(super) struct Dropped {
    pub(super) owner: Owner,
    pub(super) address: L3n4Addr,
    // Slots in the maps may name it if the owner fails.
    pub(super) is_named: bool,
    // If it goes, its id is kept for a retry.
    pub(super) keeps_id: bool,
}

/// A backend entry that is to be deleted.
pub(super) struct Released {
    pub(super) owner: Owner,
    pub(super) key: BackendKey,
    // Its id is kept for this address.
    pub(super) kept_for: Option<L3n4Addr>,
}

/// A frontend address of a round.
pub(super) struct Planned {
    pub(super) owner: Owner,
    pub(super) address: L3n4Addr,
    pub(super) high: u16,
    // What the maps held before, if packets could use it.
    pub(super) served: Option<Box<Served>>,
}

/// A state of a frontend address that the maps hold.
pub(super) struct Served {
    pub(super) set: BackendSet,
    pub(super) master: ServiceValue,
    pub(super) ranges: Option<Arc<[IpNet]>>,
    pub(super) pending_deletes: Option<Box<PendingDeletes>>,
    pub(super) has_affinity: bool,
    pub(super) has_maglev: bool,
    // Backends in its slots, if an earlier run wrote them.
    pub(super) restored: Box<[u32]>,
}

/// A wildcard entry.
#[derive(Debug, Default)]
pub(super) struct Wildcard {
    pub(super) parents: SmallVec<[(u16, FrontendKind); 1]>,
    // What is in the map; outer `None`: not known.
    pub(super) written: Option<Option<ServiceFlags>>,
    // What the round writes; outer `None`: nothing.
    pub(super) staged: Option<Option<ServiceFlags>>,
}

impl Wildcard {
    /// Takes what the map holds now from what an owner that staged it came to. Several owners stage the same: one that
    /// completes is enough.
    pub(super) fn settle(&mut self, is_incomplete: bool) {
        match self.staged {
            Some(staged) if !is_incomplete => self.written = Some(staged),
            Some(staged) if self.written != Some(staged) => self.written = None,
            _ => {}
        }
    }
}

#[derive(Default)]
pub(super) struct Round {
    pub(super) number: u32,
    pub(super) stages: Stages,
    pub(super) txn: Transaction,
    // Number of each frontend of the round, and the frontend of each owner.
    pub(super) ids: Vec<u16>,
    pub(super) frontends: Vec<u32>,
    pub(super) addresses: Vec<L3n4Addr>,
    pub(super) planned: Vec<Planned>,
    // References that were given up.
    pub(super) dropped: Vec<Dropped>,
    // Backend entries to be deleted at its end.
    pub(super) released: Vec<Released>,
    pub(super) gone: Vec<(Owner, L3n4Addr)>,
    // Frontends that rely on a backend entry another one writes.
    pub(super) waits: Vec<(Owner, u32)>,
    pub(super) wildcards: Vec<(Owner, IpAddr)>,
    // Frontends that go with their expansions, and expansions of frontends that stay.
    pub(super) emptied: Vec<L3n4Addr>,
    pub(super) vanished: Vec<(L3n4Addr, IpAddr)>,
    pub(super) with_pending_deletes: Vec<(Owner, L3n4Addr)>,
    pub(super) tables: Option<(BackendSet, Arc<[u32]>)>,
}

impl FrontendEntry {
    pub(super) fn new(id: u16, high: u16, service: ServiceName) -> Self {
        Self {
            id,
            service,
            high,
            sure: 0,
            master: ServiceValue::master(0, 0, 0, ServiceFlags::empty()),
            slots: Slots::None,
            set: BackendSet::default(),
            ranges: None,
            pending_deletes: None,
            round: 0,
            is_expansion: false,
            is_gone: false,
            is_served: false,
            has_affinity: false,
            has_maglev: false,
            is_fresh: true,
            is_dirty: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a wildcard entry without flags after owners that staged it with them, incomplete ones and others.
    fn settled(are_incomplete: &[bool]) -> Option<Option<ServiceFlags>> {
        let mut wildcard = Wildcard {
            written: Some(None),
            staged: Some(Some(ServiceFlags::LOAD_BALANCER)),
            ..Wildcard::default()
        };
        for is_incomplete in are_incomplete {
            wildcard.settle(*is_incomplete);
        }
        wildcard.written
    }

    #[test]
    fn a_wildcard_entry_is_written_if_one_of_its_owners_completed() {
        let written = Some(Some(ServiceFlags::LOAD_BALANCER));

        assert_eq!(settled(&[false]), written);
        assert_eq!(settled(&[false, true]), written);
        assert_eq!(settled(&[true, false]), written);
        assert_eq!(settled(&[true, true]), None);
    }

    #[test]
    fn a_wildcard_entry_that_is_not_staged_stays_what_it_is() {
        let mut wildcard = Wildcard {
            written: Some(None),
            ..Wildcard::default()
        };

        wildcard.settle(true);

        assert_eq!(wildcard.written, Some(None));
    }
}
