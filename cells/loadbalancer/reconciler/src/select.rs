// SPDX-License-Identifier: Apache-2.0

//! Backends of a frontend: their ids, their order, their share of the lookup table.

use std::sync::Arc;

use skep_datapath_maps::transaction::Stage as _;
use skep_loadbalancer_maglev::Maglev;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{Backend, BackendRow, BackendSet, BackendState, Change, L3n4Addr};
use smallvec::SmallVec;

use super::Settings;
use super::ids::Ids;
use super::slots::{ACTIVE, CLASSES, Class, Move, Slots, TERMINATING};
use super::stage::Owner;
use super::state::{BackendEntry, Dropped, Round, RowRef};
use crate::maps::{BackendValue, key};

/// Most slots of a frontend.
const MAX_SLOTS: usize = u16::MAX as usize;

/// Backends of one frontend that were quarantined before a restart and not checked since.
pub(super) struct Quarantine<'a> {
    addresses: Option<&'a HashSet<L3n4Addr>>,
    is_active: bool,
}

const NO_QUARANTINE: Quarantine<'static> = Quarantine {
    addresses: None,
    is_active: false,
};

impl<'a> Quarantine<'a> {
    /// Forgets the backends that are gone, end or were checked, then returns the rest.
    pub(super) fn update(
        all: &'a mut HashMap<L3n4Addr, HashSet<L3n4Addr>>,
        frontend: &L3n4Addr,
        backends: &BackendSet,
    ) -> Self {
        if all.is_empty() {
            return NO_QUARANTINE;
        }
        let Some(addresses) = all.get_mut(frontend) else {
            return NO_QUARANTINE;
        };
        addresses.retain(|address| {
            backends.get(address).is_some_and(|row| {
                row.unhealthy_updated_at.is_none() && row.params.state == BackendState::Active
            })
        });
        if addresses.is_empty() {
            all.remove(frontend);
        }
        Self {
            addresses: all.get(frontend),
            is_active: true,
        }
    }

    /// Whether there are any, or were until now: classes of unchanged rows may differ.
    pub(super) const fn is_active(&self) -> bool {
        self.is_active
    }

    fn is_unhealthy(&self, row: &Backend) -> bool {
        row.unhealthy
            || self
                .addresses
                .is_some_and(|addresses| addresses.contains(&row.params.address))
    }

    /// Healthy before unhealthy, then by state.
    pub(super) fn sort_key(&self, row: &Backend) -> Class {
        u8::from(self.is_unhealthy(row)) * 5 + row.params.state as u8
    }

    /// Class of a backend; `None`: it gets no slot.
    pub(super) fn class(&self, row: &Backend) -> Option<Class> {
        let has_slot = row.params.state != BackendState::Maintenance && !row.is_kept;
        has_slot.then(|| self.sort_key(row))
    }
}

impl BackendEntry {
    /// A backend without references, not written yet.
    pub(super) const fn new(id: u32) -> Self {
        Self {
            id,
            holds: 0,
            rows: SmallVec::new_const(),
            written: None,
            round: 0,
        }
    }

    /// Counts a reference to a row.
    pub(super) fn add(&mut self, row: &Backend, revision: u64, settings: &Settings) {
        let zone = row.params.zone.as_ref();
        let zone = zone.and_then(|zone| settings.zones.get(&zone.zone)).copied();
        let value = (row.params.state.map_flags(), zone.unwrap_or(0));
        let is_same = |row: &&mut RowRef| row.revision == revision && row.value == value;
        match self.rows.iter_mut().find(is_same) {
            Some(row) => row.refs += 1,
            None => self.rows.push(RowRef {
                revision,
                refs: 1,
                value,
            }),
        }
    }

    /// Drops a reference to a row.
    pub(super) fn remove(&mut self, row: &BackendRow) {
        let (revision, state) = (row.revision(), row.params.state.map_flags());
        let is_same = |row: &RowRef| row.revision == revision && row.value.0 == state;
        if let Some(at) = self.rows.iter().position(is_same) {
            self.rows[at].refs -= 1;
            if self.rows[at].refs == 0 {
                self.rows.remove(at);
            }
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.rows.is_empty() && self.holds == 0
    }

    /// Writes the backend entry if the newest row that is referenced says something else than what was written.
    pub(super) fn write(&mut self, owner: Owner, address: L3n4Addr, round: &mut Round) {
        let Some(newest) = self.rows.iter().max_by_key(|row| row.revision) else {
            return;
        };
        if self.written == Some(newest.value) {
            // The owner relies on an entry that another one writes in this round, if one does.
            if self.round == round.number {
                round.waits.push((owner, self.id));
            }
            return;
        }
        let (state, zone) = newest.value;
        (self.written, self.round) = (Some(newest.value), round.number);
        let value = BackendValue { address, state, zone };
        let entry = key::backend_entry(self.id, &value);
        round.stages.backends.push(owner, entry);
    }
}

/// Takes a reference to a backend, allocating an id first if it has none. `None`: all are in use.
pub(super) fn acquire(
    owner: Owner,
    row: &BackendRow,
    backends: &mut HashMap<L3n4Addr, BackendEntry>,
    ids: &mut Ids,
    settings: &Settings,
    round: &mut Round,
) -> Option<()> {
    let address = row.params.address;
    let known = match backends.entry(address) {
        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::hash_map::Entry::Vacant(entry) => {
            entry.insert(BackendEntry::new(ids.allocate(&address)?))
        }
    };
    known.add(row, row.revision(), settings);
    known.write(owner, address, round);
    Some(())
}

/// Drops a reference to a backend; the entry is deleted at the end of the round if there is none then, and says what the
/// newest of the remaining rows says if not.
pub(super) fn release(
    owner: Owner,
    row: &BackendRow,
    backends: &mut HashMap<L3n4Addr, BackendEntry>,
    round: &mut Round,
) {
    let address = row.params.address;
    if let Some(known) = backends.get_mut(&address) {
        known.remove(row);
        settle_reference(owner, address, backends, round);
    }
}

/// Drops a hold on a backend, as [`release`] drops a reference.
pub(super) fn release_hold(
    owner: Owner,
    address: L3n4Addr,
    backends: &mut HashMap<L3n4Addr, BackendEntry>,
    round: &mut Round,
) {
    if let Some(known) = backends.get_mut(&address) {
        known.holds = known.holds.saturating_sub(1);
        settle_reference(owner, address, backends, round);
    }
}

fn settle_reference(
    owner: Owner,
    address: L3n4Addr,
    backends: &mut HashMap<L3n4Addr, BackendEntry>,
    round: &mut Round,
) {
    let Some(known) = backends.get_mut(&address) else {
        return;
    };
    round.dropped.push(Dropped {
        owner,
        address,
        is_named: true,
        keeps_id: false,
    });
    known.write(owner, address, round);
}

/// Sorted slots, and the number of backends in each class.
pub(super) fn order(
    set: &BackendSet,
    quarantine: &Quarantine<'_>,
    backends: &HashMap<L3n4Addr, BackendEntry>,
) -> (Slots, [u32; CLASSES]) {
    let mut classes = [0; CLASSES];
    let mut first: Vec<u32> = Vec::new();
    let mut rest: SmallVec<[(Class, u32); 8]> = SmallVec::new();
    let is_single = set.len() == 1;
    for row in set {
        let (Some(class), Some(known)) = (quarantine.class(row), backends.get(&row.params.address)) else {
            continue;
        };
        classes[usize::from(class)] += 1;
        if is_single {
            return (Slots::One(known.id), classes);
        }
        if class == ACTIVE {
            if first.capacity() == 0 {
                first.reserve_exact(set.len());
            }
            first.push(known.id);
        } else {
            rest.push((class, known.id));
        }
    }
    rest.sort_by_key(|(class, _)| *class);
    first.extend(rest.iter().map(|(_, id)| *id));
    first.truncate(MAX_SLOTS);
    (Slots::from_order(first, classes), classes)
}

/// Changes of a large frontend.
pub(super) fn moves(changes: &[Change<'_>], backends: &HashMap<L3n4Addr, BackendEntry>) -> Vec<Move> {
    let none = NO_QUARANTINE;
    let change = |change: &Change<'_>| {
        let (row, from, to) = match *change {
            Change::Added(row) => (row, None, none.class(row)),
            Change::Removed(row) => (row, none.class(row), None),
            Change::Updated { old, new } => (new, none.class(old), none.class(new)),
        };
        let id = backends.get(&row.params.address)?.id;
        (from != to).then_some(Move { id, from, to })
    };
    changes.iter().filter_map(change).collect()
}

/// Lookup table over the backends that may be chosen.
pub(super) fn lookup_table(
    maglev: &Maglev,
    set: &BackendSet,
    quarantine: &Quarantine<'_>,
    backends: &HashMap<L3n4Addr, BackendEntry>,
) -> Arc<[u32]> {
    let has_active = set.iter().any(|row| quarantine.class(row) == Some(ACTIVE));
    let chosen = Some(if has_active { ACTIVE } else { TERMINATING });
    let rows = set
        .iter()
        .filter(|row| quarantine.class(row) == chosen)
        .filter_map(|row| {
            let address = row.params.address;
            Some(skep_loadbalancer_maglev::Backend {
                id: backends.get(&address)?.id,
                weight: row.params.weight,
                address,
            })
        });
    maglev.lookup_table(rows).into()
}
