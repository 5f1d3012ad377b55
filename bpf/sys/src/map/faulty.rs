// SPDX-License-Identifier: Apache-2.0

//! A map that fails now and then, to show that writes are repeated.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{RawDeletion, RawFailure, RawMap};
use crate::syscall::MapInfo;

/// Lets operations on the map below fail at random: single entries of a batch, everything behind an entry (as if the
/// kernel had stopped there), lookups and walks. The same seed gives the same faults.
#[derive(Debug)]
pub struct FaultyMap {
    below: Arc<dyn RawMap>,
    probability: f64,
    state: AtomicU64,
}

/// The failure was injected by a test.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("injected fault")]
pub struct InjectedFault;

impl FaultyMap {
    /// Wraps a map; operations on an entry fail with this probability, 0 to 1. Prints the seed: a failed test is run
    /// again with it.
    pub fn new(below: Arc<dyn RawMap>, probability: f64, seed: u64) -> Self {
        eprintln!("faults in map {}: seed {seed:#x}", below.name());
        Self {
            below,
            probability: probability.clamp(0.0, 1.0),
            state: AtomicU64::new(seed),
        }
    }

    /// A step of SplitMix64, as a number from 0 to 1.
    fn random(&self) -> f64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn fails(&self) -> bool {
        self.random() < self.probability
    }

    /// Which entries of a batch reach the map below.
    fn passing(&self, total: usize) -> Vec<usize> {
        let end = if total > 1 && self.fails() {
            (self.random() * total as f64) as usize
        } else {
            total
        };
        (0..end).filter(|_| !self.fails()).collect()
    }

    fn key_len(&self) -> usize {
        self.below.info().key_size as usize
    }
}

/// Failures of the whole batch, from those of the entries that passed and from those that did not.
fn all_failures(total: usize, passed: &[usize], below: Vec<RawFailure>) -> Vec<RawFailure> {
    let mut failures: Vec<RawFailure> = below
        .into_iter()
        .map(|failure| RawFailure {
            index: passed[failure.index],
            ..failure
        })
        .collect();
    let stopped = (0..total).filter(|index| passed.binary_search(index).is_err());
    failures.extend(stopped.map(|index| RawFailure {
        index,
        error: io::Error::other(InjectedFault),
    }));
    failures.sort_by_key(|failure| failure.index);
    failures
}

fn pick(bytes: &[u8], len: usize, indexes: &[usize]) -> Vec<u8> {
    indexes
        .iter()
        .flat_map(|index| &bytes[index * len..][..len])
        .copied()
        .collect()
}

impl RawMap for FaultyMap {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn info(&self) -> MapInfo {
        self.below.info()
    }

    fn value_len(&self) -> usize {
        self.below.value_len()
    }

    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        if self.fails() {
            return Err(io::Error::other(InjectedFault));
        }
        self.below.lookup(key, read)
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let total = keys.len() / self.key_len();
        let passing = self.passing(total);
        let failures = self.below.update(
            &pick(keys, self.key_len(), &passing),
            &pick(values, self.value_len(), &passing),
        );
        all_failures(total, &passing, failures)
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        let total = keys.len() / self.key_len();
        let passing = self.passing(total);
        let done = self.below.delete(&pick(keys, self.key_len(), &passing));
        RawDeletion {
            deleted: done.deleted,
            failures: all_failures(total, &passing, done.failures),
        }
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        if self.fails() {
            return Err(io::Error::other(InjectedFault));
        }
        self.below.walk(visit)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{MapFlags, MapKind, MemoryMap, RawSpec};

    fn failed(seed: u64, probability: f64) -> (Vec<usize>, Vec<u8>) {
        let spec = RawSpec {
            name: "faulty",
            kind: MapKind::Hash,
            key_size: 1,
            value_size: 1,
            max_entries: 100,
            flags: MapFlags::NONE,
            inner: None,
        };
        let below = Arc::new(MemoryMap::create(&spec).unwrap());
        let map = FaultyMap::new(below.clone(), probability, seed);
        let keys: Vec<u8> = (0..100).collect();
        let failures = map.update(&keys, &keys);
        let mut written = Vec::new();
        below.walk(&mut |key, _| written.push(key[0])).unwrap();
        written.sort_unstable();
        (failures.iter().map(|failure| failure.index).collect(), written)
    }

    #[test]
    fn what_failed_is_not_in_the_map_and_all_else_is() {
        for seed in 0..50 {
            let (failures, written) = failed(seed, 0.2);
            let missing = (0..100).filter(|key| !written.contains(&(*key as u8)));
            assert!(missing.eq(failures.iter().copied()), "seed {seed}");
        }
        assert_eq!(failed(7, 0.0).0, [0; 0]);
        assert_eq!(failed(7, 1.0).1, [0; 0]);
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        assert_eq!(failed(7, 0.3), failed(7, 0.3));
        assert_ne!(failed(7, 0.3), failed(8, 0.3));
    }

    #[test]
    fn batches_end_in_the_middle_too() {
        let is_cut = |seed| {
            let (failures, _) = failed(seed, 0.05);
            failures.ends_with(&[95, 96, 97, 98, 99])
        };
        assert!((0..200).any(is_cut));
    }
}
