// SPDX-License-Identifier: Apache-2.0

//! Sizes of maps by the settings that they follow.

use std::collections::BTreeMap;

/// The setting that a map's size follows, and its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeKey {
    pub name: &'static str,
    pub default: u32,
}

impl SizeKey {
    pub const fn new(name: &'static str, default: u32) -> Self {
        Self { name, default }
    }
}

/// Sizes of all maps of a program, by key; those that are not set have their default. Part of a map's identity: a pinned
/// map of another size is replaced (see [`MapStore`](skep_bpf_sys::MapStore)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapSizes {
    by_key: BTreeMap<&'static str, u32>,
    /// `preallocate-bpf-maps`: memory of plain hash maps is taken when they are created.
    pub preallocate: bool,
    /// `bpf-distributed-lru`: one LRU list a CPU; sizes of LRU maps should be a multiple of the CPUs.
    pub distributed_lru: bool,
}

impl MapSizes {
    /// The same sizes but for this one.
    #[must_use]
    pub fn with(mut self, key: SizeKey, entries: u32) -> Self {
        self.by_key.insert(key.name, entries);
        self
    }

    /// The same sizes, with memory of plain hash maps taken at once and one LRU list a CPU, or not.
    #[must_use]
    pub fn with_memory(self, preallocate: bool, distributed_lru: bool) -> Self {
        Self {
            preallocate,
            distributed_lru,
            ..self
        }
    }

    /// Entries of the maps that follow `key`.
    pub fn get(&self, key: SizeKey) -> u32 {
        self.by_key.get(key.name).copied().unwrap_or(key.default)
    }

    pub fn merge(&mut self, other: &Self) {
        self.by_key
            .extend(other.by_key.iter().map(|(key, entries)| (*key, *entries)));
        self.preallocate |= other.preallocate;
        self.distributed_lru |= other.distributed_lru;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_adds_its_sizes() {
        let (one, other) = (SizeKey::new("one", 1), SizeKey::new("other", 2));
        let mut sizes = MapSizes::default().with(one, 10);
        sizes.merge(&MapSizes::default().with(other, 20).with_memory(true, false));

        assert_eq!((sizes.get(one), sizes.get(other)), (10, 20));
        assert!(sizes.preallocate && !sizes.distributed_lru);
        assert_eq!(MapSizes::default().get(other), 2);
    }
}
