// SPDX-License-Identifier: Apache-2.0

//! Entries of a replaced map that its successor takes over.
//!
//! Programs remember flows in maps of kind LRU hash: conntrack, NAT, affinity. Nothing else knows these entries, so
//! a map that only gets another size or other flags must not lose them: connections would break.

use std::io;

use crate::map::{KernelMap, MapInfo, MapKind, RawMap, RawSpec};

/// Entries that are read before they are written.
const CHUNK: usize = 4096;

/// Whether the entries of `found` go into the map that replaces it: it holds what programs remember, in the same layout.
pub(super) fn is_carried(spec: &RawSpec, found: &MapInfo) -> bool {
    spec.kind == MapKind::LruHash
        && (found.kind, found.key_size, found.value_size)
            == (spec.kind as u32, spec.key_size, spec.value_size)
}

/// Copies the entries of `from` that `to` has not. Returns how many; a smaller map keeps the last ones.
pub(super) fn carry(from: &KernelMap, to: &KernelMap) -> io::Result<usize> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut carried = 0;
    let mut flush = |keys: &mut Vec<u8>, values: &mut Vec<u8>, count: usize| {
        carried += count - to.update(keys, values).len();
        keys.clear();
        values.clear();
    };
    let mut count = 0;
    let mut failed = Ok(());
    from.walk(&mut |key, value| {
        match to.lookup(key, &mut |_| {}) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => failed = Err(error),
        }
        keys.extend_from_slice(key);
        values.extend_from_slice(value);
        count += 1;
        if count == CHUNK {
            flush(&mut keys, &mut values, count);
            count = 0;
        }
    })?;
    flush(&mut keys, &mut values, count);
    failed.map(|()| carried)
}
