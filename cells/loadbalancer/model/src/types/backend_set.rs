// SPDX-License-Identifier: Apache-2.0

//! Immutable sets of backends, sorted by address, that share what they have in common.
//!
//! A frontend holds the set of its backends. A change of one backend of a service with a thousand of them copies one
//! chunk of pointers, not the set, and [`BackendSet::diff`] skips the chunks that two sets share: the reconciler
//! sees a change at a cost near the size of the change. One backend takes no allocation at all, which matters with
//! tens of thousands of small services. (General persistent maps allocate nodes of hundreds of bytes for it.)

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

use super::{Backend, L3n4Addr};

/// A backend as the table holds it: shared, with the revision of its last change.
pub type BackendRow = statedb::Obj<Backend>;

/// Most backends in a chunk; a full one is split in two.
const CHUNK: usize = 32;

type Chunk = Arc<[BackendRow]>;

/// A sorted set of backends with distinct addresses. Clones share everything.
#[derive(Clone, Default)]
pub struct BackendSet(Repr);

#[derive(Clone, Default)]
enum Repr {
    #[default]
    Empty,
    One(BackendRow),
    Few(Chunk),
    // Two or more chunks, none empty.
    Many(Arc<Spine>),
}

struct Spine {
    len: usize,
    chunks: Vec<Chunk>,
}

/// A difference between two sets.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Only in the new set.
    Added(&'a BackendRow),
    /// Only in the old set.
    Removed(&'a BackendRow),
    /// In both, but not the same row.
    Updated {
        /// Row in the old set.
        old: &'a BackendRow,
        /// Row in the new set.
        new: &'a BackendRow,
    },
}

impl BackendSet {
    /// A set of rows that are sorted by address and have distinct addresses.
    pub fn from_sorted(mut rows: Vec<BackendRow>) -> Self {
        debug_assert!(rows.is_sorted_by(|a, b| a.params.address < b.params.address));
        Self(match rows.len() {
            0 => Repr::Empty,
            1 => rows.pop().map_or(Repr::Empty, Repr::One),
            len if len <= CHUNK => Repr::Few(rows.into()),
            len => {
                // Three quarters full, so that single insertions do not split at once.
                let chunks = rows.chunks(CHUNK * 3 / 4).map(Chunk::from).collect();
                Repr::Many(Arc::new(Spine { len, chunks }))
            }
        })
    }

    /// Number of backends.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Empty => 0,
            Repr::One(_) => 1,
            Repr::Few(chunk) => chunk.len(),
            Repr::Many(spine) => spine.len,
        }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        matches!(self.0, Repr::Empty)
    }

    /// Backends in order of their addresses.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            set: self,
            chunk: self.chunk(0),
            next_chunk: 1,
            left: self.len(),
        }
    }

    /// The backend with the given address.
    pub fn get(&self, address: &L3n4Addr) -> Option<&BackendRow> {
        let chunk = self.chunk(self.chunk_index(address))?;
        chunk
            .binary_search_by(|row| row.params.address.cmp(address))
            .ok()
            .map(|at| &chunk[at])
    }

    /// Number of backends before an address.
    pub fn rank(&self, address: &L3n4Addr) -> usize {
        let index = self.chunk_index(address);
        let before = (0..index)
            .filter_map(|index| self.chunk(index))
            .map(<[_]>::len)
            .sum::<usize>();
        let within = self.chunk(index).unwrap_or_default();
        before + within.partition_point(|row| row.params.address < *address)
    }

    /// Whether two sets are the same memory (equal sets may still give `false`).
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Empty, Repr::Empty) => true,
            (Repr::One(a), Repr::One(b)) => a.same(b),
            (Repr::Few(a), Repr::Few(b)) => Arc::ptr_eq(a, b),
            (Repr::Many(a), Repr::Many(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Whether two sets hold the same rows.
    pub fn has_same_rows(&self, other: &Self) -> bool {
        if self.is_same(other) {
            return true;
        }
        self.len() == other.len() && self.diff(other).next().is_none()
    }

    /// The set with a backend added, or replaced if there is one with its address.
    #[must_use]
    pub fn with(&self, row: BackendRow) -> Self {
        match &self.0 {
            Repr::Empty => Self(Repr::One(row)),
            Repr::One(_) | Repr::Few(_) => {
                let mut rows = self.chunk(0).unwrap_or_default().to_vec();
                put(&mut rows, row);
                Self::from_sorted(rows)
            }
            Repr::Many(spine) => {
                let at = self.chunk_index(&row.params.address);
                let mut rows = spine.chunks[at].to_vec();
                let added = usize::from(put(&mut rows, row));
                let mut chunks = Vec::with_capacity(spine.chunks.len() + 1);
                chunks.extend_from_slice(&spine.chunks);
                if rows.len() > CHUNK {
                    let (left, right) = rows.split_at(rows.len() / 2);
                    chunks[at] = left.into();
                    chunks.insert(at + 1, right.into());
                } else {
                    chunks[at] = rows.into();
                }
                Self(Repr::Many(Arc::new(Spine {
                    len: spine.len + added,
                    chunks,
                })))
            }
        }
    }

    /// The set without the backend of the given address.
    #[must_use]
    pub fn without(&self, address: &L3n4Addr) -> Self {
        if self.get(address).is_none() {
            return self.clone();
        }
        match &self.0 {
            Repr::Empty | Repr::One(_) => Self::default(),
            Repr::Few(chunk) => Self::from_sorted(remove(chunk, address)),
            Repr::Many(spine) => {
                let at = self.chunk_index(address);
                let rows = remove(&spine.chunks[at], address);
                let mut chunks = spine.chunks.clone();
                if rows.is_empty() {
                    chunks.remove(at);
                } else {
                    chunks[at] = rows.into();
                }
                if spine.len - 1 <= CHUNK {
                    return Self::from_sorted(
                        chunks.iter().flat_map(|chunk| chunk.iter().cloned()).collect(),
                    );
                }
                Self(Repr::Many(Arc::new(Spine {
                    len: spine.len - 1,
                    chunks,
                })))
            }
        }
    }

    /// What changed from this set to `new`, in order of addresses.
    pub fn diff<'a>(&'a self, new: &'a Self) -> Diff<'a> {
        Diff {
            old: Cursor::new(self),
            new: Cursor::new(new),
        }
    }

    fn chunk(&self, index: usize) -> Option<&[BackendRow]> {
        match (&self.0, index) {
            (Repr::One(row), 0) => Some(std::slice::from_ref(row)),
            (Repr::Few(chunk), 0) => Some(chunk),
            (Repr::Many(spine), _) => spine.chunks.get(index).map(|chunk| &**chunk),
            _ => None,
        }
    }

    // Chunk that holds the address, or that it belongs into.
    fn chunk_index(&self, address: &L3n4Addr) -> usize {
        match &self.0 {
            Repr::Many(spine) => spine
                .chunks
                .partition_point(|chunk| chunk[0].params.address <= *address)
                .saturating_sub(1),
            _ => 0,
        }
    }
}

// Puts a row at its place; whether it is new.
fn put(rows: &mut Vec<BackendRow>, row: BackendRow) -> bool {
    match rows.binary_search_by(|r| r.params.address.cmp(&row.params.address)) {
        Ok(at) => {
            rows[at] = row;
            false
        }
        Err(at) => {
            rows.insert(at, row);
            true
        }
    }
}

fn remove(chunk: &[BackendRow], address: &L3n4Addr) -> Vec<BackendRow> {
    chunk
        .iter()
        .filter(|row| row.params.address != *address)
        .cloned()
        .collect()
}

impl FromIterator<BackendRow> for BackendSet {
    /// Collects rows in any order; of several rows with one address the first stays.
    fn from_iter<I: IntoIterator<Item = BackendRow>>(iter: I) -> Self {
        let mut rows: Vec<BackendRow> = iter.into_iter().collect();
        rows.sort_by_key(|row| row.params.address);
        rows.dedup_by(|later, first| later.params.address == first.params.address);
        Self::from_sorted(rows)
    }
}

impl<'a> IntoIterator for &'a BackendSet {
    type Item = &'a BackendRow;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for BackendSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|row| row.params.address))
            .finish()
    }
}

/// Iterator over a [`BackendSet`].
pub struct Iter<'a> {
    set: &'a BackendSet,
    chunk: Option<&'a [BackendRow]>,
    next_chunk: usize,
    left: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a BackendRow;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.chunk?.split_first() {
                Some((first, rest)) => {
                    self.chunk = Some(rest);
                    self.left -= 1;
                    return Some(first);
                }
                None => {
                    self.chunk = self.set.chunk(self.next_chunk);
                    self.next_chunk += 1;
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}
impl FusedIterator for Iter<'_> {}

struct Cursor<'a> {
    set: &'a BackendSet,
    chunk: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    const fn new(set: &'a BackendSet) -> Self {
        Self { set, chunk: 0, at: 0 }
    }

    // Moves past the end of a chunk.
    fn current_chunk(&mut self) -> Option<&'a [BackendRow]> {
        let chunk = self.set.chunk(self.chunk)?;
        if self.at < chunk.len() {
            return Some(chunk);
        }
        self.chunk += 1;
        self.at = 0;
        self.set.chunk(self.chunk)
    }

    fn skip_chunk(&mut self) {
        self.chunk += 1;
        self.at = 0;
    }
}

/// Iterator over the differences of two sets, made by [`BackendSet::diff`].
pub struct Diff<'a> {
    old: Cursor<'a>,
    new: Cursor<'a>,
}

impl<'a> Iterator for Diff<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        loop {
            let (old_chunk, new_chunk) = (self.old.current_chunk(), self.new.current_chunk());
            let (old, new) = match (old_chunk, new_chunk) {
                (None, None) => return None,
                (Some(chunk), None) => {
                    self.old.at += 1;
                    return Some(Change::Removed(&chunk[self.old.at - 1]));
                }
                (None, Some(chunk)) => {
                    self.new.at += 1;
                    return Some(Change::Added(&chunk[self.new.at - 1]));
                }
                (Some(a), Some(b)) => {
                    if self.old.at == 0 && self.new.at == 0 && std::ptr::eq(a, b) {
                        self.old.skip_chunk();
                        self.new.skip_chunk();
                        continue;
                    }
                    (&a[self.old.at], &b[self.new.at])
                }
            };
            // Without a look into the row, which is elsewhere in memory.
            if old.same(new) {
                self.old.at += 1;
                self.new.at += 1;
                continue;
            }
            match old.params.address.cmp(&new.params.address) {
                std::cmp::Ordering::Less => {
                    self.old.at += 1;
                    return Some(Change::Removed(old));
                }
                std::cmp::Ordering::Greater => {
                    self.new.at += 1;
                    return Some(Change::Added(new));
                }
                std::cmp::Ordering::Equal => {
                    self.old.at += 1;
                    self.new.at += 1;
                    return Some(Change::Updated { old, new });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::types::{BackendParams, L4Proto, ServiceName, Source};

    fn address(n: u16) -> L3n4Addr {
        let [a, b] = n.to_be_bytes();
        L3n4Addr::new(IpAddr::V4(Ipv4Addr::new(10, 0, a, b)), 80, L4Proto::Tcp)
    }

    fn row(n: u16) -> BackendRow {
        let service = ServiceName::new("shop", "web");
        crate::testing::row(Backend::new(
            service,
            BackendParams::new(address(n), Source::Kubernetes),
        ))
    }

    #[test]
    fn one_change_of_a_large_set_shares_the_rest() {
        let old: BackendSet = (0..1000).map(row).collect();
        let new = old.with(row(500)).without(&address(7));

        let changes: Vec<Change<'_>> = old.diff(&new).collect();

        assert_eq!(new.len(), 999);
        assert!(matches!(
            changes[..],
            [Change::Removed(_), Change::Updated { .. }]
        ));
        let (Repr::Many(a), Repr::Many(b)) = (&old.0, &new.0) else {
            panic!("not chunked")
        };
        let shared = a
            .chunks
            .iter()
            .filter(|chunk| b.chunks.iter().any(|other| Arc::ptr_eq(chunk, other)))
            .count();
        assert_eq!(shared, a.chunks.len() - 2);
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(ops in prop::collection::vec((0u16..200, any::<bool>()), 0..400), cut in 0usize..400) {
            let mut set = BackendSet::default();
            let mut model: BTreeMap<L3n4Addr, BackendRow> = BTreeMap::new();
            let (mut old_set, mut old_model) = (set.clone(), model.clone());
            for (i, (n, insert)) in ops.into_iter().enumerate() {
                if i == cut {
                    (old_set, old_model) = (set.clone(), model.clone());
                }
                if insert {
                    let row = row(n);
                    set = set.with(row.clone());
                    model.insert(address(n), row);
                } else {
                    set = set.without(&address(n));
                    model.remove(&address(n));
                }
                prop_assert_eq!(set.len(), model.len());
            }
            prop_assert!(set.iter().zip(model.values()).all(|(a, b)| a.same(b)));
            prop_assert!((0..200).all(|n| set.get(&address(n)).is_some() == model.contains_key(&address(n))));
            prop_assert!((0..200).all(|n| set.rank(&address(n)) == model.range(..address(n)).count()));
            for change in old_set.diff(&set) {
                match change {
                    Change::Added(row) => prop_assert!(old_model.insert(row.params.address, row.clone()).is_none()),
                    Change::Removed(row) => prop_assert!(old_model.remove(&row.params.address).is_some()),
                    Change::Updated { old, new } => {
                        let before = old_model.insert(new.params.address, new.clone());
                        prop_assert!(before.is_some_and(|row| row.same(old)));
                    }
                }
            }
            prop_assert!(old_model.len() == model.len() && old_model.values().zip(model.values()).all(|(a, b)| a.same(b)));
        }
    }
}
