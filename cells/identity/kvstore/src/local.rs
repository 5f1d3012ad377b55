// SPDX-License-Identifier: Apache-2.0

//! The identities that this program uses.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use skep_identity::NumericIdentity;

use crate::layout::IdentityLabels;

/// The identities that this program uses, and how often.
#[derive(Debug, Default)]
pub(super) struct Uses {
    uses: HashMap<IdentityLabels, Use>,
    /// The ids that are used, or about to be: their master keys are protected.
    claims: HashMap<NumericIdentity, IdentityLabels>,
}

#[derive(Debug)]
struct Use {
    id: NumericIdentity,
    count: usize,
}

impl Uses {
    /// The id of labels in use.
    pub(super) fn id(&self, labels: &IdentityLabels) -> Option<NumericIdentity> {
        self.uses.get(labels).map(|used| used.id)
    }

    pub(super) fn count(&self, labels: &IdentityLabels) -> usize {
        self.uses.get(labels).map_or(0, |used| used.count)
    }

    /// Uses labels that are in use once more.
    pub(super) fn again(&mut self, labels: &IdentityLabels) -> Option<NumericIdentity> {
        let used = self.uses.get_mut(labels)?;
        used.count += 1;
        Some(used.id)
    }

    /// Protects an id before it is used; `false` if it is that of other labels.
    pub(super) fn claim(&mut self, id: NumericIdentity, labels: &IdentityLabels) -> bool {
        self.claims.entry(id).or_insert_with(|| labels.clone()) == labels
    }

    pub(super) fn claimant(&self, id: NumericIdentity) -> Option<&IdentityLabels> {
        self.claims.get(&id)
    }

    /// Ends a claim that has not come to a use.
    pub(super) fn unclaim(&mut self, id: NumericIdentity) {
        self.claims.remove(&id);
    }

    /// Uses an id that was claimed.
    pub(super) fn first(&mut self, labels: &IdentityLabels, id: NumericIdentity) {
        self.uses.insert(labels.clone(), Use { id, count: 1 });
    }

    /// Ends a use. Returns the id, and whether it was the last use; `None` if there was none.
    pub(super) fn release(&mut self, labels: &IdentityLabels) -> Option<(NumericIdentity, bool)> {
        let used = self.uses.get_mut(labels)?;
        used.count -= 1;
        let (id, is_last) = (used.id, used.count == 0);
        if is_last {
            self.uses.remove(labels);
            self.claims.remove(&id);
        }
        Some((id, is_last))
    }

    pub(super) fn labels(&self) -> Vec<IdentityLabels> {
        self.uses.keys().cloned().collect()
    }
}

/// One task at a time writes the keys of the same labels.
#[derive(Debug, Default)]
pub(super) struct LabelLocks(Mutex<Locks>);

#[derive(Debug, Default)]
struct Locks {
    locks: HashMap<IdentityLabels, Arc<tokio::sync::Mutex<()>>>,
    /// Number of locks at which unused ones are removed.
    limit: usize,
}

impl LabelLocks {
    pub(super) async fn acquire(&self, labels: &IdentityLabels) -> OwnedMutexGuard<()> {
        let lock = self.lock(labels);
        lock.lock_owned().await
    }

    /// `None` if another task has the lock.
    pub(super) fn try_acquire(&self, labels: &IdentityLabels) -> Option<OwnedMutexGuard<()>> {
        self.lock(labels).try_lock_owned().ok()
    }

    fn lock(&self, labels: &IdentityLabels) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        if locks.locks.len() >= locks.limit {
            locks.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.limit = (locks.locks.len() * 2).max(64);
        }
        Arc::clone(locks.locks.entry(labels.clone()).or_default())
    }
}
