// SPDX-License-Identifier: Apache-2.0

//! The persistent ordered map behind every index: clones share structure, changes copy a path.

use imbl::OrdMap;

/// Keys in order, each with a value.
pub(crate) struct Tree<K, V>(OrdMap<K, V>);

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Ord + Clone, V: Clone> Default for Tree<K, V> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    /// Gives the value replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Gives the value removed.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    /// Everything in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V> {
        self.0.iter()
    }

    /// Entries with keys at or after `key`, in order.
    pub(crate) fn at_least(&self, key: &K) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V> {
        self.0.range(key.clone()..)
    }

    /// The last entry with a key before `key`.
    pub(crate) fn before(&self, key: &K) -> Option<(&K, &V)> {
        self.0.range(..key.clone()).next_back()
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.0.get_min().map(|(key, value)| (key, value))
    }
}
