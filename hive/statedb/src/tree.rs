// SPDX-License-Identifier: Apache-2.0

//! The persistent ordered map behind every index: clones share structure, changes copy a path.
//!
//! A B+ tree whose nodes are shared by reference counts; a node that only one tree holds is changed in place, so a
//! transaction copies each node once at most. `imbl::OrdMap` was measured first: its nodes of 64 entries make a
//! change of one object in a table of 100,000 cost 11 µs, and a look-up 130 ns among 1000 objects.
//!
//! One file although it is long: nodes, insertion, removal and iteration share the same invariants, and the tests at its end
//! look into them.

use std::{cmp::Ordering, ops::ControlFlow, sync::Arc};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use crate::key::KeyBuf;

/// Entries of a leaf, and children of an inner node. Copying a node touches the reference counts of all it holds,
/// which are mostly not in any cache: fewer is better for changes, more for look-ups.
const FAN: usize = 16;

/// Most bytes that all keys of a node share and that it leaves out of its heads.
const SHARED: usize = 39;

/// A key that compares quickly.
pub(crate) trait TreeKey: Ord + Clone {
    /// What a node keeps of a key beside its head.
    type Rest: Clone;
    /// Bytes that may be left out of comparisons where all keys start with them; empty for keys of another kind.
    fn bytes(&self) -> &[u8];
    /// A number that orders like the key without its first `skip` bytes, but for ties.
    fn head(&self, skip: usize) -> u64;
    /// What is kept beside the head.
    fn rest(self) -> Self::Rest;
    /// Compares a kept key with one of the same head.
    fn tie(kept: &Self::Rest, key: &Self) -> Ordering;
    /// The key kept.
    fn kept<'a>(head: &'a u64, rest: &'a Self::Rest) -> &'a Self;
}

impl TreeKey for KeyBuf {
    type Rest = Self;
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
    #[inline]
    fn head(&self, skip: usize) -> u64 {
        self.head_after(skip)
    }
    #[inline]
    fn rest(self) -> Self {
        self
    }
    #[inline]
    fn tie(kept: &Self, key: &Self) -> Ordering {
        KeyBuf::tie(kept, key)
    }
    #[inline]
    fn kept<'a>(_: &'a u64, rest: &'a Self) -> &'a Self {
        rest
    }
}

impl TreeKey for u64 {
    type Rest = ();
    #[inline]
    fn bytes(&self) -> &[u8] {
        &[]
    }
    #[inline]
    fn head(&self, _: usize) -> u64 {
        *self
    }
    #[inline]
    fn rest(self) {}
    #[inline]
    fn tie((): &(), _: &Self) -> Ordering {
        Ordering::Equal
    }
    #[inline]
    fn kept<'a>(head: &'a u64, (): &'a ()) -> &'a Self {
        head
    }
}

/// Sorted keys of a node.
///
/// Keys that are close to each other often start alike (`namespace/service-1234`): heads are of what comes after the
/// bytes that all share, so that a look at them decides.
#[derive(Clone)]
struct Keys<K: TreeKey> {
    /// Compared first, side by side in memory; unused places hold the largest number.
    heads: [u64; FAN],
    /// What all keys start with; the heads leave it out. May be less than they have in common.
    shared: [u8; SHARED],
    skip: u8,
    rest: ArrayVec<K::Rest, FAN>,
}

/// How many bytes two byte strings start with in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<K: TreeKey> Keys<K> {
    fn new() -> Self {
        Self {
            heads: [u64::MAX; FAN],
            shared: [0; SHARED],
            skip: 0,
            rest: ArrayVec::new(),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    fn get(&self, at: usize) -> Option<&K> {
        Some(K::kept(self.heads.get(at)?, self.rest.get(at)?))
    }

    #[inline]
    fn shared(&self) -> &[u8] {
        &self.shared[..usize::from(self.skip).min(SHARED)]
    }

    /// The head of `key` if it starts with what all keys do, else how many keys are before it: all or none.
    #[inline]
    fn head(&self, key: &K) -> Result<u64, usize> {
        let shared = self.shared();
        if shared.is_empty() || key.bytes().starts_with(shared) {
            return Ok(key.head(shared.len()));
        }
        Err(if key.bytes() < shared { 0 } else { self.len() })
    }

    /// How many heads are smaller. All are looked at: a branch here would be mispredicted.
    #[inline]
    fn smaller(&self, head: u64) -> usize {
        let mut count = 0;
        for other in &self.heads {
            count += usize::from(*other < head);
        }
        count
    }

    /// How many keys are before `key`.
    #[inline]
    fn before(&self, key: &K) -> usize {
        match self.head(key) {
            Ok(head) => self.count(head, key, Ordering::Less),
            Err(all) => all,
        }
    }

    /// How many keys are before `key` or equal to it.
    #[inline]
    fn up_to(&self, key: &K) -> usize {
        match self.head(key) {
            Ok(head) => self.count(head, key, Ordering::Equal),
            Err(all) => all,
        }
    }

    #[inline]
    fn count(&self, head: u64, key: &K, most: Ordering) -> usize {
        let mut at = self.smaller(head);
        if self.heads.get(at) == Some(&head) {
            at += self.tied(at, head, key, most);
        }
        at
    }

    /// How many of the keys from `from` on that share `head` compare with `key` as `most` or less.
    #[inline]
    fn tied(&self, from: usize, head: u64, key: &K, most: Ordering) -> usize {
        let rest = self.rest.get(from..).unwrap_or_default();
        // Mostly there is one.
        if self.heads.get(from + 1) != Some(&head) {
            return usize::from(rest.first().is_some_and(|rest| K::tie(rest, key) <= most));
        }
        let count = rest
            .iter()
            .zip(&self.heads[from..])
            .take_while(|&(_, &other)| other == head)
            .count();
        rest[..count].partition_point(|rest| K::tie(rest, key) <= most)
    }

    /// How many keys are before `key`, and whether the next one is `key`.
    #[inline]
    fn locate(&self, key: &K) -> (usize, bool) {
        match self.head(key) {
            Ok(head) => {
                let at = self.count(head, key, Ordering::Less);
                let is_there = match (self.heads.get(at), self.rest.get(at)) {
                    (Some(&other), Some(rest)) => other == head && K::tie(rest, key).is_eq(),
                    _ => false,
                };
                (at, is_there)
            }
            Err(all) => (all, false),
        }
    }

    /// Position of `key`.
    #[inline]
    fn find(&self, key: &K) -> Option<usize> {
        let (at, is_there) = self.locate(key);
        is_there.then_some(at)
    }

    fn insert(&mut self, at: usize, key: K) {
        self.make_room(&key);
        self.heads.copy_within(at..FAN - 1, at + 1);
        self.heads[at] = key.head(usize::from(self.skip));
        self.rest.insert(at, key.rest());
    }

    /// Has the heads skip no more than `key` shares with the others.
    fn make_room(&mut self, key: &K) {
        let skip = usize::from(self.skip);
        let share = match (self.len(), self.get(0)) {
            // The second key: what both share is as good as what any two do.
            (1, Some(first)) => common(first.bytes(), key.bytes()),
            (0, _) | (_, None) => 0,
            _ if skip == 0 => return,
            _ => common(self.shared(), key.bytes()),
        };
        self.reshape(share);
    }

    /// Has the heads skip `share` bytes, which all keys share.
    fn reshape(&mut self, share: usize) {
        let share = share.min(SHARED);
        if share == usize::from(self.skip) {
            return;
        }
        if let Some(first) = self.get(0) {
            let mut shared = [0; SHARED];
            shared[..share].copy_from_slice(&first.bytes()[..share]);
            self.shared = shared;
        }
        self.skip = share as u8;
        for at in 0..self.len() {
            if let Some(head) = self.get(at).map(|key| key.head(share)) {
                self.heads[at] = head;
            }
        }
    }

    /// Has the heads skip all that the keys share.
    fn tighten(&mut self) {
        let share = match (
            self.get(0),
            self.len().checked_sub(1).and_then(|last| self.get(last)),
        ) {
            (Some(first), Some(last)) if self.len() > 1 => common(first.bytes(), last.bytes()),
            _ => 0,
        };
        self.reshape(share);
    }

    fn remove(&mut self, at: usize) {
        self.heads.copy_within(at + 1.., at);
        self.heads[FAN - 1] = u64::MAX;
        self.rest.remove(at);
    }

    fn take(&mut self, at: usize) -> Option<K> {
        let key = self.get(at).cloned();
        self.remove(at);
        key
    }

    fn split_off(&mut self, at: usize) -> Self {
        let mut right = Self::new();
        let len = self.len();
        right.heads[..len - at].copy_from_slice(&self.heads[at..len]);
        (right.shared, right.skip) = (self.shared, self.skip);
        self.heads[at..].fill(u64::MAX);
        right.rest.extend(self.rest.drain(at..));
        self.tighten();
        right.tighten();
        right
    }

    /// Appends keys that come after all that are here.
    fn append(&mut self, mut other: Self) {
        let share = common(self.shared(), other.shared());
        self.reshape(share);
        other.reshape(share);
        let len = self.len();
        self.heads[len..len + other.len()].copy_from_slice(&other.heads[..other.len()]);
        self.rest.extend(other.rest);
        self.tighten();
    }
}

#[derive(Clone)]
struct Leaf<K: TreeKey, V> {
    keys: Keys<K>,
    values: ArrayVec<V, FAN>,
}

#[derive(Clone)]
struct Inner<K: TreeKey, V> {
    /// Key `i` is at or before everything in child `i + 1` and after everything in child `i`.
    keys: Keys<K>,
    children: ArrayVec<Node<K, V>, FAN>,
}

enum Node<K: TreeKey, V> {
    Leaf(Arc<Leaf<K, V>>),
    Inner(Arc<Inner<K, V>>),
}

impl<K: TreeKey, V> Clone for Node<K, V> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(leaf) => Self::Leaf(Arc::clone(leaf)),
            Self::Inner(inner) => Self::Inner(Arc::clone(inner)),
        }
    }
}

/// What an insertion into a node came to.
enum Inserted<K: TreeKey, V> {
    Replaced(V),
    Added,
    /// The node was full: a new node follows it, which starts at the key.
    Split(K, Node<K, V>),
}

impl<K: TreeKey, V: Clone> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.keys.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    fn insert(&mut self, key: K, value: V) -> Inserted<K, V> {
        match self {
            Self::Leaf(leaf) => Arc::make_mut(leaf).insert(key, value),
            Self::Inner(inner) => Arc::make_mut(inner).insert(key, value),
        }
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Self::Leaf(leaf) => {
                let at = leaf.keys.find(key)?;
                let leaf = Arc::make_mut(leaf);
                leaf.keys.remove(at);
                Some(leaf.values.remove(at))
            }
            Self::Inner(inner) => {
                let at = inner.keys.up_to(key);
                let inner = Arc::make_mut(inner);
                let removed = inner.children[at].remove(key)?;
                inner.tidy(at);
                Some(removed)
            }
        }
    }

    /// Appends what `next` holds; `key` separates both.
    fn append(&mut self, key: K, next: Self) {
        match (self, next) {
            (Self::Leaf(left), Self::Leaf(right)) => {
                let left = Arc::make_mut(left);
                let right = Arc::unwrap_or_clone(right);
                left.keys.append(right.keys);
                left.values.extend(right.values);
            }
            (Self::Inner(left), Self::Inner(right)) => {
                let left = Arc::make_mut(left);
                let right = Arc::unwrap_or_clone(right);
                left.keys.insert(left.keys.len(), key);
                left.keys.append(right.keys);
                left.children.extend(right.children);
            }
            _ => unreachable!("siblings are of one height"),
        }
    }

    fn before(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Self::Leaf(leaf) => {
                let at = leaf.keys.before(key).checked_sub(1)?;
                Some((leaf.keys.get(at)?, &leaf.values[at]))
            }
            Self::Inner(inner) => {
                let at = inner.keys.before(key);
                // A separator may be smaller than all that is left in its child.
                let found =
                    inner.children[..=at]
                        .iter()
                        .rev()
                        .try_for_each(|child| match child.before(key) {
                            Some(found) => ControlFlow::Break(found),
                            None => ControlFlow::Continue(()),
                        });
                found.break_value()
            }
        }
    }
}

/// Where a full node is split when an entry is to be inserted at `at`: in the middle, but at the end when the entry
/// comes last, so that keys inserted in order fill their nodes.
fn split_at(at: usize, full: usize) -> usize {
    if at == full { full } else { full / 2 }
}

impl<K: TreeKey, V: Clone> Leaf<K, V> {
    fn insert(&mut self, key: K, value: V) -> Inserted<K, V> {
        let (at, is_there) = self.keys.locate(&key);
        if is_there {
            return Inserted::Replaced(std::mem::replace(&mut self.values[at], value));
        }
        if !self.values.is_full() {
            self.keys.insert(at, key);
            self.values.insert(at, value);
            return Inserted::Added;
        }
        let middle = split_at(at, FAN);
        let first = if at == FAN {
            Some(key.clone())
        } else {
            self.keys.get(middle).cloned()
        };
        let mut right = Self {
            keys: self.keys.split_off(middle),
            values: self.values.drain(middle..).collect(),
        };
        let (into, at) = if at > middle || middle == FAN {
            (&mut right, at - middle)
        } else {
            (self, at)
        };
        into.keys.insert(at, key);
        into.values.insert(at, value);
        match first {
            Some(first) => Inserted::Split(first, Node::Leaf(Arc::new(right))),
            None => Inserted::Added,
        }
    }
}

impl<K: TreeKey, V: Clone> Inner<K, V> {
    fn insert(&mut self, key: K, value: V) -> Inserted<K, V> {
        let at = self.keys.up_to(&key);
        let (separator, node) = match self.children[at].insert(key, value) {
            Inserted::Split(separator, node) => (separator, node),
            other => return other,
        };
        if !self.children.is_full() {
            self.keys.insert(at, separator);
            self.children.insert(at + 1, node);
            return Inserted::Added;
        }
        // The new child's place is `at + 1`.
        let middle = split_at(at + 1, FAN);
        if middle == FAN {
            let mut right = Self {
                keys: Keys::new(),
                children: ArrayVec::new(),
            };
            right.children.push(node);
            return Inserted::Split(separator, Node::Inner(Arc::new(right)));
        }
        let mut right = Self {
            keys: self.keys.split_off(middle),
            children: self.children.drain(middle..).collect(),
        };
        let between = self.keys.take(middle - 1);
        let (into, at) = if at + 1 > middle {
            (&mut right, at - middle)
        } else {
            (self, at)
        };
        into.keys.insert(at, separator);
        into.children.insert(at + 1, node);
        match between {
            Some(between) => Inserted::Split(between, Node::Inner(Arc::new(right))),
            None => Inserted::Added,
        }
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
            let Some(key) = self.keys.take(left) else { return };
            let right = self.children.remove(left + 1);
            self.children[left].append(key, right);
        }
    }
}

/// Keys in order, each with a value.
pub(crate) struct Tree<K: TreeKey, V> {
    root: Option<Node<K, V>>,
    len: usize,
}

impl<K: TreeKey, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<K: TreeKey, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K: TreeKey, V: Clone> Tree<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Inner(inner) => node = inner.children.get(inner.keys.up_to(key))?,
                Node::Leaf(leaf) => {
                    return leaf.values.get(leaf.keys.find(key)?);
                }
            }
        }
    }

    /// Gives the value replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            let mut leaf = Leaf {
                keys: Keys::new(),
                values: ArrayVec::new(),
            };
            leaf.keys.insert(0, key);
            leaf.values.push(value);
            self.root = Some(Node::Leaf(Arc::new(leaf)));
            self.len = 1;
            return None;
        };
        match root.insert(key, value) {
            Inserted::Replaced(old) => return Some(old),
            Inserted::Added => {}
            Inserted::Split(separator, right) => {
                let mut inner = Inner {
                    keys: Keys::new(),
                    children: ArrayVec::new(),
                };
                inner.keys.insert(0, separator);
                inner.children.push(root.clone());
                inner.children.push(right);
                self.root = Some(Node::Inner(Arc::new(inner)));
            }
        }
        self.len += 1;
        None
    }

    /// Gives the value removed.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
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
        let mut iter = Iter {
            path: SmallVec::new(),
            leaf: None,
        };
        if let Some(root) = &self.root {
            iter.descend(root);
        }
        iter
    }

    /// Entries with keys at or after `key`, in order.
    pub(crate) fn at_least(&self, key: &K) -> Iter<'_, K, V> {
        let mut iter = Iter {
            path: SmallVec::new(),
            leaf: None,
        };
        let Some(mut node) = self.root.as_ref() else {
            return iter;
        };
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.up_to(key);
                    iter.path.push((inner, at + 1));
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => {
                    iter.leaf = Some((leaf, leaf.keys.before(key)));
                    return iter;
                }
            }
        }
    }

    /// The last entry with a key before `key`.
    pub(crate) fn before(&self, key: &K) -> Option<(&K, &V)> {
        self.root.as_ref()?.before(key)
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }
}

/// Entries of a [`Tree`] in order.
pub(crate) struct Iter<'a, K: TreeKey, V> {
    /// Inner nodes above the leaf, each with the number of its next child.
    path: SmallVec<[(&'a Inner<K, V>, usize); 8]>,
    leaf: Option<(&'a Leaf<K, V>, usize)>,
}

impl<'a, K: TreeKey, V> Iter<'a, K, V> {
    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Inner(inner) => {
                    self.path.push((inner, 1));
                    node = &inner.children[0];
                }
                Node::Leaf(leaf) => {
                    self.leaf = Some((leaf, 0));
                    return;
                }
            }
        }
    }
}

impl<'a, K: TreeKey, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    #[inline]
    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        loop {
            let (leaf, at) = self.leaf.as_mut()?;
            if let (Some(key), Some(value)) = (leaf.keys.get(*at), leaf.values.get(*at)) {
                *at += 1;
                return Some((key, value));
            }
            self.leaf = None;
            while let Some((inner, next)) = self.path.last_mut() {
                match inner.children.get(*next) {
                    Some(child) => {
                        *next += 1;
                        self.descend(child);
                        break;
                    }
                    None => {
                        self.path.pop();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn check(node: &Node<u64, u64>, from: Option<u64>, to: Option<u64>) -> usize {
        match node {
            Node::Leaf(leaf) => {
                let keys = &leaf.keys.heads[..leaf.keys.len()];
                assert!(!keys.is_empty() && keys.len() == leaf.values.len());
                assert!(keys.is_sorted());
                assert!(keys.iter().all(|&key| from.is_none_or(|from| key >= from)));
                assert!(keys.iter().all(|&key| to.is_none_or(|to| key < to)));
                0
            }
            Node::Inner(inner) => {
                assert_eq!(inner.keys.len() + 1, inner.children.len());
                let heights: Vec<usize> = (0..inner.children.len())
                    .map(|at| {
                        let from = at.checked_sub(1).map(|at| inner.keys.heads[at]).or(from);
                        let to = inner.keys.get(at).copied().or(to);
                        check(&inner.children[at], from, to)
                    })
                    .collect();
                assert!(
                    heights.windows(2).all(|pair| pair[0] == pair[1]),
                    "all leaves are at one depth"
                );
                heights[0] + 1
            }
        }
    }

    fn compare(tree: &Tree<u64, u64>, model: &BTreeMap<u64, u64>) {
        if let Some(root) = &tree.root {
            check(root, None, None);
        }
        assert_eq!(tree.len(), model.len());
        assert!(tree.iter().eq(model.iter()));
        assert_eq!(tree.first(), model.first_key_value());
        for probe in (0..1500).step_by(37) {
            assert_eq!(tree.get(&probe), model.get(&probe));
            assert!(tree.at_least(&probe).eq(model.range(probe..)));
            assert_eq!(tree.before(&probe), model.range(..probe).next_back());
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u64),
        Remove(u64),
        /// Keys in a row.
        Fill(u64, u64),
        Clear(u64, u64),
        Snapshot,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u64..1500).prop_map(Op::Insert),
            3 => (0u64..1500).prop_map(Op::Remove),
            2 => (0u64..1500, 1u64..300).prop_map(|(from, count)| Op::Fill(from, count)),
            2 => (0u64..1500, 1u64..400).prop_map(|(from, count)| Op::Clear(from, count)),
            1 => Just(Op::Snapshot),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn behaves_like_an_ordered_map(ops in proptest::collection::vec(op(), 1..60)) {
            let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
            let mut snapshots = Vec::new();
            for (value, op) in ops.into_iter().enumerate() {
                let value = value as u64;
                match op {
                    Op::Insert(key) => prop_assert_eq!(tree.insert(key, value), model.insert(key, value)),
                    Op::Remove(key) => prop_assert_eq!(tree.remove(&key), model.remove(&key)),
                    Op::Fill(from, count) => {
                        for key in from..from + count {
                            prop_assert_eq!(tree.insert(key, value), model.insert(key, value));
                        }
                    }
                    Op::Clear(from, count) => {
                        for key in (from..from + count).rev() {
                            prop_assert_eq!(tree.remove(&key), model.remove(&key));
                        }
                    }
                    Op::Snapshot => snapshots.push((tree.clone(), model.clone())),
                }
                compare(&tree, &model);
            }
            for (tree, model) in &snapshots {
                compare(tree, model);
            }
        }
    }

    /// Keys that share much, little or nothing, and some that are the start of others.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![
            Just(""),
            Just("ab"),
            Just("namespace/service-"),
            Just("namespace/service-of-a-very-long-name-that-goes-on-and-on-"),
        ];
        let end = prop_oneof![
            proptest::collection::vec(0u8..3, 0..12),
            (0u32..300).prop_map(|number| number.to_string().into_bytes()),
        ];
        (start, end).prop_map(|(start, end)| [start.as_bytes(), &end].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn finds_texts_that_start_alike(
            ops in proptest::collection::vec((0u8..3, text()), 1..400),
            probes in proptest::collection::vec(text(), 20),
        ) {
            let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
            for (number, (op, text)) in ops.into_iter().enumerate() {
                let key = KeyBuf::new(&text);
                match op {
                    0 => prop_assert_eq!(tree.remove(&key), model.remove(&text)),
                    _ => prop_assert_eq!(tree.insert(key, number), model.insert(text, number)),
                }
            }
            prop_assert!(tree.iter().map(|(key, value)| (key.as_bytes(), *value)).eq(
                model.iter().map(|(key, value)| (key.as_slice(), *value))
            ));
            for probe in probes {
                let key = KeyBuf::new(&probe);
                prop_assert_eq!(tree.get(&key), model.get(&probe));
                let before = tree.before(&key).map(|(_, value)| value);
                prop_assert_eq!(before, model.range(..probe.clone()).next_back().map(|(_, value)| value));
                prop_assert!(tree.at_least(&key).map(|(_, value)| value).eq(
                    model.range(probe..).map(|(_, value)| value)
                ));
            }
            for text in model.into_keys() {
                prop_assert!(tree.remove(&KeyBuf::new(&text)).is_some());
            }
            prop_assert!(tree.is_empty());
        }
    }

    #[test]
    fn keys_in_order_fill_their_nodes() {
        let mut tree = Tree::default();
        for key in 0..10_000u64 {
            tree.insert(key, ());
        }
        fn leaves(node: &Node<u64, ()>) -> usize {
            match node {
                Node::Leaf(_) => 1,
                Node::Inner(inner) => inner.children.iter().map(leaves).sum(),
            }
        }
        assert_eq!(leaves(tree.root.as_ref().unwrap()), 10_000 / FAN);
    }

    #[test]
    fn the_largest_heads_are_keys_like_others() {
        let mut tree = Tree::default();
        let keys: Vec<KeyBuf> = (0..40u8)
            .map(|number| KeyBuf::new(&[&[0xff; 8][..], &[number]].concat()))
            .collect();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(tree.get(key), None);
            tree.insert(key.clone(), number);
            tree.insert(KeyBuf::new(&[number as u8]), number);
        }

        assert!(
            keys.iter()
                .enumerate()
                .all(|(number, key)| tree.get(key) == Some(&number))
        );
        assert_eq!(tree.at_least(&keys[3]).count(), 37);
        assert!(keys.iter().all(|key| tree.remove(key).is_some()));
        assert_eq!(tree.len(), 40);
        let mut numbers = Tree::default();
        numbers.insert(u64::MAX, 1);
        assert_eq!((numbers.get(&u64::MAX), numbers.get(&1)), (Some(&1), None));
    }

    #[test]
    fn long_equal_heads_are_told_apart() {
        let mut tree = Tree::default();
        let key = |number: u32| KeyBuf::of(format!("namespace/service-{number:04}").as_str());
        for number in (0..500).rev() {
            tree.insert(key(number), number);
        }

        assert!(tree.iter().map(|(_, &number)| number).eq(0..500));
        assert_eq!(tree.get(&key(77)), Some(&77));
        assert_eq!(tree.before(&key(77)).map(|(_, &number)| number), Some(76));
    }
}
