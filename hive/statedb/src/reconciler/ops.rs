// SPDX-License-Identifier: Apache-2.0

//! What a reconciler does to its target.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::{KeyBuf, Obj, Revision, Snapshot, row::BoxError};

/// A round of reconciliation, as [`Ops`] sees it.
#[derive(Debug)]
pub struct Round<'a> {
    /// Snapshot of all tables for the round.
    pub snapshot: &'a Snapshot,
    /// Cancelled when the reconciler stops.
    pub token: &'a CancellationToken,
}

/// Operations of a reconciler on its target.
///
/// All operations must be idempotent: an update may be repeated, deleting what is absent is success. They are
/// synchronous. An implementation that handles many objects at once returns true from [`Ops::batched`] and overrides
/// the batch methods, or [`Ops::batch`] for all at once.
///
/// ```
/// use std::collections::BTreeSet;
///
/// use statedb::{Obj, reconciler::{Delete, Ops, Round, Update}, row::BoxError};
///
/// /// A target that takes many at once, but no more than it has room for.
/// struct Target(BTreeSet<u32>, usize);
///
/// impl Ops<u32> for Target {
///     fn update(&mut self, _: &Round<'_>, _: u64, number: &mut u32) -> Result<(), BoxError> {
///         match self.0.len() < self.1 || self.0.contains(number) {
///             true => Ok(drop(self.0.insert(*number))),
///             false => Err("no room".into()),
///         }
///     }
///     fn delete(&mut self, _: &Round<'_>, _: u64, number: &u32) -> Result<(), BoxError> {
///         self.0.remove(number);
///         Ok(())
///     }
///     fn prune(&mut self, _: &Round<'_>, all: &mut dyn Iterator<Item = &Obj<u32>>) -> Result<(), BoxError> {
///         let wanted: BTreeSet<u32> = all.map(|number| **number).collect();
///         self.0.retain(|number| wanted.contains(number));
///         Ok(())
///     }
///     fn batched(&self) -> bool {
///         true
///     }
///     fn update_batch(&mut self, round: &Round<'_>, batch: &mut [Update<u32>]) {
///         for entry in batch {
///             entry.result = self.update(round, entry.revision, &mut entry.object);
///         }
///     }
///     fn delete_batch(&mut self, _: &Round<'_>, batch: &mut [Delete<u32>]) {
///         let gone: BTreeSet<u32> = batch.iter().map(|entry| *entry.object).collect();
///         self.0.retain(|number| !gone.contains(number));
///     }
/// }
/// ```
pub trait Ops<T>: Send {
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

    /// Returns whether to call the batch methods; called once per round. Deletions of a round come first then.
    fn batched(&self) -> bool {
        false
    }

    /// Does all operations of a round; sets the result of each entry. By default all deletions, then all updates;
    /// override it if their order counts (both slices are in order of revision).
    fn batch(&mut self, round: &Round<'_>, deletes: &mut [Delete<T>], updates: &mut [Update<T>]) {
        if !deletes.is_empty() {
            self.delete_batch(round, deletes);
        }
        if !updates.is_empty() {
            self.update_batch(round, updates);
        }
    }

    /// Updates many objects; sets the result of each.
    fn update_batch(&mut self, round: &Round<'_>, batch: &mut [Update<T>]) {
        for entry in batch {
            entry.result = self.update(round, entry.revision, &mut entry.object);
        }
    }

    /// Removes many objects; sets the result of each.
    fn delete_batch(&mut self, round: &Round<'_>, batch: &mut [Delete<T>]) {
        for entry in batch {
            entry.result = self.delete(round, entry.revision, &entry.object);
        }
    }
}

/// One object of [`Ops::update_batch`].
pub struct Update<T> {
    /// Table revision of the object.
    pub revision: Revision,
    /// A copy of the object; see [`Ops::update`].
    pub object: T,
    /// Outcome; the operation sets it.
    pub result: Result<(), BoxError>,
}

/// One object of [`Ops::delete_batch`].
pub struct Delete<T> {
    /// Table revision of the deletion.
    pub revision: Revision,
    /// Last state of the object.
    pub object: Obj<T>,
    /// Outcome; the operation sets it.
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

use super::status::Status;

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
