// SPDX-License-Identifier: Apache-2.0

//! What the machine remembers of the maps, and of the round that it plans.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_loadbalancer_model::types::{BackendSet, FrontendKind, L3n4Addr};
use smallvec::SmallVec;

use super::slots::Slots;
use super::stage::{Outcome, Owner, Stages};

/// One frontend address in the maps: a frontend, or the expansion of one to a node address.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) id: u16,
    // Highest slot that may be in the map.
    pub(super) high: u16,
    pub(super) master: ServiceValue,
    pub(super) slots: Slots,
    pub(super) set: BackendSet,
    pub(super) ranges: Option<Arc<[IpNet]>>,
    pub(super) leftovers: Option<Box<Leftovers>>,
    pub(super) round: u32,
    pub(super) is_expansion: bool,
    pub(super) is_gone: bool,
    pub(super) has_affinity: bool,
    pub(super) has_maglev: bool,
    pub(super) is_fresh: bool,
    pub(super) is_dirty: bool,
}

/// Deletions that may not have happened yet.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub(super) affinity: Vec<u32>,
    pub(super) ranges: Vec<IpNet>,
}

impl Leftovers {
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
pub(super) struct Known {
    pub(super) id: u32,
    pub(super) refs: u32,
    // Table revision last written; 0: not written.
    pub(super) revision: u64,
    // Round of the last write.
    pub(super) round: u32,
    pub(super) state: u8,
    pub(super) zone: u8,
}

/// A wildcard entry.
#[derive(Debug, Default)]
pub(super) struct Wildcard {
    pub(super) parents: SmallVec<[(u16, FrontendKind); 1]>,
    // What is in the map; outer `None`: not known.
    pub(super) written: Option<Option<ServiceFlags>>,
}

#[derive(Default)]
pub(super) struct Round {
    pub(super) number: u32,
    pub(super) stages: Stages,
    pub(super) outcome: Outcome,
    // Number of each frontend of the round, and the frontend of each owner.
    pub(super) ids: Vec<u16>,
    pub(super) frontends: Vec<u32>,
    pub(super) planned: Vec<(Owner, L3n4Addr, u16)>,
    pub(super) gone: Vec<(Owner, L3n4Addr)>,
    // Frontends that rely on a backend entry another one writes.
    pub(super) waits: Vec<(Owner, u32)>,
    pub(super) wildcards: Vec<(Owner, IpAddr)>,
    // Frontends that go with their expansions, and expansions of frontends that stay.
    pub(super) emptied: Vec<L3n4Addr>,
    pub(super) vanished: Vec<(L3n4Addr, IpAddr)>,
    pub(super) with_leftovers: Vec<(Owner, L3n4Addr)>,
    pub(super) tables: Option<(BackendSet, Arc<[u32]>)>,
}

impl Unit {
    pub(super) fn new(id: u16, high: u16) -> Self {
        Self {
            id,
            high,
            master: ServiceValue::master(0, 0, 0, ServiceFlags::empty()),
            slots: Slots::None,
            set: BackendSet::default(),
            ranges: None,
            leftovers: None,
            round: 0,
            is_expansion: false,
            is_gone: false,
            has_affinity: false,
            has_maglev: false,
            is_fresh: true,
            is_dirty: false,
        }
    }
}
