// SPDX-License-Identifier: Apache-2.0

//! A map that fails now and then, to show that writes are repeated.

use std::{
    error::Error as _,
    fmt, io,
    os::fd::BorrowedFd,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{MapError, RawDeletion, RawFailure, RawMap};
use crate::syscall::MapInfo;

/// The failure was injected by a test.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("injected fault")]
pub struct InjectedFault;

impl MapError {
    /// The failure was injected by a test.
    pub fn is_injected(&self) -> bool {
        let cause = self.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        cause
            .and_then(io::Error::get_ref)
            .is_some_and(|inner| inner.is::<InjectedFault>())
    }
}

/// Random faults of one map, or of several that share them. The same seed gives the same faults to the same operations.
#[derive(Debug)]
pub struct Faults {
    of: String,
    probability: f64,
    seed: u64,
    state: AtomicU64,
    is_on: AtomicBool,
    announced: Once,
}

impl Faults {
    /// Faults with this probability for each operation, 0 to 1. Prints `of` and the seed with the first fault: a failed
    /// test is run again with it.
    pub fn new(of: &str, probability: f64, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            of: of.to_owned(),
            probability: probability.clamp(0.0, 1.0),
            seed,
            state: AtomicU64::new(seed),
            is_on: AtomicBool::new(true),
            announced: Once::new(),
        })
    }

    /// Lets all operations pass from now on.
    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
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
        let fails = self.is_on.load(Ordering::Relaxed) && self.random() < self.probability;
        if fails {
            let announce = || eprintln!("faults in {}: seed {}", self.of, self.seed);
            self.announced.call_once(announce);
        }
        fails
    }

    /// What becomes of the entries of a batch: it may be cut, as if the kernel had stopped there.
    fn fates(&self, total: usize) -> Vec<Fate> {
        let end = if total > 1 && self.fails() {
            (self.random() * total as f64) as usize
        } else {
            total
        };
        let fate = |index| match index >= end || self.fails() {
            true => Fate::Fails,
            false => Fate::Passes,
        };
        (0..total).map(fate).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An entry is inserted or replaced.
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Passes,
    /// It fails with [`InjectedFault`].
    Fails,
    /// It is reported as done and does not reach the map, as if the process had ended before it.
    IsLost,
}

type Decide = dyn Fn(Operation, &[u8]) -> Fate + Send + Sync;

enum Cause {
    Random { faults: Arc<Faults>, of_reads: bool },
    Decided(Box<Decide>),
}

/// Lets operations on the map below fail: at random, by a seed, or as a test decides for each entry. Random faults are
/// single entries of a batch, everything behind an entry (as if the kernel had stopped there), lookups and walks.
pub struct FaultyMap {
    below: Arc<dyn RawMap>,
    cause: Cause,
}

impl FaultyMap {
    /// Faults of this map alone; see [`Faults::new`].
    pub fn new(below: Arc<dyn RawMap>, probability: f64, seed: u64) -> Self {
        let faults = Faults::new(&format!("map {}", below.name()), probability, seed);
        Self::with(below, faults)
    }

    /// Faults that are shared with other maps.
    pub fn with(below: Arc<dyn RawMap>, faults: Arc<Faults>) -> Self {
        let of_reads = true;
        Self {
            below,
            cause: Cause::Random { faults, of_reads },
        }
    }

    /// The same without faults of lookups and walks.
    #[must_use]
    pub fn readable(mut self) -> Self {
        if let Cause::Random { of_reads, .. } = &mut self.cause {
            *of_reads = false;
        }
        self
    }

    /// Asks what becomes of each write, by its key. Reads do not fail.
    pub fn decided_by(
        below: Arc<dyn RawMap>,
        decide: impl Fn(Operation, &[u8]) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self {
            below,
            cause: Cause::Decided(Box::new(decide)),
        }
    }

    fn fates(&self, operation: Operation, keys: &[u8]) -> Vec<Fate> {
        let keys = keys.chunks_exact(self.key_len());
        match &self.cause {
            Cause::Random { faults, .. } => faults.fates(keys.len()),
            Cause::Decided(decide) => keys.map(|key| decide(operation, key)).collect(),
        }
    }

    fn read_fails(&self) -> bool {
        match &self.cause {
            Cause::Random { faults, of_reads } => *of_reads && faults.fails(),
            Cause::Decided(_) => false,
        }
    }

    fn key_len(&self) -> usize {
        self.below.info().key_size as usize
    }
}

impl fmt::Debug for FaultyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultyMap").field(&self.below).finish()
    }
}

fn passing(fates: &[Fate]) -> Vec<usize> {
    let passes = |index: &usize| fates[*index] == Fate::Passes;
    (0..fates.len()).filter(passes).collect()
}

/// Failures of the whole batch, from those of the entries that passed and from those that did not.
fn all_failures(fates: &[Fate], passed: &[usize], below: Vec<RawFailure>) -> Vec<RawFailure> {
    let mut failures: Vec<RawFailure> = below
        .into_iter()
        .map(|failure| RawFailure {
            index: passed[failure.index],
            ..failure
        })
        .collect();
    let failed = (0..fates.len()).filter(|index| fates[*index] == Fate::Fails);
    failures.extend(failed.map(|index| RawFailure {
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
        if self.read_fails() {
            return Err(io::Error::other(InjectedFault));
        }
        self.below.lookup(key, read)
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let fates = self.fates(Operation::Update, keys);
        let passed = passing(&fates);
        let failures = self.below.update(
            &pick(keys, self.key_len(), &passed),
            &pick(values, self.value_len(), &passed),
        );
        all_failures(&fates, &passed, failures)
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        let fates = self.fates(Operation::Delete, keys);
        let passed = passing(&fates);
        let done = self.below.delete(&pick(keys, self.key_len(), &passed));
        let lost = fates.iter().filter(|fate| **fate == Fate::IsLost);
        RawDeletion {
            deleted: done.deleted + lost.count(),
            failures: all_failures(&fates, &passed, done.failures),
        }
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        if self.read_fails() {
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
    fn a_test_decides_about_each_entry() {
        let spec = RawSpec {
            name: "decided",
            kind: MapKind::Hash,
            key_size: 1,
            value_size: 1,
            max_entries: 100,
            flags: MapFlags::NONE,
            inner: None,
        };
        let below = Arc::new(MemoryMap::create(&spec).unwrap());
        let map = FaultyMap::decided_by(below.clone(), |operation, key| match (operation, key[0]) {
            (Operation::Update, 2) => Fate::Fails,
            (_, 3) => Fate::IsLost,
            _ => Fate::Passes,
        });
        let content = || {
            let mut keys = Vec::new();
            below.walk(&mut |key, _| keys.push(key[0])).unwrap();
            keys.sort_unstable();
            keys
        };

        let failures = map.update(&[1, 2, 3, 4], &[0; 4]);
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].index, content()), (1, vec![1, 4]));

        below.update(&[3], &[0]);
        let done = map.delete(&[1, 3, 4]);
        assert_eq!((done.deleted, done.failures.len()), (3, 0));
        assert_eq!(content(), [3]);
    }

    #[test]
    fn maps_share_faults_that_stop_and_are_known_as_injected() {
        let faults = Faults::new("both maps", 1.0, 7);
        let map = |name| {
            let spec = crate::map::MapSpec::<u8, u8>::new(name, MapKind::Hash, 8, MapFlags::NONE);
            let below = Arc::new(MemoryMap::create(spec.raw()).unwrap());
            FaultyMap::with(below, faults.clone())
        };
        let one = crate::Map::<u8, u8>::from_raw(Arc::new(map("one"))).unwrap();
        let other = crate::Map::<u8, u8>::from_raw(Arc::new(map("other").readable())).unwrap();

        assert!(one.update(&1, &1).unwrap_err().is_injected());
        assert!(one.entries().unwrap_err().is_injected());
        assert!(other.delete(&1).unwrap_err().is_injected());
        assert_eq!(other.entries().unwrap(), []);
        assert!(
            one.update_batch(&[1; 9], &[1; 9])
                .iter()
                .all(|f| f.error.is_injected())
        );

        faults.stop();
        one.update(&1, &1).unwrap();
        let keys: Vec<u8> = (0..9).collect();
        let full = one.update_batch(&keys, &keys);
        assert_eq!(full.len(), 1);
        assert!(!full[0].error.is_injected());
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
