// SPDX-License-Identifier: Apache-2.0

//! Batches for the maps of both families, and what of them failed.

use std::sync::Arc;

use skep_bpf_sys::Map;
use skep_bpf_sys::map::{BatchFailure, Plain};

use super::raw::Family;
use crate::maps::{Failures, MapError, MapKind};

/// Entries of one family, with their places in the batch.
pub(super) struct Part<K, V> {
    places: Vec<u32>,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K, V> Default for Part<K, V> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        }
    }
}

impl<K, V> FromIterator<(K, V)> for Part<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let (keys, values): (Vec<K>, Vec<V>) = entries.into_iter().unzip();
        Self {
            places: (0..keys.len() as u32).collect(),
            keys,
            values,
        }
    }
}

impl<K, V> Part<K, V> {
    /// Adds an entry; the first one makes room for `left` of them.
    fn push(&mut self, place: usize, (key, value): (K, V), left: usize) {
        if self.keys.is_empty() {
            self.places.reserve_exact(left);
            self.keys.reserve_exact(left);
            self.values.reserve_exact(left);
        }
        self.places.push(place as u32);
        self.keys.push(key);
        self.values.push(value);
    }

    /// Adds what the map did not take to the failures of the whole batch.
    fn note<M: Plain, W: Plain>(
        &self,
        map: &Map<M, W>,
        (kind, ipv6, operation): (MapKind, bool, &'static str),
        failed: Vec<BatchFailure>,
        failures: &mut Failures,
    ) {
        failures.extend(failed.into_iter().map(|BatchFailure { index, error }| {
            let error = failure(kind, ipv6, map.max_entries(), operation, error);
            (self.places[index] as usize, error)
        }));
    }
}

impl<K: Plain, V: Plain> Part<K, V> {
    pub(super) fn update(&self, map: &Map<K, V>, kind: MapKind, ipv6: bool, failures: &mut Failures) {
        let failed = map.update_batch(&self.keys, &self.values);
        self.note(map, (kind, ipv6, "update"), failed, failures);
    }
}

impl<K: Plain> Part<K, ()> {
    pub(super) fn delete<V: Plain>(
        &self,
        map: &Map<K, V>,
        kind: MapKind,
        ipv6: bool,
        failures: &mut Failures,
    ) {
        let failed = map.delete_batch(&self.keys).failures;
        self.note(map, (kind, ipv6, "delete"), failed, failures);
    }
}

/// A batch, parted by family.
pub(super) struct Parts<K4, V4, K6, V6> {
    v4: Part<K4, V4>,
    v6: Part<K6, V6>,
}

/// Parts items by family.
pub(super) fn split<T, K4, V4, K6, V6>(
    items: &[T],
    encode: impl Fn(&T) -> Family<(K4, V4), (K6, V6)>,
) -> Parts<K4, V4, K6, V6> {
    let (mut v4, mut v6) = (Part::default(), Part::default());
    for (place, item) in items.iter().enumerate() {
        let left = items.len() - place;
        match encode(item) {
            Family::V4(entry) => v4.push(place, entry, left),
            Family::V6(entry) => v6.push(place, entry, left),
        }
    }
    Parts { v4, v6 }
}

impl<K4: Plain, V4: Plain, K6: Plain, V6: Plain> Parts<K4, V4, K6, V6> {
    pub(super) fn update(
        &self,
        map4: &Map<K4, V4>,
        map6: &Map<K6, V6>,
        kind: MapKind,
        failures: &mut Failures,
    ) {
        self.v4.update(map4, kind, false, failures);
        self.v6.update(map6, kind, true, failures);
    }
}

impl<K4: Plain, K6: Plain> Parts<K4, (), K6, ()> {
    pub(super) fn delete<V4: Plain, V6: Plain>(
        &self,
        map4: &Map<K4, V4>,
        map6: &Map<K6, V6>,
        kind: MapKind,
        failures: &mut Failures,
    ) {
        self.v4.delete(map4, kind, false, failures);
        self.v6.delete(map6, kind, true, failures);
    }
}

/// Why one operation on a map failed.
pub(super) fn failure(
    kind: MapKind,
    ipv6: bool,
    max: u32,
    operation: &'static str,
    error: skep_bpf_sys::MapError,
) -> MapError {
    let map = kind.name(ipv6);
    if error.is_full() {
        MapError::Full { map, max }
    } else {
        MapError::System {
            map,
            operation,
            cause: Arc::new(error),
        }
    }
}
