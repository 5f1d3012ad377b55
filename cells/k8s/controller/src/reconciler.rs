// SPDX-License-Identifier: Apache-2.0

//! What a controller is made of.

use std::fmt::Display;
use std::time::Duration;

use futures::future::BoxFuture;
use skep_k8s_types::{ObjectKey, Resource};

use crate::error::Failure;
use crate::store::{Change, Store};

/// The requests for one key.
pub type Work<R> = BoxFuture<'static, Result<<R as Reconciler>::Output, <R as Reconciler>::Error>>;

/// What a controller does about a key. Only `reconcile` and what names keys is required.
pub trait Reconciler: Sized + Send + 'static {
    /// What is reconciled: mostly the key of an object.
    type Key: Ord + Clone + Display + Send + Sync + 'static;
    /// Result of the requests for a key.
    type Output: Send + 'static;
    type Error: Failure;
    /// What keys are, in the plural, for health: `Secrets`.
    const KEYS: &'static str;
    /// What is wrong with keys that failed, for health: `are not copied`.
    const FAILED: &'static str;

    /// Computes what must be written for a key. Called again when a change affects it: a key without work is done, one that
    /// is not wanted any more, too.
    fn reconcile(&mut self, key: &Self::Key) -> Work<Self>;

    /// Number of keys that there should be.
    fn total(&self) -> usize;

    /// Takes in the result of the requests for a key. Returns after which time it is reconciled again, if at all; after an
    /// error [`Failure::retry`] says that.
    fn finished(
        &mut self,
        _key: &Self::Key,
        result: Result<Self::Output, Self::Error>,
    ) -> Result<Option<Duration>, Self::Error> {
        result.map(|_| None)
    }

    /// Returns keys that results affect, beside their own. Called after [`finished`](Self::finished).
    fn affected_by_results(&mut self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Called once, when all sources are complete, before the first key is reconciled; returns keys to add.
    fn synced(&mut self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// How long a change of a key waits for others.
    fn delay(&self, _key: &Self::Key) -> Duration {
        Duration::ZERO
    }

    /// Whether a key is taken before others. Concurrency is limited for these alone.
    fn has_priority(&self, _key: &Self::Key) -> bool {
        false
    }

    /// Time until any key may be reconciled, such as by a limit of the rate; asked again after it.
    fn wait(&self) -> Duration {
        Duration::ZERO
    }

    /// The state for health, with the number of keys that failed.
    fn summary(&self, failed: usize) -> String {
        let total = self.total();
        match failed {
            0 => format!("{total} {}", Self::KEYS),
            _ => format!("{failed} of {total} {} {}", Self::KEYS, Self::FAILED),
        }
    }

    /// Faults for health, beside those of keys.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sets gauges. Called before each report of health.
    fn record(&mut self) {}
}

/// What a reconciler does with changes of a kind of objects.
pub trait Watches<T: Resource>: Reconciler {
    fn store(&mut self) -> &mut Store<T>;

    /// Returns the keys that a change affects. The store has the new state already.
    fn affected(&mut self, change: &Change<T>) -> Vec<Self::Key>;

    /// Returns the keys that an object affects by being invalid. Its last valid state counts.
    fn invalid(&mut self, _key: &ObjectKey) -> Vec<Self::Key> {
        Vec::new()
    }
}
