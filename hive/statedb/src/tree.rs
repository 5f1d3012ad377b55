// SPDX-License-Identifier: Apache-2.0

//! The persistent ordered map behind every index: clones share structure, changes copy a path.
//!
//! A B+ tree whose nodes are shared by reference counts; a node that only one tree holds is changed in place, so a
//! transaction copies each node once at most. `imbl::OrdMap` was measured first: its nodes of 64 entries make a
//! change of one object in a table of 100,000 cost 11 µs, and a look-up 130 ns among 1000 objects.
//!
//! Nodes keep keys in a compact form of their own ([`NodeKeys`]), so a key costs few bytes more than what tells it from
//! its neighbours.

mod iter;
mod keys;
#[cfg(test)]
mod tests;

use std::{borrow::Borrow, sync::Arc};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

pub(crate) use iter::{Iter, KeyAt};
pub(crate) use keys::{NodeKeys, Numbers, Probe, Texts};

/// Entries of a leaf, and children of an inner node. Copying a node touches the reference counts of all it holds,
/// which are mostly not in any cache: fewer is better for changes, more for look-ups.
const FAN: usize = 16;

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

/// What an insertion into a node came to.
enum Inserted<K: NodeKeys, V> {
    Replaced(V),
    Added,
    /// The node was full: a new node follows it, which starts at the key.
    Split(K::Owned, Node<K, V>),
}

impl<K: NodeKeys, V: Clone> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.values.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    fn insert(&mut self, path: &[u8], key: &K::Key, value: V) -> Inserted<K, V> {
        match self {
            Self::Leaf(leaf) => Arc::make_mut(leaf).insert(path, key, value),
            Self::Inner(inner) => Arc::make_mut(inner).insert(path, key, value),
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

impl<K, V> Node<K, V> {
    fn last(&self) -> Option<(KeyAt<'_, K>, &V)> {
        let mut node = self;
        loop {
            match node {
                Node::Inner(inner) => node = inner.children.last()?,
                Node::Leaf(leaf) => return Some(leaf.entry(leaf.values.len().checked_sub(1)?)),
            }
        }
    }
}

impl<K, V> Leaf<K, V> {
    #[inline]
    fn entry(&self, at: usize) -> (KeyAt<'_, K>, &V) {
        (KeyAt { keys: &self.keys, at }, &self.values[at])
    }
}

/// Where a full node is split when an entry is to be inserted at `at`: in the middle, but at the end when the entry
/// comes last, so that keys inserted in order fill their nodes.
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

    fn insert(&mut self, path: &[u8], key: &K::Key, value: V) -> Inserted<K, V> {
        let (at, is_there) = match path.first() {
            Some(&at) => (usize::from(at), false),
            None => self.keys.locate(key.into()),
        };
        if is_there {
            return Inserted::Replaced(std::mem::replace(&mut self.values[at], value));
        }
        if !self.values.is_full() {
            self.insert_at(at, key, value);
            return Inserted::Added;
        }
        let middle = split_at(at, FAN);
        if middle == FAN {
            let between = K::between(&self.keys, key);
            return Inserted::Split(between, Node::Leaf(Arc::new(Self::of(key, value))));
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
        Inserted::Split(between, Node::Leaf(Arc::new(right)))
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

    fn insert(&mut self, path: &[u8], key: &K::Key, value: V) -> Inserted<K, V> {
        let (at, path) = match path.split_first() {
            Some((&at, path)) => (usize::from(at), path),
            None => (self.keys.up_to(key.into()), path),
        };
        let (separator, node) = match self.children[at].insert(path, key, value) {
            Inserted::Split(separator, node) => (separator, node),
            other => return other,
        };
        if !self.children.is_full() {
            self.insert_after(at, separator.borrow(), node);
            return Inserted::Added;
        }
        // The new child's place is `at + 1`.
        let middle = split_at(at + 1, FAN);
        if middle == FAN {
            return Inserted::Split(separator, Node::Inner(Arc::new(Self::of(node))));
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
        Inserted::Split(between, Node::Inner(Arc::new(right)))
    }

    /// Puts `node`, which starts at `separator`, after child `at`.
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
pub(crate) struct Place(SmallVec<[u8; 14]>);

/// Keys in order, each with a value.
pub(crate) struct Tree<K, V> {
    root: Option<Node<K, V>>,
    len: usize,
}

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K: NodeKeys, V: Clone> Tree<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn get(&self, key: &K::Key) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        let key = K::Probe::from(key);
        loop {
            match node {
                Node::Inner(inner) => node = inner.children.get(inner.keys.up_to(key))?,
                Node::Leaf(leaf) => {
                    let (at, true) = leaf.keys.locate(key) else {
                        return None;
                    };
                    return leaf.values.get(at);
                }
            }
        }
    }

    /// The value, to be changed.
    pub(crate) fn get_mut(&mut self, key: &K::Key) -> Option<&mut V> {
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

    /// The value, or where the key belongs: good for [`Tree::fill`] as long as the tree does not change.
    pub(crate) fn find(&self, key: &K::Key) -> Result<&V, Place> {
        let mut path = SmallVec::new();
        let Some(mut node) = self.root.as_ref() else {
            return Err(Place(path));
        };
        let key = K::Probe::from(key);
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.up_to(key);
                    path.push(at as u8);
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => {
                    let (at, is_there) = leaf.keys.locate(key);
                    if is_there {
                        return Ok(&leaf.values[at]);
                    }
                    path.push(at as u8);
                    return Err(Place(path));
                }
            }
        }
    }

    /// Inserts a key at the place where it was looked for.
    pub(crate) fn fill(&mut self, place: &Place, key: &K::Key, value: V) {
        self.put(&place.0, key, value);
    }

    /// Gives the value replaced.
    pub(crate) fn insert(&mut self, key: &K::Key, value: V) -> Option<V> {
        self.put(&[], key, value)
    }

    /// Inserts where `path` leads, or, if it is empty, where `key` belongs.
    fn put(&mut self, path: &[u8], key: &K::Key, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Node::Leaf(Arc::new(Leaf::of(key, value))));
            self.len = 1;
            return None;
        };
        match root.insert(path, key, value) {
            Inserted::Replaced(old) => return Some(old),
            Inserted::Added => {}
            Inserted::Split(separator, right) => {
                let mut inner = Inner::of(root.clone());
                inner.insert_after(0, separator.borrow(), right);
                self.root = Some(Node::Inner(Arc::new(inner)));
            }
        }
        self.len += 1;
        None
    }

    /// Gives the value removed.
    pub(crate) fn remove(&mut self, key: &K::Key) -> Option<V> {
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

    /// The last entry with a key before `key`.
    #[inline]
    pub(crate) fn before(&self, key: K::Probe<'_>) -> Option<(KeyAt<'_, K>, &V)> {
        let mut node = self.root.as_ref()?;
        // The child before the one looked into: all that it holds is before `key`.
        let mut neighbour = None;
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.locate(key).0;
                    neighbour = at
                        .checked_sub(1)
                        .map(|before| &inner.children[before])
                        .or(neighbour);
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => match leaf.keys.locate(key).0 {
                    0 => return neighbour.and_then(Node::last),
                    at => return Some(leaf.entry(at - 1)),
                },
            }
        }
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<(KeyAt<'_, K>, &V)> {
        self.iter().next()
    }
}
