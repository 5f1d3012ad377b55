// SPDX-License-Identifier: Apache-2.0

//! Stages: batches for one map, or for the pair of maps of both IP families.

use std::{fmt::Debug, sync::Arc};

use skep_bpf_sys::{
    Map, NestedMap,
    map::{BatchFailure, Plain},
};

use super::{Owner, WriteError};
use crate::{IpEither, IpPair};

/// Entries whose memory a stage keeps when it is cleared.
pub(super) const MOST_KEPT: usize = 8192;
/// Entries that it keeps memory for when it had more.
const KEPT: usize = 1024;

/// Frees what one large round took.
pub(super) fn bound<T>(list: &mut Vec<T>) {
    if list.is_empty() && list.capacity() > MOST_KEPT {
        list.shrink_to(KEPT);
    }
}

/// A map that stages can be on: writes batches, and says which of their entries failed.
pub trait BatchMap {
    /// Keys.
    type Key: Copy + Debug;
    /// Values.
    type Value: Debug;

    /// Most entries that it holds.
    fn max_entries(&self) -> u32;

    /// Inserts or replaces entries, in order. Returns those that failed, by index; all others are written.
    fn write(&self, keys: &[Self::Key], values: &[Self::Value]) -> Vec<BatchFailure>;

    /// Deletes entries. Returns those that could not be deleted, by index; an entry that is absent is no failure.
    fn remove(&self, keys: &[Self::Key]) -> Vec<BatchFailure>;
}

impl<K: Plain, V: Plain> BatchMap for Map<K, V> {
    type Key = K;
    type Value = V;

    fn max_entries(&self) -> u32 {
        Self::max_entries(self)
    }

    fn write(&self, keys: &[K], values: &[V]) -> Vec<BatchFailure> {
        self.update_batch(keys, values)
    }

    fn remove(&self, keys: &[K]) -> Vec<BatchFailure> {
        self.delete_batch(keys).failures
    }
}

/// Values are tables, which several keys may share.
impl<K: Plain, E: Plain> BatchMap for NestedMap<K, E> {
    type Key = K;
    type Value = Arc<[E]>;

    fn max_entries(&self) -> u32 {
        Self::max_entries(self)
    }

    fn write(&self, keys: &[K], tables: &[Arc<[E]>]) -> Vec<BatchFailure> {
        self.update_batch(keys, tables)
    }

    fn remove(&self, keys: &[K]) -> Vec<BatchFailure> {
        self.delete_batch(keys).failures
    }
}

/// What stages are on: a [`BatchMap`], or the pair of those of both IP families.
pub trait StagedMap: Sized {
    /// Entries to be inserted or replaced.
    type Updates: Stage<Map = Self>;
    /// Keys to be deleted.
    type Deletions: Stage<Map = Self>;
}

impl<M: BatchMap> StagedMap for M {
    type Updates = MapStage<M, Update>;
    type Deletions = MapStage<M, Delete>;
}

impl<A: StagedMap, B: StagedMap> StagedMap for IpPair<A, B> {
    type Updates = IpPair<A::Updates, B::Updates>;
    type Deletions = IpPair<A::Deletions, B::Deletions>;
}

/// The stage that writes entries to a map `M`, `(key, value)` each; for a pair, one stage for both, whose entries are
/// [`IpEither`].
pub type Updates<M> = <M as StagedMap>::Updates;

/// The stage that deletes keys from a map `M`; see [`Updates`].
pub type Deletions<M> = <M as StagedMap>::Deletions;

/// A batch of updates or deletions on one map or a pair, each with the owner that it is for.
pub trait Stage: Default {
    /// What it is on.
    type Map;
    /// Keys of the map.
    type Key: Copy;
    /// What is staged: a key, or a key with its value.
    type Entry;

    /// Number of entries.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all entries. Memory for some thousands of them is kept for the next round.
    fn clear(&mut self);

    /// Adds an entry. Entries are written in the order in which they are added; a pair writes those of IPv4 first.
    fn push(&mut self, owner: Owner, entry: Self::Entry);

    /// Keys with their owners: before a stage is run all that were added, after it those that were tried.
    fn keys(&self) -> impl Iterator<Item = (Owner, Self::Key)>;

    /// Keys that failed when the stage was written, with their owners.
    fn failed(&self) -> impl Iterator<Item = (Owner, Self::Key)>;

    /// Drops the entries of owners that are not to be kept.
    fn retain_owners(&mut self, keep: impl Fn(Owner) -> bool);

    /// Drops the entries that were written: those that failed are left, to be tried again.
    fn retain_failed(&mut self);

    /// Writes all entries, and calls `failed` for each that could not be written. A transaction does this
    /// ([`Transaction::run`](super::Transaction::run)).
    fn write(&mut self, map: &Self::Map, failed: impl FnMut(Owner, WriteError));
}

/// What a stage of one map does with its entries: [`Update`] or [`Delete`].
pub trait Write<M: BatchMap> {
    /// What is written under a key.
    type Value: Debug;
    /// What is staged.
    type Entry;

    /// Key and value of an entry.
    fn split(entry: Self::Entry) -> (M::Key, Self::Value);

    /// Writes a batch; returns what failed.
    fn run(map: &M, keys: &[M::Key], values: &[Self::Value]) -> Vec<BatchFailure>;
}

/// Inserts or replaces entries.
#[derive(Debug)]
pub struct Update;

impl<M: BatchMap> Write<M> for Update {
    type Value = M::Value;
    type Entry = (M::Key, M::Value);

    fn split(entry: Self::Entry) -> (M::Key, M::Value) {
        entry
    }

    fn run(map: &M, keys: &[M::Key], values: &[M::Value]) -> Vec<BatchFailure> {
        map.write(keys, values)
    }
}

/// Deletes keys.
#[derive(Debug)]
pub struct Delete;

impl<M: BatchMap> Write<M> for Delete {
    type Value = ();
    type Entry = M::Key;

    fn split(key: M::Key) -> (M::Key, ()) {
        (key, ())
    }

    fn run(map: &M, keys: &[M::Key], _: &[()]) -> Vec<BatchFailure> {
        map.remove(keys)
    }
}

/// A stage on one map, with its entries in the form in which the map takes them. [`Updates`] and [`Deletions`] name it by
/// the map.
#[derive(Debug)]
pub struct MapStage<M: BatchMap, W: Write<M>> {
    owners: Vec<Owner>,
    keys: Vec<M::Key>,
    values: Vec<W::Value>,
    // Indexes of those that failed, ascending.
    failed: Vec<usize>,
}

impl<M: BatchMap, W: Write<M>> MapStage<M, W> {
    fn truncate(&mut self, len: usize) {
        self.owners.truncate(len);
        self.keys.truncate(len);
        self.values.truncate(len);
        self.failed.clear();
    }

    // Entries that it has memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.keys.capacity()
    }

    // Keeps the entries that a predicate accepts, by index and owner, in their order.
    fn retain(&mut self, mut keep: impl FnMut(usize, Owner) -> bool) {
        let mut kept = 0;
        for at in 0..self.owners.len() {
            if keep(at, self.owners[at]) {
                self.owners.swap(kept, at);
                self.keys.swap(kept, at);
                self.values.swap(kept, at);
                kept += 1;
            }
        }
        self.truncate(kept);
    }
}

impl<M: BatchMap, W: Write<M>> Default for MapStage<M, W> {
    fn default() -> Self {
        Self {
            owners: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            failed: Vec::new(),
        }
    }
}

impl<M: BatchMap, W: Write<M>> Stage for MapStage<M, W> {
    type Map = M;
    type Key = M::Key;
    type Entry = W::Entry;

    fn len(&self) -> usize {
        self.owners.len()
    }

    fn clear(&mut self) {
        self.truncate(0);
        bound(&mut self.owners);
        bound(&mut self.keys);
        bound(&mut self.values);
        bound(&mut self.failed);
    }

    fn push(&mut self, owner: Owner, entry: W::Entry) {
        let (key, value) = W::split(entry);
        self.owners.push(owner);
        self.keys.push(key);
        self.values.push(value);
    }

    fn keys(&self) -> impl Iterator<Item = (Owner, M::Key)> {
        self.owners.iter().copied().zip(self.keys.iter().copied())
    }

    fn failed(&self) -> impl Iterator<Item = (Owner, M::Key)> {
        self.failed.iter().map(|at| (self.owners[*at], self.keys[*at]))
    }

    fn retain_owners(&mut self, keep: impl Fn(Owner) -> bool) {
        self.retain(|_, owner| keep(owner));
    }

    fn retain_failed(&mut self) {
        let failed = std::mem::take(&mut self.failed);
        let mut failed = failed.into_iter().peekable();
        self.retain(|at, _| failed.next_if_eq(&at).is_some());
    }

    fn write(&mut self, map: &M, mut failed: impl FnMut(Owner, WriteError)) {
        self.failed.clear();
        if self.owners.is_empty() {
            return;
        }
        for BatchFailure { index, error } in W::run(map, &self.keys, &self.values) {
            self.failed.push(index);
            failed(self.owners[index], WriteError::new(error, map.max_entries()));
        }
    }
}

impl<A: Stage, B: Stage> Stage for IpPair<A, B> {
    type Map = IpPair<A::Map, B::Map>;
    type Key = IpEither<A::Key, B::Key>;
    type Entry = IpEither<A::Entry, B::Entry>;

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }

    fn push(&mut self, owner: Owner, entry: Self::Entry) {
        match entry {
            IpEither::V4(entry) => self.v4.push(owner, entry),
            IpEither::V6(entry) => self.v6.push(owner, entry),
        }
    }

    fn keys(&self) -> impl Iterator<Item = (Owner, Self::Key)> {
        let v4 = self.v4.keys().map(|(owner, key)| (owner, IpEither::V4(key)));
        v4.chain(self.v6.keys().map(|(owner, key)| (owner, IpEither::V6(key))))
    }

    fn failed(&self) -> impl Iterator<Item = (Owner, Self::Key)> {
        let v4 = self.v4.failed().map(|(owner, key)| (owner, IpEither::V4(key)));
        v4.chain(self.v6.failed().map(|(owner, key)| (owner, IpEither::V6(key))))
    }

    fn retain_owners(&mut self, keep: impl Fn(Owner) -> bool) {
        self.v4.retain_owners(&keep);
        self.v6.retain_owners(&keep);
    }

    fn retain_failed(&mut self) {
        self.v4.retain_failed();
        self.v6.retain_failed();
    }

    fn write(&mut self, map: &Self::Map, mut failed: impl FnMut(Owner, WriteError)) {
        self.v4.write(&map.v4, &mut failed);
        self.v6.write(&map.v6, failed);
    }
}
