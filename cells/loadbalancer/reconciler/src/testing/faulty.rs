// SPDX-License-Identifier: Apache-2.0

//! Maps that fail now and then, to show that everything is retried.

use std::sync::Arc;

use crate::maps::{Entries, Failures, Keys, LbMaps, MapEntry, MapError, MapKind};

/// Lets single operations on the maps below fail at random.
pub struct FaultyMaps {
    below: Arc<dyn LbMaps>,
    probability: f64,
}

impl FaultyMaps {
    /// Wraps maps; each entry of each operation fails with the given probability, 0 to 1.
    pub fn new(below: Arc<dyn LbMaps>, probability: f64) -> Self {
        Self {
            below,
            probability: probability.clamp(0.0, 1.0),
        }
    }

    fn fails(&self) -> bool {
        rand::random_bool(self.probability)
    }
}

impl LbMaps for FaultyMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        let mut failures = Failures::new();
        for index in 0..entries.len() {
            let error = if self.fails() {
                Some(MapError::Faulty)
            } else {
                self.below.update(entries.at(index)).pop().map(|(_, error)| error)
            };
            failures.extend(error.map(|error| (index, error)));
        }
        failures
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        let mut failures = Failures::new();
        for index in 0..keys.len() {
            let error = if self.fails() {
                Some(MapError::Faulty)
            } else {
                self.below.delete(keys.at(index)).pop().map(|(_, error)| error)
            };
            failures.extend(error.map(|error| (index, error)));
        }
        failures
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        if kind == MapKind::SourceRange && self.fails() {
            return Err(MapError::Faulty);
        }
        self.below.dump(kind, visit)
    }
}
