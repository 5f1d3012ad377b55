// SPDX-License-Identifier: Apache-2.0

//! Objects of a table by numbers of the table's own: the persistent array that indexes point into.
//!
//! An object is in one place however many indexes find it: replacing it leaves all indexes alone whose keys stay, and
//! copying a node of an index is copying numbers, not counting references. Numbers of removed objects are allocated
//! again, lowest first, so that the array stays dense. Objects added one after the other have numbers in a row, and
//! what is done to them in that order touches few nodes.

#[cfg(test)]
mod tests;

use std::sync::Arc;

/// Number of an object in its table.
pub(crate) type Slot = u32;

/// Bits of a number that choose a child.
const BITS: u32 = 4;

/// Places of a node. Copying one touches the reference counts of all it holds: fewer is better for changes, more for
/// look-ups.
const FAN: usize = 1 << BITS;

/// All places taken.
const FULL: u16 = u16::MAX;

struct Leaf<V> {
    values: [Option<V>; FAN],
    /// A bit a place.
    taken: u16,
}

struct Inner<V> {
    /// A bit a child that has no vacant place.
    full: u16,
    below: Below<V>,
}

enum Below<V> {
    Leaves([Option<Arc<Leaf<V>>>; FAN]),
    Inners([Option<Arc<Inner<V>>>; FAN]),
}

impl<V> Default for Leaf<V> {
    fn default() -> Self {
        Self {
            values: [const { None }; FAN],
            taken: 0,
        }
    }
}

impl<V: Clone> Clone for Leaf<V> {
    fn clone(&self) -> Self {
        Self {
            values: self.values.clone(),
            taken: self.taken,
        }
    }
}

impl<V> Clone for Inner<V> {
    fn clone(&self) -> Self {
        let below = match &self.below {
            Below::Leaves(leaves) => Below::Leaves(leaves.clone()),
            Below::Inners(inners) => Below::Inners(inners.clone()),
        };
        Self {
            full: self.full,
            below,
        }
    }
}

impl<V: Clone> Leaf<V> {
    /// Takes the first vacant place, which must exist.
    fn add(&mut self, value: V) -> usize {
        let at = (!self.taken).trailing_zeros() as usize;
        self.values[at] = Some(value);
        self.taken |= 1 << at;
        at
    }

    fn remove(&mut self, at: usize) -> Option<V> {
        self.taken &= !(1 << at);
        self.values[at].take()
    }
}

#[inline]
fn digit(slot: Slot, shift: u32) -> usize {
    (slot >> shift) as usize % FAN
}

/// Returns whether two numbers are of one leaf.
#[inline]
pub(crate) fn is_near(a: Slot, b: Slot) -> bool {
    a >> BITS == b >> BITS
}

/// Place of a number in its leaf.
#[inline]
pub(crate) fn place_of(slot: Slot) -> usize {
    digit(slot, 0)
}

/// Returns the node at a place, created if there is none, for a change.
fn made<N: Clone>(place: &mut Option<Arc<N>>, make: impl FnOnce() -> N) -> &mut N {
    Arc::make_mut(place.get_or_insert_with(|| Arc::new(make())))
}

impl<V: Clone> Inner<V> {
    /// A node without children. `shift`: see [`Slots::shift`].
    fn empty(shift: u32) -> Self {
        let below = if shift == BITS {
            Below::Leaves([const { None }; FAN])
        } else {
            Below::Inners([const { None }; FAN])
        };
        Self { full: 0, below }
    }

    fn is_empty(&self) -> bool {
        match &self.below {
            Below::Leaves(leaves) => leaves.iter().all(Option::is_none),
            Below::Inners(inners) => inners.iter().all(Option::is_none),
        }
    }

    fn note(&mut self, at: usize, is_full: bool) {
        self.full = self.full & !(1 << at) | u16::from(is_full) << at;
    }

    /// Inserts a full leaf where numbers from `slot` on belong; whether this node is full then.
    fn put(&mut self, shift: u32, slot: Slot, leaf: Arc<Leaf<V>>) -> bool {
        let at = digit(slot, shift);
        let is_full = match &mut self.below {
            Below::Leaves(leaves) => {
                leaves[at] = Some(leaf);
                true
            }
            Below::Inners(inners) => {
                let shift = shift - BITS;
                made(&mut inners[at], || Self::empty(shift)).put(shift, slot, leaf)
            }
        };
        self.note(at, is_full);
        self.full == FULL
    }

    /// Takes the first vacant place, which must exist: its number, and whether this node is full then.
    fn add(&mut self, shift: u32, value: V) -> (Slot, bool) {
        let at = (!self.full).trailing_zeros() as usize;
        let (rest, is_full) = match &mut self.below {
            Below::Leaves(leaves) => {
                let leaf = made(&mut leaves[at], Leaf::default);
                let rest = leaf.add(value) as Slot;
                (rest, leaf.taken == FULL)
            }
            Below::Inners(inners) => {
                let shift = shift - BITS;
                made(&mut inners[at], || Self::empty(shift)).add(shift, value)
            }
        };
        self.note(at, is_full);
        ((at as Slot) << shift | rest, self.full == FULL)
    }

    fn remove(&mut self, shift: u32, slot: Slot) -> Option<V> {
        let at = digit(slot, shift);
        self.note(at, false);
        match &mut self.below {
            Below::Leaves(leaves) => {
                let leaf = Arc::make_mut(leaves[at].as_mut()?);
                let value = leaf.remove(digit(slot, 0));
                if leaf.taken == 0 {
                    leaves[at] = None;
                }
                value
            }
            Below::Inners(inners) => {
                let inner = Arc::make_mut(inners[at].as_mut()?);
                let value = inner.remove(shift - BITS, slot);
                if inner.is_empty() {
                    inners[at] = None;
                }
                value
            }
        }
    }
}

/// Values by numbers that it allocates. Cloning shares everything.
pub(crate) struct Slots<V> {
    /// Numbers before `tail_from`.
    root: Option<Arc<Inner<V>>>,
    /// How many bits of a number come after those that choose a child of the root.
    shift: u32,
    /// Vacant places below the root.
    vacant: u32,
    len: u32,
    /// The numbers allocated last are not below the root yet: values added one by one mostly change this leaf alone.
    tail: Arc<Leaf<V>>,
    tail_from: Slot,
}

impl<V> Clone for Slots<V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            tail: Arc::clone(&self.tail),
            ..*self
        }
    }
}

impl<V> Default for Slots<V> {
    fn default() -> Self {
        Self {
            root: None,
            shift: BITS,
            vacant: 0,
            len: 0,
            tail: Arc::default(),
            tail_from: 0,
        }
    }
}

impl<V: Clone> Slots<V> {
    /// Returns the leaf a number belongs to.
    #[inline]
    fn leaf(&self, slot: Slot) -> Option<&Leaf<V>> {
        if slot >= self.tail_from {
            return is_near(slot, self.tail_from).then(|| &*self.tail);
        }
        let mut inner = self.root.as_deref()?;
        let mut shift = self.shift;
        loop {
            match &inner.below {
                Below::Inners(inners) => inner = inners[digit(slot, shift)].as_deref()?,
                Below::Leaves(leaves) => return leaves[digit(slot, BITS)].as_deref(),
            }
            shift -= BITS;
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&V> {
        self.leaf(slot)?.values[place_of(slot)].as_ref()
    }

    /// For many numbers, of which those that follow each other are mostly [near](is_near) each other.
    pub(crate) fn walk(&self) -> Walk<'_, V> {
        Walk {
            slots: self,
            slot: 0,
            leaf: None,
        }
    }

    /// Adds a value; returns its number.
    pub(crate) fn add(&mut self, value: V) -> Slot {
        self.len += 1;
        if self.tail.taken == FULL {
            if self.vacant > 0
                && let Some(root) = &mut self.root
            {
                self.vacant -= 1;
                return Arc::make_mut(root).add(self.shift, value).0;
            }
            self.push_tail();
        }
        self.tail_from + Arc::make_mut(&mut self.tail).add(value) as Slot
    }

    /// Moves the tail, which is full, below the root.
    fn push_tail(&mut self) {
        let leaf = std::mem::take(&mut self.tail);
        let root = self.root.get_or_insert_with(|| Arc::new(Inner::empty(BITS)));
        while self.tail_from >> self.shift >= FAN as Slot {
            let below = std::mem::replace(root, Arc::new(Inner::empty(self.shift + BITS)));
            let top = Arc::make_mut(root);
            top.note(0, below.full == FULL);
            if let Below::Inners(inners) = &mut top.below {
                inners[0] = Some(below);
            }
            self.shift += BITS;
        }
        Arc::make_mut(root).put(self.shift, self.tail_from, leaf);
        self.tail_from += FAN as Slot;
    }

    /// Replaces the value that has this number; returns the old one.
    pub(crate) fn replace(&mut self, slot: Slot, value: V) -> Option<V> {
        let place = self.places(slot)?[place_of(slot)].as_mut();
        place.map(|old| std::mem::replace(old, value))
    }

    /// Places of the numbers [near](is_near) a number, by [`place_of`]. Values may be changed, but none may come or go.
    pub(crate) fn places(&mut self, slot: Slot) -> Option<&mut [Option<V>; FAN]> {
        if slot >= self.tail_from {
            return is_near(slot, self.tail_from).then(|| &mut Arc::make_mut(&mut self.tail).values);
        }
        let mut inner = Arc::make_mut(self.root.as_mut()?);
        let mut shift = self.shift;
        loop {
            match &mut inner.below {
                Below::Inners(inners) => inner = Arc::make_mut(inners[digit(slot, shift)].as_mut()?),
                Below::Leaves(leaves) => {
                    let leaf = leaves[digit(slot, BITS)].as_mut()?;
                    return Some(&mut Arc::make_mut(leaf).values);
                }
            }
            shift -= BITS;
        }
    }

    /// Removes the value that has this number.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<V> {
        let value = match slot.checked_sub(self.tail_from) {
            Some(at) if at >= FAN as Slot => None,
            Some(at) => Arc::make_mut(&mut self.tail).remove(at as usize),
            None => {
                let value = Arc::make_mut(self.root.as_mut()?).remove(self.shift, slot);
                self.vacant += u32::from(value.is_some());
                value
            }
        }?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        Some(value)
    }
}

/// See [`Slots::walk`].
pub(crate) struct Walk<'a, V> {
    slots: &'a Slots<V>,
    /// A number of the leaf looked into last.
    slot: Slot,
    leaf: Option<&'a Leaf<V>>,
}

impl<'a, V: Clone> Walk<'a, V> {
    #[inline]
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&'a V> {
        if self.leaf.is_none() || !is_near(slot, self.slot) {
            self.leaf = self.slots.leaf(slot);
            self.slot = slot;
        }
        self.leaf?.values[place_of(slot)].as_ref()
    }
}
