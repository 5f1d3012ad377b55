// SPDX-License-Identifier: Apache-2.0

//! Maps that fail now and then, to show that everything is retried.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::maps::{Entries, Failures, Keys, LbMaps, MapEntry, MapError, MapKind};

/// Lets operations on the maps below fail at random: single entries of a batch, and everything behind an entry, as if the
/// kernel had stopped there. The same seed injects the same faults.
pub struct FaultyMaps {
    below: Arc<dyn LbMaps>,
    probability: f64,
    random: Mutex<StdRng>,
    is_on: AtomicBool,
    seed: u64,
    announced: Once,
}

impl FaultyMaps {
    /// Wraps maps; each batch is cut, and each of its entries fails, with the given probability, 0 to 1. Prints the seed
    /// with the first fault: a failed test is run again with it.
    pub fn new(below: Arc<dyn LbMaps>, probability: f64, seed: u64) -> Self {
        Self {
            below,
            probability: probability.clamp(0.0, 1.0),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            is_on: AtomicBool::new(true),
            seed,
            announced: Once::new(),
        }
    }

    /// Lets all operations pass from now on.
    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    fn fails(&self) -> bool {
        let fails = self.is_on.load(Ordering::Relaxed) && self.random.lock().random_bool(self.probability);
        if fails {
            let announce = || eprintln!("faults in load-balancing maps: seed {}", self.seed);
            self.announced.call_once(announce);
        }
        fails
    }

    fn run(&self, len: usize, operation: impl Fn(usize) -> Failures) -> Failures {
        let cut = match len > 1 && self.fails() {
            true => self.random.lock().random_range(0..len),
            false => len,
        };
        let mut failures = Failures::new();
        for at in 0..len {
            let error = if at >= cut || self.fails() {
                Some(MapError::Faulty)
            } else {
                operation(at).pop().map(|(_, error)| error)
            };
            failures.extend(error.map(|error| (at, error)));
        }
        failures
    }
}

impl LbMaps for FaultyMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        self.run(entries.len(), |at| self.below.update(entries.at(at)))
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        self.run(keys.len(), |at| self.below.delete(keys.at(at)))
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        if kind == MapKind::SourceRange && self.fails() {
            return Err(MapError::Faulty);
        }
        self.below.dump(kind, visit)
    }
}
