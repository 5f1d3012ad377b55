// SPDX-License-Identifier: Apache-2.0

//! Which object got its state at which revision: the order of changes of a table.
//!
//! Revisions are counted up, one a change, so they are places in a row: cut into pieces, of which those are kept that
//! still have an object. A change writes one number into the last piece and clears one in an older piece.

use std::sync::Arc;

use crate::{
    Revision,
    slots::Slot,
    tree::{Numbers, Tree},
};

/// Revisions of a piece.
const PIECE: usize = 32;

/// No object has its state from this revision any more.
const NONE: Slot = Slot::MAX;

/// Objects of some revisions in a row.
type Piece = [Slot; PIECE];

/// A piece that changes no more, but for objects that leave it.
#[derive(Clone)]
struct Old {
    slots: Piece,
    /// How many objects it has.
    live: usize,
}

/// Objects by revision. Cloning shares all but the last piece.
#[derive(Clone)]
pub(crate) struct Revisions {
    /// By number of the piece.
    old: Tree<Numbers, Arc<Old>>,
    /// Number of the last piece.
    number: u64,
    last: Piece,
}

impl Default for Revisions {
    fn default() -> Self {
        Self {
            old: Tree::default(),
            number: 0,
            last: [NONE; PIECE],
        }
    }
}

/// Number of a revision's piece, and the place in it.
#[inline]
fn split(revision: Revision) -> (u64, usize) {
    let piece = PIECE as Revision;
    (revision / piece, (revision % piece) as usize)
}

fn live(slots: &[Slot]) -> impl Iterator<Item = Slot> {
    slots.iter().copied().filter(|&slot| slot != NONE)
}

impl Revisions {
    /// Notes that an object got its state at `revision`, which is later than all before.
    #[inline]
    pub(crate) fn push(&mut self, revision: Revision, slot: Slot) {
        let (number, at) = split(revision);
        if number != self.number {
            self.begin(number);
        }
        self.last[at] = slot;
    }

    /// Begins the piece with this number; the last one gets old.
    fn begin(&mut self, number: u64) {
        let slots = std::mem::replace(&mut self.last, [NONE; PIECE]);
        let live = live(&slots).count();
        if live > 0 {
            self.old.insert(&self.number, Arc::new(Old { slots, live }));
        }
        self.number = number;
    }

    /// Forgets the objects that got their states at `revisions`. Quick if those of a piece follow each other.
    pub(crate) fn remove(&mut self, revisions: &[Revision]) {
        for of_piece in revisions.chunk_by(|&a, &b| split(a).0 == split(b).0) {
            let number = split(of_piece[0]).0;
            let places = of_piece.iter().map(|&revision| split(revision).1);
            if number == self.number {
                places.for_each(|at| self.last[at] = NONE);
                continue;
            }
            let Some(old) = self.old.get_mut(&number) else {
                continue;
            };
            let old = Arc::make_mut(old);
            for at in places {
                if std::mem::replace(&mut old.slots[at], NONE) != NONE {
                    old.live -= 1;
                }
            }
            if old.live == 0 {
                self.old.remove(&number);
            }
        }
    }

    /// Objects that got their states at `since` or later, in order.
    pub(crate) fn since(&self, since: Revision) -> impl Iterator<Item = Slot> + use<'_> {
        let (first, from) = split(since);
        // Earlier ones of the same piece are left out.
        let skipped = move |number: u64| if number == first { from } else { 0 };
        let old = self
            .old
            .at_least(&first)
            .flat_map(move |(key, old)| live(&old.slots[skipped(key.number())..]));
        let last = (first <= self.number).then(|| live(&self.last[skipped(self.number)..]));
        old.chain(last.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn compare(revisions: &Revisions, model: &BTreeMap<Revision, Slot>, last: Revision) {
        for since in [
            0,
            1,
            last / 3,
            last / 2,
            last.saturating_sub(1),
            last,
            last + 1,
            last + 100,
        ] {
            let want: Vec<Slot> = model.range(since..).map(|(_, slot)| *slot).collect();
            assert_eq!(revisions.since(since).collect::<Vec<_>>(), want, "since {since}");
        }
    }

    proptest! {
        #[test]
        fn behave_like_an_ordered_map(ops in proptest::collection::vec((0u64..5, 0u32..100, any::<u16>()), 0..600)) {
            let (mut revisions, mut model, mut last) = (Revisions::default(), BTreeMap::new(), 0);
            let mut snapshots = Vec::new();
            for (at, (kind, slot, which)) in ops.into_iter().enumerate() {
                match kind {
                    0 if last > 0 => {
                        let from = u64::from(which) % (last + 5);
                        let gone: Vec<Revision> = (from..=from + u64::from(slot) / 8).collect();
                        revisions.remove(&gone);
                        model.retain(|revision, _| !gone.contains(revision));
                    }
                    // A revision that leaves no object: a deletion.
                    1 => last += 1 + u64::from(which % 90),
                    _ => {
                        last += 1;
                        revisions.push(last, slot);
                        model.insert(last, slot);
                    }
                }
                if at % 50 == 0 {
                    compare(&revisions, &model, last);
                    snapshots.push((revisions.clone(), model.clone(), last));
                }
            }
            snapshots.push((revisions, model, last));
            for (revisions, model, last) in &snapshots {
                compare(revisions, model, *last);
            }
        }
    }

    #[test]
    fn pieces_without_objects_are_dropped() {
        let mut revisions = Revisions::default();
        (1..=1000).for_each(|revision| revisions.push(revision, 7));
        revisions.remove(&(1..1000).collect::<Vec<_>>());

        assert!(revisions.old.is_empty());
        assert_eq!(revisions.since(0).collect::<Vec<_>>(), [7]);
    }
}
