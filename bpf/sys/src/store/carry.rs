// SPDX-License-Identifier: Apache-2.0

//! Entries of a replaced map that its successor takes over.
//!
//! A map that gets another size or other flags keeps its entries if keys and values have the same sizes. Flows that
//! programs remember go on, and what the agent wrote keeps its meaning: the agent finds its ids again, programs that are
//! switched to the new map find their services. Only what programs write is copied again when they are switched: the
//! agent writes the new map, and what it deleted there must not come back.

use std::io;

use crate::map::{KernelMap, MapInfo, MapKind, RawMap, RawSpec};

/// Entries that are read before they are written.
const CHUNK: usize = 4096;

/// What became of the entries of a replaced map.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Carried {
    pub entries: usize,
    /// Keys of those for which the new map has no room.
    pub lost: Vec<Box<[u8]>>,
}

/// Whether the entries of `found` go into the map that replaces it.
pub(super) fn is_carried(spec: &RawSpec, found: &MapInfo) -> bool {
    let has_keys = matches!(
        spec.kind,
        MapKind::Hash
            | MapKind::PerCpuHash
            | MapKind::LruHash
            | MapKind::LruPerCpuHash
            | MapKind::LpmTrie
            | MapKind::HashOfMaps
    );
    // Maps inside a map have owners that put them there again; tables are values.
    let has_values = spec.inner.is_none_or(|inner| inner.is_table());
    let layout = (spec.kind as u32, spec.key_size, spec.value_size);
    has_keys && has_values && (found.kind, found.key_size, found.value_size) == layout
}

/// Whether programs write the entries, and go on to write the old map until they are switched.
pub(super) fn is_written_by_programs(kind: MapKind) -> bool {
    matches!(kind, MapKind::LruHash | MapKind::LruPerCpuHash)
}

/// Copies the entries of `from` into `to`, which is empty. A smaller LRU map keeps the last ones.
pub(super) fn carry(from: &KernelMap, to: &KernelMap) -> io::Result<Carried> {
    copy(from, to, |_| Ok(true))
}

/// Copies the entries of `from` that `to` has not.
pub(super) fn carry_new(from: &KernelMap, to: &KernelMap) -> io::Result<Carried> {
    copy(from, to, |key| to.lookup(key, &mut |_| {}).map(|found| !found))
}

fn copy(
    from: &KernelMap,
    to: &KernelMap,
    is_copied: impl Fn(&[u8]) -> io::Result<bool>,
) -> io::Result<Carried> {
    let (key_len, value_len) = (to.info().key_size as usize, to.value_len());
    let mut carried = Carried::default();
    let mut flush = |keys: &mut Vec<u8>, values: &mut Vec<u8>| {
        let failures = to.update(keys, values);
        carried.entries += keys.len() / key_len - failures.len();
        let lost = failures
            .iter()
            .filter_map(|failure| keys.chunks_exact(key_len).nth(failure.index));
        carried.lost.extend(lost.map(Box::from));
        keys.clear();
        values.clear();
    };
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut failed = Ok(());
    from.walk(&mut |key, value| {
        match is_copied(key) {
            // Tables of another size are made anew.
            Ok(wanted) if wanted && value.len() == value_len => {}
            Ok(_) => return,
            Err(error) => {
                failed = Err(error);
                return;
            }
        }
        keys.extend_from_slice(key);
        values.extend_from_slice(value);
        if keys.len() == CHUNK * key_len {
            flush(&mut keys, &mut values);
        }
    })?;
    flush(&mut keys, &mut values);
    failed.map(|()| carried)
}
