// SPDX-License-Identifier: Apache-2.0

//! What a reconciler does to its target.

use std::{fmt, time::Instant};

use tokio_util::sync::CancellationToken;

use super::config::{NoReconcilerMetrics, Operation, ReconcilerMetrics};
use super::status::Status;
use crate::{KeyBuf, Obj, Revision, Snapshot, row::BoxError};

/// A round of reconciliation, as operations see it.
pub struct Round<'a> {
    /// Snapshot of all tables for the round.
    pub snapshot: &'a Snapshot,
    /// Cancelled when the reconciler stops.
    pub token: &'a CancellationToken,
    pub(super) metrics: &'a dyn ReconcilerMetrics,
}

impl<'a> Round<'a> {
    /// Returns a round that is not measured, to call operations without a reconciler.
    pub fn new(snapshot: &'a Snapshot, token: &'a CancellationToken) -> Self {
        Self {
            snapshot,
            token,
            metrics: &NoReconcilerMetrics,
        }
    }

    /// Measures an operation.
    pub(super) fn measure<R>(&self, operation: Operation, operate: impl FnOnce() -> R) -> R {
        if !self.metrics.enabled() {
            return operate();
        }
        let started = Instant::now();
        let result = operate();
        self.metrics.operation(operation, started.elapsed());
        result
    }
}

impl fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round")
            .field("snapshot", &self.snapshot)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Operations of a reconciler on its target, one object at a time in the order of the changes.
///
/// All operations must be idempotent: an update may be repeated, deleting what is absent is success. They are
/// synchronous; those that wait belong on a thread of their own ([`Config::blocking`](super::Config::blocking)). See [`Reconciler`](super::Reconciler) for an example, and [`BatchOps`] for targets that take many objects
/// at once.
pub trait Ops<T>: Send + 'static {
    /// Applies `object` to the target. Changes made to `object` are kept in the table with its new status,
    /// unless the object changed meanwhile.
    ///
    /// # Errors
    /// The text becomes part of the object's status; the update is retried.
    fn update(&mut self, round: &Round<'_>, revision: Revision, object: &mut T) -> Result<(), BoxError>;

    /// Removes `object` from the target.
    ///
    /// # Errors
    /// The deletion is retried.
    fn delete(&mut self, round: &Round<'_>, revision: Revision, object: &T) -> Result<(), BoxError>;

    /// Removes everything from the target that is not among `objects`.
    ///
    /// # Errors
    /// Shown in health; pruning is retried after the interval.
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<T>>,
    ) -> Result<(), BoxError>;

    /// Returns the primary keys of objects that failed and may succeed now; they are retried at once instead of after
    /// their pause. Called after every round and pruning.
    fn retriable(&mut self) -> Vec<KeyBuf> {
        Vec::new()
    }
}

/// Result of an update that is left for the next round, so that what changes meanwhile need not wait for all of this one.
/// It is no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("left for the next round")]
pub struct Deferred;

/// Operations of a reconciler on its target, all of a round at once. All [`Ops`] are such operations, too.
///
/// The same holds for them as for [`Ops`].
///
/// ```
/// use std::collections::BTreeSet;
///
/// use statedb::{Obj, reconciler::{BatchOps, Delete, Round, Update}, row::BoxError};
///
/// /// A target that takes many at once, but no more than it has room for.
/// struct Target(BTreeSet<u32>, usize);
///
/// impl BatchOps<u32> for Target {
///     fn batch(&mut self, _: &Round<'_>, deletes: &mut [Delete<u32>], updates: &mut [Update<u32>]) {
///         let gone: BTreeSet<u32> = deletes.iter().map(|entry| *entry.object).collect();
///         self.0.retain(|number| !gone.contains(number));
///         for entry in updates {
///             match self.0.len() < self.1 || self.0.contains(&entry.object) {
///                 true => drop(self.0.insert(entry.object)),
///                 false => entry.result = Err("no room".into()),
///             }
///         }
///     }
///     fn prune(&mut self, _: &Round<'_>, all: &mut dyn Iterator<Item = &Obj<u32>>) -> Result<(), BoxError> {
///         let wanted: BTreeSet<u32> = all.map(|number| **number).collect();
///         self.0.retain(|number| wanted.contains(number));
///         Ok(())
///     }
/// }
/// ```
pub trait BatchOps<T>: Send + 'static {
    /// Whether the operations are measured each, and not as a batch.
    #[doc(hidden)]
    const IS_MEASURED_EACH: bool = false;

    /// Does all operations of a round; sets the result of each entry that fails, or of an update that it leaves for the next
    /// round to [`Deferred`]. Both slices are in order of revision.
    fn batch(&mut self, round: &Round<'_>, deletes: &mut [Delete<T>], updates: &mut [Update<T>]);

    /// See [`Ops::prune`].
    ///
    /// # Errors
    /// Shown in health; pruning is retried after the interval.
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<T>>,
    ) -> Result<(), BoxError>;

    /// See [`Ops::retriable`].
    fn retriable(&mut self) -> Vec<KeyBuf> {
        Vec::new()
    }
}

impl<T, O: Ops<T>> BatchOps<T> for O {
    const IS_MEASURED_EACH: bool = true;

    fn batch(&mut self, round: &Round<'_>, deletes: &mut [Delete<T>], updates: &mut [Update<T>]) {
        let (mut updates, mut deletes) = (updates.iter_mut().peekable(), deletes.iter_mut().peekable());
        loop {
            let revision = updates.peek().map(|entry| entry.revision);
            let precedes = |entry: &&mut Delete<T>| revision.is_none_or(|revision| entry.revision < revision);
            if let Some(entry) = deletes.next_if(precedes) {
                let delete = || self.delete(round, entry.revision, &entry.object);
                entry.result = round.measure(Operation::Delete, delete);
            } else if let Some(entry) = updates.next() {
                let update = || self.update(round, entry.revision, &mut entry.object);
                entry.result = round.measure(Operation::Update, update);
            } else {
                return;
            }
        }
    }

    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<T>>,
    ) -> Result<(), BoxError> {
        Ops::prune(self, round, objects)
    }

    fn retriable(&mut self) -> Vec<KeyBuf> {
        Ops::retriable(self)
    }
}

/// An update of a round.
pub struct Update<T> {
    /// Table revision of the object.
    pub revision: Revision,
    /// A copy of the object; see [`Ops::update`].
    pub object: T,
    /// Outcome; success unless the operation sets it.
    pub result: Result<(), BoxError>,
}

/// A deletion of a round.
pub struct Delete<T> {
    /// Table revision of the deletion.
    pub revision: Revision,
    /// Last state of the object.
    pub object: Obj<T>,
    /// Outcome; success unless the operation sets it.
    pub result: Result<(), BoxError>,
}

impl<T> fmt::Debug for Update<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Update")
            .field("revision", &self.revision)
            .field("result", &self.result)
            .finish()
    }
}

impl<T> fmt::Debug for Delete<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delete")
            .field("revision", &self.revision)
            .field("result", &self.result)
            .finish()
    }
}

/// Reads and writes the reconciler's status inside an object.
///
/// ```
/// use statedb::reconciler::{Status, StatusField, StatusSet};
///
/// struct Route { status: StatusSet }
/// let field = StatusField {
///     get: |route: &Route| route.status.get("kernel"),
///     set: |route, status| route.status = route.status.with("kernel", status),
/// };
/// let mut route = Route { status: StatusSet::new() };
/// assert!((field.get)(&route).is_due());
/// (field.set)(&mut route, Status::done());
/// assert!(!(field.get)(&route).is_due());
/// ```
pub struct StatusField<T> {
    /// Reads the status.
    pub get: fn(&T) -> Status,
    /// Replaces the status.
    pub set: fn(&mut T, Status),
}

impl<T> Clone for StatusField<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for StatusField<T> {}

impl<T> fmt::Debug for StatusField<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusField")
    }
}
