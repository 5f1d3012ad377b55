// SPDX-License-Identifier: Apache-2.0

//! The persistent ordered map behind every index: clones share structure, changes copy a path.
//!
//! A B+ tree whose nodes are shared by reference counts; a node that only one tree holds is changed in place, so a
//! transaction copies each node once at most. `imbl::OrdMap` was measured first: its nodes of 64 entries make a
//! change of one object in a table of 100,000 cost 11 µs, and a look-up 130 ns among 1000 objects.
//!
//! Nodes keep keys in a compact form of their own ([`NodeKeys`]), so a key costs few bytes more than those in
//! which it differs from its neighbours.

mod iter;
mod keys;
#[cfg(test)]
mod tests;

use std::{borrow::Borrow, sync::Arc};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

pub(crate) use iter::{Iter, KeyAt};
pub(crate) use keys::{NodeKeys, Numbers, Texts};

/// Entries of a leaf, and children of an inner node. Copying an inner node touches the reference counts of all its
/// children, which are mostly not in any cache: the fewer children, the better for a change of one entry. The more
/// entries, the fewer inner nodes: better for many changes at once, for look-ups and for memory.
const FAN: usize = 32;

#[repr(C)]
struct Leaf<K, V> {
    keys: K,
    values: ArrayVec<V, FAN>,
}

#[repr(C)]
struct Inner<K, V> {
    /// Key `i` is at or before everything in child `i + 1` and after everything in child `i`.
    keys: K,
    children: ArrayVec<Node<K, V>, FAN>,
}

enum Node<K, V> {
    Leaf(Arc<Leaf<K, V>>),
    Inner(Arc<Inner<K, V>>),
}

impl<K: Clone, V: Clone> Clone for Leaf<K, V> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            values: self.values.clone(),
        }
    }
}

impl<K: Clone, V> Clone for Inner<K, V> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            children: self.children.clone(),
        }
    }
}

impl<K, V> Clone for Node<K, V> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(leaf) => Self::Leaf(Arc::clone(leaf)),
            Self::Inner(inner) => Self::Inner(Arc::clone(inner)),
        }
    }
}

/// What comes of an insertion into a full node: a new node follows it, which starts at the key.
type Split<K, V> = Option<(<K as NodeKeys>::Owned, Node<K, V>)>;

impl<K: NodeKeys, V: Clone> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.values.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    /// Inserts a key that is not there where `path` leads.
    fn insert(&mut self, path: &[u8], key: &K::Key, value: V) -> Split<K, V> {
        let (&at, path) = path.split_first()?;
        match self {
            Self::Leaf(leaf) => Arc::make_mut(leaf).insert(usize::from(at), key, value),
            Self::Inner(inner) => Arc::make_mut(inner).insert(usize::from(at), path, key, value),
        }
    }

    fn remove(&mut self, key: &K::Key) -> Option<V> {
        match self {
            Self::Leaf(leaf) => {
                let (at, true) = leaf.keys.locate(key.into()) else {
                    return None;
                };
                let leaf = Arc::make_mut(leaf);
                leaf.keys.remove(at);
                Some(leaf.values.remove(at))
            }
            Self::Inner(inner) => {
                let at = inner.keys.up_to(key.into());
                let inner = Arc::make_mut(inner);
                let removed = inner.children[at].remove(key)?;
                inner.tidy(at);
                Some(removed)
            }
        }
    }

    /// Appends what `next` holds; `key` separates both.
    fn append(&mut self, key: &K::Key, next: Self) {
        match (self, next) {
            (Self::Leaf(left), Self::Leaf(right)) => {
                let left = Arc::make_mut(left);
                let right = Arc::unwrap_or_clone(right);
                left.keys.append(&right.keys);
                left.values.extend(right.values);
            }
            (Self::Inner(left), Self::Inner(right)) => {
                let left = Arc::make_mut(left);
                let right = Arc::unwrap_or_clone(right);
                left.keys.insert(left.keys.len(), key);
                left.keys.append(&right.keys);
                left.children.extend(right.children);
            }
            _ => unreachable!("siblings are of one height"),
        }
    }
}

impl<K, V> Leaf<K, V> {
    #[inline]
    fn entry(&self, at: usize) -> (KeyAt<'_, K>, &V) {
        (KeyAt { keys: &self.keys, at }, &self.values[at])
    }
}

/// Returns where a full node is split when an entry is inserted at `at`: in the middle, but at the end when the
/// entry comes last, so that keys inserted in order fill their nodes.
fn split_at(at: usize, full: usize) -> usize {
    if at == full { full } else { full / 2 }
}

impl<K: NodeKeys, V: Clone> Leaf<K, V> {
    fn of(key: &K::Key, value: V) -> Self {
        let mut leaf = Self {
            keys: K::default(),
            values: ArrayVec::new(),
        };
        leaf.insert_at(0, key, value);
        leaf
    }

    fn insert_at(&mut self, at: usize, key: &K::Key, value: V) {
        self.keys.insert(at, key);
        self.values.insert(at, value);
    }

    fn insert(&mut self, at: usize, key: &K::Key, value: V) -> Split<K, V> {
        if !self.values.is_full() {
            self.insert_at(at, key, value);
            return None;
        }
        let middle = split_at(at, FAN);
        if middle == FAN {
            let between = K::between(&self.keys, key);
            return Some((between, Node::Leaf(Arc::new(Self::of(key, value)))));
        }
        let mut right = Self {
            keys: self.keys.split_off(middle),
            values: self.values.drain(middle..).collect(),
        };
        if at > middle {
            right.insert_at(at - middle, key, value);
        } else {
            self.insert_at(at, key, value);
        }
        let between = K::between(&self.keys, right.keys.owned(0).borrow());
        Some((between, Node::Leaf(Arc::new(right))))
    }
}

impl<K: NodeKeys, V: Clone> Inner<K, V> {
    fn of(first: Node<K, V>) -> Self {
        let mut inner = Self {
            keys: K::default(),
            children: ArrayVec::new(),
        };
        inner.children.push(first);
        inner
    }

    fn insert(&mut self, at: usize, path: &[u8], key: &K::Key, value: V) -> Split<K, V> {
        let (separator, node) = self.children[at].insert(path, key, value)?;
        if !self.children.is_full() {
            self.insert_after(at, separator.borrow(), node);
            return None;
        }
        // The new child's place is `at + 1`.
        let middle = split_at(at + 1, FAN);
        if middle == FAN {
            return Some((separator, Node::Inner(Arc::new(Self::of(node)))));
        }
        let mut right = Self {
            keys: self.keys.split_off(middle),
            children: self.children.drain(middle..).collect(),
        };
        let between = self.keys.owned(middle - 1);
        self.keys.remove(middle - 1);
        if at + 1 > middle {
            right.insert_after(at - middle, separator.borrow(), node);
        } else {
            self.insert_after(at, separator.borrow(), node);
        }
        Some((between, Node::Inner(Arc::new(right))))
    }

    /// Inserts `node`, which starts at `separator`, after child `at`.
    fn insert_after(&mut self, at: usize, separator: &K::Key, node: Node<K, V>) {
        self.keys.insert(at, separator);
        self.children.insert(at + 1, node);
    }

    /// After a removal from child `at`: drops it if empty, joins it with a neighbour if both are small.
    fn tidy(&mut self, at: usize) {
        let len = self.children[at].len();
        if len == 0 {
            self.children.remove(at);
            if self.keys.len() > 0 {
                self.keys.remove(at.saturating_sub(1));
            }
            return;
        }
        if len > FAN / 4 {
            return;
        }
        let joins = |left: usize| {
            let right = self.children.get(left + 1)?;
            (self.children[left].len() + right.len() <= FAN * 3 / 4).then_some(left)
        };
        if let Some(left) = at.checked_sub(1).and_then(joins).or_else(|| joins(at)) {
            let key = self.keys.owned(left);
            self.keys.remove(left);
            let right = self.children.remove(left + 1);
            self.children[left].append(key.borrow(), right);
        }
    }
}

/// Where a key belongs that is not there: made by [`Tree::find`].
pub(crate) struct Place {
    /// Children on the way, then where in the leaf. Those on the way are left out if the last leaf has room.
    path: SmallVec<[u8; 14]>,
    is_last: bool,
}

/// Keys in order, each with a value.
pub(crate) struct Tree<K, V> {
    root: Option<Node<K, V>>,
    /// Stands for the last leaf below the root, if any: keys added in order change this one alone, and no node above.
    last: Option<Arc<Leaf<K, V>>>,
    len: usize,
}

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            last: self.last.clone(),
            len: self.len,
        }
    }
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self {
            root: None,
            last: None,
            len: 0,
        }
    }
}

impl<K: NodeKeys, V: Clone> Tree<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the leaf to be read in place of one below the root.
    #[inline]
    fn current<'a>(&'a self, leaf: &'a Leaf<K, V>, is_last: bool) -> &'a Leaf<K, V> {
        match &self.last {
            Some(last) if is_last => last,
            _ => leaf,
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: &K::Key) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        let key = K::Probe::from(key);
        let mut is_last = true;
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.up_to(key);
                    is_last &= at == inner.keys.len();
                    node = inner.children.get(at)?;
                }
                Node::Leaf(leaf) => {
                    let leaf = self.current(leaf, is_last);
                    let (at, true) = leaf.keys.locate(key) else {
                        return None;
                    };
                    return leaf.values.get(at);
                }
            }
        }
    }

    /// Returns the value, to be changed.
    pub(crate) fn get_mut(&mut self, key: &K::Key) -> Option<&mut V> {
        self.settle();
        let mut node = self.root.as_mut()?;
        let key = K::Probe::from(key);
        loop {
            match node {
                Node::Inner(inner) => {
                    let inner = Arc::make_mut(inner);
                    node = inner.children.get_mut(inner.keys.up_to(key))?;
                }
                Node::Leaf(leaf) => {
                    let (at, true) = leaf.keys.locate(key) else {
                        return None;
                    };
                    return Arc::make_mut(leaf).values.get_mut(at);
                }
            }
        }
    }

    /// Returns the value, or where the key belongs: good for [`Tree::fill`] as long as the tree does not change.
    pub(crate) fn find(&self, key: &K::Key) -> Result<&V, Place> {
        let mut place = Place {
            path: SmallVec::new(),
            is_last: true,
        };
        let key = K::Probe::from(key);
        // Keys added in order mostly belong to a leaf that is at hand.
        if let Some(last) = &self.last
            && !last.values.is_full()
        {
            match last.keys.locate(key) {
                (at, true) => return Ok(&last.values[at]),
                (0, false) => {}
                (at, false) => {
                    place.path.push(at as u8);
                    return Err(place);
                }
            }
        }
        let Some(mut node) = self.root.as_ref() else {
            return Err(place);
        };
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.up_to(key);
                    place.is_last &= at == inner.keys.len();
                    place.path.push(at as u8);
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => {
                    let leaf = self.current(leaf, place.is_last);
                    let (at, is_there) = leaf.keys.locate(key);
                    if is_there {
                        return Ok(&leaf.values[at]);
                    }
                    place.path.push(at as u8);
                    return Err(place);
                }
            }
        }
    }

    /// Inserts a key at the place where it was looked for.
    pub(crate) fn fill(&mut self, place: &Place, key: &K::Key, value: V) {
        self.len += 1;
        if place.is_last && self.last.is_none() {
            self.last = self.detached();
        }
        if place.is_last
            && let Some(last) = &mut self.last
        {
            if let Some(&at) = place.path.last()
                && !last.values.is_full()
            {
                Arc::make_mut(last).insert_at(usize::from(at), key, value);
                return;
            }
            self.settle();
        }
        let Some(root) = &mut self.root else {
            self.root = Some(Node::Leaf(Arc::new(Leaf::of(key, value))));
            return;
        };
        if let Some((separator, right)) = root.insert(&place.path, key, value) {
            let mut inner = Inner::of(root.clone());
            inner.insert_after(0, separator.borrow(), right);
            self.root = Some(Node::Inner(Arc::new(inner)));
        }
    }

    /// Returns the last leaf, if there are nodes above it and there is room in it.
    fn detached(&self) -> Option<Arc<Leaf<K, V>>> {
        let Some(Node::Inner(root)) = &self.root else {
            return None;
        };
        let mut inner = &**root;
        loop {
            match inner.children.last()? {
                Node::Inner(below) => inner = below,
                Node::Leaf(leaf) => return (!leaf.values.is_full()).then(|| Arc::clone(leaf)),
            }
        }
    }

    /// Moves the last leaf below the root.
    fn settle(&mut self) {
        let (Some(last), Some(mut node)) = (self.last.take(), self.root.as_mut()) else {
            return;
        };
        loop {
            match node {
                Node::Leaf(leaf) => {
                    *leaf = last;
                    return;
                }
                Node::Inner(inner) => match Arc::make_mut(inner).children.last_mut() {
                    Some(below) => node = below,
                    None => return,
                },
            }
        }
    }

    /// Returns the value replaced.
    pub(crate) fn insert(&mut self, key: &K::Key, value: V) -> Option<V> {
        match self.find(key) {
            Ok(_) => self.get_mut(key).map(|old| std::mem::replace(old, value)),
            Err(place) => {
                self.fill(&place, key, value);
                None
            }
        }
    }

    /// Returns the value removed.
    pub(crate) fn remove(&mut self, key: &K::Key) -> Option<V> {
        // The leaf that the last one stands for may hold what is removed, too.
        self.settle();
        let removed = self.root.as_mut()?.remove(key)?;
        self.len -= 1;
        loop {
            self.root = match &self.root {
                Some(node) if node.len() == 0 => None,
                Some(Node::Inner(inner)) if inner.children.len() == 1 => Some(inner.children[0].clone()),
                _ => return Some(removed),
            };
        }
    }

    /// Everything in order.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter::all(self)
    }

    /// Entries with keys at or after `key`, in order.
    pub(crate) fn at_least(&self, key: &K::Key) -> Iter<'_, K, V> {
        Iter::from(self, key)
    }

    /// Entries whose keys start with `start`, in order.
    pub(crate) fn starting(&self, start: K::Owned) -> Iter<'_, K, V> {
        Iter::starting(self, start)
    }

    /// Returns the first entry.
    pub(crate) fn first(&self) -> Option<(KeyAt<'_, K>, &V)> {
        self.iter().next()
    }
}
