// SPDX-License-Identifier: Apache-2.0

//! What a reconciler does to its target.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::{Obj, Revision, Snapshot, row::BoxError};

/// Circumstances of a round.
#[derive(Debug)]
pub struct Round<'a> {
    /// The state of all tables the round works with.
    pub snapshot: &'a Snapshot,
    /// Cancelled when the reconciler is to stop.
    pub token: &'a CancellationToken,
}

/// Brings a target in line with objects of a table.
///
/// All operations must be idempotent: an update may be repeated, deleting what is absent is success. They are
/// synchronous and run between two looks at the table. An implementation that can do many objects at once says so
/// with [`Ops::batched`] and overrides the batch methods, or [`Ops::batch`] for all at once.
pub trait Ops<T>: Send {
    /// Makes the target follow `object`. Changes made to `object` are kept in the table with its new status,
    /// provided that nobody changed the object meanwhile.
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
    /// Shown in health; pruning is tried again after the interval.
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<T>>,
    ) -> Result<(), BoxError>;

    /// Whether the batch methods are to be used; asked once per round. Deletions of a round come first then.
    fn batched(&self) -> bool {
        false
    }

    /// Does everything of a round; sets the result of each entry. By default all deletions, then all updates; override
    /// it if their order counts (both slices are in order of revision).
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
    /// Outcome, to be set.
    pub result: Result<(), BoxError>,
}

/// One object of [`Ops::delete_batch`].
pub struct Delete<T> {
    /// Table revision of the deletion.
    pub revision: Revision,
    /// Last state of the object.
    pub object: Obj<T>,
    /// Outcome, to be set.
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
