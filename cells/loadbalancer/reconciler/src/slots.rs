// SPDX-License-Identifier: Apache-2.0

//! Which backend is in which slot of a frontend.
//!
//! Up to [`SORTED_MAX`] slots are sorted: healthy before unhealthy, then state, address, port; a change may
//! shift every slot behind it. Larger frontends keep backends where they are, inside the two parts that the
//! programs tell apart (those that may be chosen, then the rest), so that a change writes a slot or two.
//!
//! Cilium keeps all of them in strict order and writes every slot anew. What relies on slots does not see the
//! difference: programs pick one of the first `count`, and a restart takes those behind for quarantined. Lookup tables
//! of Maglev do not depend on slots at all.

use skep_loadbalancer_model::hash::HashMap;

/// Most slots that are kept sorted.
pub(super) const SORTED_MAX: usize = 64;

/// Number of classes: five states, healthy or not.
pub(super) const CLASSES: usize = 10;

/// Sort class of a backend: healthy ones by state, then unhealthy ones by state.
pub(super) type Class = u8;

/// Class of healthy active backends.
pub(super) const ACTIVE: Class = 0;
/// Class of healthy terminating backends.
pub(super) const TERMINATING: Class = 1;

/// Backend ids by slot; index 0 is slot 1.
#[derive(Debug, Default)]
pub(super) enum Slots {
    #[default]
    None,
    One(u32),
    Sorted(Box<[u32]>),
    Stable(Box<StableSlots>),
}

/// Slots of a large frontend.
#[derive(Debug)]
pub(super) struct StableSlots {
    slots: Vec<u32>,
    index: HashMap<u32, u32>,
    counts: [u32; CLASSES],
}

/// Counts of the master entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Slots that may be chosen.
    pub(super) count: u16,
    /// Slots behind them.
    pub(super) qcount: u16,
}

/// Counts from the number of backends in each class.
pub(super) fn counts(classes: &[u32; CLASSES]) -> Counts {
    let total: u32 = classes.iter().sum();
    let chosen = if classes[usize::from(ACTIVE)] > 0 {
        classes[usize::from(ACTIVE)]
    } else {
        classes[usize::from(TERMINATING)]
    };
    let clamp = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    let count = clamp(chosen);
    Counts {
        count,
        // Backends beyond the last slot have none.
        qcount: clamp(total) - count,
    }
}

impl Slots {
    pub(super) fn as_slice(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Sorted(ids) => ids,
            Self::Stable(stable) => &stable.slots,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Counts of a large frontend; nothing for others, which are counted while they are put in order.
    pub(super) fn counts(&self) -> Counts {
        match self {
            Self::Stable(stable) => counts(&stable.counts),
            _ => Counts::default(),
        }
    }

    /// Slots in the given order. `classes` is the number of backends in each class.
    pub(super) fn from_order(ids: Vec<u32>, classes: [u32; CLASSES]) -> Self {
        match ids.as_slice() {
            [] => Self::None,
            [id] => Self::One(*id),
            _ if ids.len() <= SORTED_MAX => Self::Sorted(ids.into()),
            _ => {
                let index = ids.iter().zip(0..).map(|(id, at)| (*id, at)).collect();
                Self::Stable(Box::new(StableSlots {
                    slots: ids,
                    index,
                    counts: classes,
                }))
            }
        }
    }
}

/// A change of one backend of a large frontend: its class before and after; `None`: no slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) id: u32,
    pub(super) from: Option<Class>,
    pub(super) to: Option<Class>,
}

impl StableSlots {
    /// Applies changes and adds the indexes of slots that changed to `touched`. `false`: the slots must be made anew,
    /// because another class is chosen from, the frontend is not large any more, or it has, or had, more backends than
    /// there are slots.
    pub(super) fn apply(&mut self, moves: &[Move], touched: &mut Vec<u32>) -> bool {
        let mut classes = self.counts;
        for m in moves {
            if let Some(class) = m.from {
                classes[usize::from(class)] = classes[usize::from(class)].saturating_sub(1);
            }
            if let Some(class) = m.to {
                classes[usize::from(class)] += 1;
            }
        }
        let total: u32 = classes.iter().sum();
        let active = usize::from(ACTIVE);
        let had: u32 = self.counts.iter().sum();
        if total as usize <= SORTED_MAX
            || had as usize > self.slots.len()
            || self.counts[active] == 0
            || classes[active] == 0
            || total > u32::from(u16::MAX)
        {
            return false;
        }
        if !moves
            .iter()
            .all(|m| m.from.is_none() || self.index.contains_key(&m.id))
        {
            return false;
        }
        let mut chosen = self.counts[active];
        for m in moves {
            let was_chosen = m.from == Some(ACTIVE);
            let is_chosen = m.to == Some(ACTIVE);
            if m.from.is_some() && m.to.is_some() && was_chosen == is_chosen {
                continue;
            }
            if m.from.is_some() {
                let Some(at) = self.index.remove(&m.id) else {
                    continue;
                };
                if was_chosen {
                    chosen -= 1;
                    self.put(at, chosen, touched);
                    self.shorten(chosen, touched);
                } else {
                    self.shorten(at, touched);
                }
            }
            if m.to.is_some() {
                let end = self.slots.len() as u32;
                self.slots.push(m.id);
                if is_chosen {
                    // The first of the rest moves to the end.
                    self.put(end, chosen, touched);
                    self.set(chosen, m.id, touched);
                    chosen += 1;
                } else {
                    self.set(end, m.id, touched);
                }
            }
        }
        self.counts = classes;
        true
    }

    fn set(&mut self, at: u32, id: u32, touched: &mut Vec<u32>) {
        self.slots[at as usize] = id;
        self.index.insert(id, at);
        touched.push(at);
    }

    // Moves the backend at `from` to `to`.
    fn put(&mut self, to: u32, from: u32, touched: &mut Vec<u32>) {
        if to != from {
            let id = self.slots[from as usize];
            self.set(to, id, touched);
        }
    }

    // Fills the free slot at `hole` with the last one and drops that.
    fn shorten(&mut self, hole: u32, touched: &mut Vec<u32>) {
        let last = self.slots.len() as u32 - 1;
        self.put(hole, last, touched);
        self.slots.pop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn loose_slots_hold_each_backend_once_in_its_part(changes in prop::collection::vec((0u32..600, prop::option::of(0u8..4)), 1..200)) {
            let mut model: BTreeMap<u32, Class> = (0..500).map(|id| (id, if id % 5 == 0 { 1 } else { 0 })).collect();
            let order = |model: &BTreeMap<u32, Class>| {
                let mut ids: Vec<(Class, u32)> = model.iter().map(|(id, class)| (*class, *id)).collect();
                ids.sort_unstable();
                let mut classes = [0; CLASSES];
                ids.iter().for_each(|(class, _)| classes[usize::from(*class)] += 1);
                Slots::from_order(ids.iter().map(|(_, id)| *id).collect(), classes)
            };
            let mut slots = order(&model);
            for (id, class) in changes {
                let from = model.get(&id).copied();
                match class {
                    Some(class) => model.insert(id, class),
                    None => model.remove(&id),
                };
                let Slots::Stable(stable) = &mut slots else { panic!("not large") };
                let before = stable.slots.clone();
                let mut touched = Vec::new();
                if from.is_some() || class.is_some() {
                    let applied = stable.apply(&[Move { id, from, to: class }], &mut touched);
                    prop_assert!(applied);
                }
                for (at, id) in stable.slots.iter().enumerate() {
                    prop_assert!(before.get(at) == Some(id) || touched.contains(&(at as u32)));
                    prop_assert_eq!(stable.index[id], at as u32);
                }
                prop_assert!(touched.len() <= 4);
                let count = usize::from(counts(&stable.counts).count);
                prop_assert_eq!(stable.slots.len(), model.len());
                prop_assert!(stable.slots[..count].iter().all(|id| model[id] == ACTIVE));
                prop_assert!(stable.slots[count..].iter().all(|id| model[id] != ACTIVE));
            }
        }
    }
}
