// SPDX-License-Identifier: Apache-2.0

//! Walks over a tree in order.

use std::borrow::Borrow;

use smallvec::SmallVec;

use super::{
    Inner, Leaf, Node, Tree,
    keys::{NodeKeys, Numbers},
};

/// Entries of a [`Tree`] in order.
pub(crate) struct Iter<'a, K: NodeKeys, V> {
    /// Inner nodes above the leaf, each with the number of its next child.
    path: SmallVec<[(&'a Inner<K, V>, usize); 8]>,
    leaf: Option<&'a Leaf<K, V>>,
    /// What stands for the last leaf of all.
    last: Option<&'a Leaf<K, V>>,
    /// What is to come of the leaf: from, to.
    at: usize,
    end: usize,
    /// Only keys that start so.
    within: Option<K::Owned>,
}

/// A key inside its node.
pub(crate) struct KeyAt<'a, K> {
    pub(super) keys: &'a K,
    pub(super) at: usize,
}

impl<K: NodeKeys> KeyAt<'_, K> {
    /// Returns the key on its own.
    #[inline]
    pub(crate) fn owned(&self) -> K::Owned {
        self.keys.owned(self.at)
    }
}

impl KeyAt<'_, Numbers> {
    /// Returns the number.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.keys.get(self.at)
    }
}

impl<'a, K: NodeKeys, V> Iter<'a, K, V> {
    /// Everything.
    pub(super) fn all(tree: &'a Tree<K, V>) -> Self {
        let mut iter = Self::nothing(tree);
        if let Some(root) = &tree.root {
            iter.descend(root);
        }
        iter
    }

    /// From `key` on.
    pub(super) fn from(tree: &'a Tree<K, V>, key: &K::Key) -> Self {
        let mut iter = Self::nothing(tree);
        if let Some(root) = &tree.root {
            iter.descend_to(root, key);
        }
        iter
    }

    /// What starts with `start`.
    pub(super) fn starting(tree: &'a Tree<K, V>, start: K::Owned) -> Self {
        let mut iter = Self::nothing(tree);
        if let Some(root) = &tree.root {
            iter.descend_to(root, start.borrow());
        }
        iter.within = Some(start);
        iter.stop();
        iter
    }

    fn descend_to(&mut self, mut node: &'a Node<K, V>, key: &K::Key) {
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.up_to(key.into());
                    self.path.push((inner, at + 1));
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => {
                    let leaf = self.current(leaf);
                    self.enter(leaf, leaf.keys.locate(key.into()).0);
                    return;
                }
            }
        }
    }

    fn nothing(tree: &'a Tree<K, V>) -> Self {
        Self {
            path: SmallVec::new(),
            leaf: None,
            last: tree.last.as_deref(),
            at: 0,
            end: 0,
            within: None,
        }
    }

    /// Returns the leaf to be read in place of one that the path leads to.
    fn current(&self, leaf: &'a Leaf<K, V>) -> &'a Leaf<K, V> {
        let is_end = |&(inner, next): &(&Inner<K, V>, usize)| next == inner.children.len();
        match self.last {
            Some(last) if self.path.iter().all(is_end) => last,
            _ => leaf,
        }
    }

    fn enter(&mut self, leaf: &'a Leaf<K, V>, from: usize) {
        self.leaf = Some(leaf);
        self.at = from;
        self.end = leaf.values.len();
        self.stop();
    }

    /// Ends the walk in this leaf if something follows that is not wanted.
    fn stop(&mut self) {
        let (Some(leaf), Some(start)) = (self.leaf, &self.within) else {
            return;
        };
        self.end = leaf.keys.through(start.borrow());
        if self.end < leaf.values.len() {
            self.path.clear();
        }
    }

    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Inner(inner) => {
                    self.path.push((inner, 1));
                    node = &inner.children[0];
                }
                Node::Leaf(leaf) => {
                    self.enter(self.current(leaf), 0);
                    return;
                }
            }
        }
    }

    /// Goes to the next leaf; false if there is none.
    #[cold]
    fn next_leaf(&mut self) -> bool {
        while let Some((inner, next)) = self.path.last_mut() {
            match inner.children.get(*next) {
                Some(child) => {
                    *next += 1;
                    self.descend(child);
                    return true;
                }
                None => {
                    self.path.pop();
                }
            }
        }
        self.leaf = None;
        false
    }
}

impl<'a, K: NodeKeys, V> Iterator for Iter<'a, K, V> {
    type Item = (KeyAt<'a, K>, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.at < self.end {
                let (leaf, at) = (self.leaf?, self.at);
                self.at += 1;
                return Some(leaf.entry(at));
            }
            if !self.next_leaf() {
                return None;
            }
        }
    }
}
