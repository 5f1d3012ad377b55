// SPDX-License-Identifier: Apache-2.0

//! An id between the choice and the first use.

use std::sync::Arc;

use parking_lot::Mutex;

use skep_identity::NumericIdentity;

use crate::layout::IdentityLabels;
use crate::local::Uses;
use skep_kvstore_store::queue::Queue;

/// What an allocator and those who claim ids share.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) uses: Arc<Mutex<Uses>>,
    /// Labels whose keys may not be as they should be.
    pub(super) queue: Arc<Queue<IdentityLabels>>,
}

impl Local {
    pub(super) fn new() -> Self {
        Self {
            uses: Arc::default(),
            queue: Arc::new(Queue::new()),
        }
    }

    /// Returns whether the id of a deleted master key is claimed: then it is written again.
    pub(super) fn reclaim(&self, name: &str) -> bool {
        let id = name.parse::<NumericIdentity>().ok();
        let labels = id.and_then(|id| self.uses.lock().claimant(id).cloned());
        let is_claimed = labels.is_some();
        if let Some(labels) = labels {
            tracing::warn!(
                identity = name,
                "Master key of identity in use was deleted, restoring it"
            );
            self.queue.push(labels);
        }
        is_claimed
    }
}

/// An id that is about to be used: its master key is protected. Dropped without a use, the slave key is deleted.
#[derive(Debug)]
pub(super) struct Claim {
    local: Local,
    pub(super) id: NumericIdentity,
    pub(super) labels: IdentityLabels,
    /// Whether the slave key may have been written.
    pub(super) is_written: bool,
}

impl Claim {
    /// `None` if the id is that of other labels.
    pub(super) fn new(local: &Local, id: NumericIdentity, labels: &IdentityLabels) -> Option<Self> {
        let is_claimed = local.uses.lock().claim(id, labels);
        is_claimed.then(|| Self {
            local: local.clone(),
            id,
            labels: labels.clone(),
            is_written: false,
        })
    }

    pub(super) fn confirm(self) -> NumericIdentity {
        self.local.uses.lock().first(&self.labels, self.id);
        self.id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut uses = self.local.uses.lock();
        if uses.id(&self.labels) != Some(self.id) {
            uses.unclaim(self.id);
            if self.is_written {
                self.local.queue.push(self.labels.clone());
            }
        }
    }
}
