// SPDX-License-Identifier: Apache-2.0

//! Deletes unused master keys.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use skep_kvstore::{Client, Error, Key, KeyValue, Lock, Revision, keys};

use super::layout::{IdentityKeys, IdentityLabels, IdentityRange, NumericIdentity};
use crate::log::chain;

/// Time between two rounds, as in Cilium's operator.
pub const GC_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Pause after a deletion: 2500 a minute.
const PAUSE: Duration = Duration::from_millis(24);

/// Deletes master keys that are unused in two rounds. One program of a cluster runs it, the operator.
///
/// The allocation of an identity takes another lock, so that a node may begin to use it while it is deleted. The allocator of
/// that node writes the master key again.
#[derive(Debug)]
pub struct IdentityGc {
    client: Client,
    keys: IdentityKeys,
    range: IdentityRange,
    /// Master keys that were unused in the last round.
    unused: HashMap<Key, Revision>,
}

/// What a round has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcRound {
    /// Master keys that are used.
    pub used: usize,
    /// Master keys that are deleted by a later round, unless they are used then.
    pub marked: usize,
    /// Master keys that were deleted.
    pub deleted: usize,
    /// Master keys that could not be checked or deleted. The next round tries again.
    pub failed: usize,
}

impl IdentityGc {
    /// A collector for the numbers of one cluster; others are left alone.
    pub fn new(client: Client, keys: IdentityKeys, range: IdentityRange) -> Self {
        Self {
            client,
            keys,
            range,
            unused: HashMap::new(),
        }
    }

    /// Deletes what was unused in the last round and still is.
    ///
    /// # Errors
    ///
    /// If keys cannot be listed. What fails for one identity is counted, and logged.
    pub async fn round(&mut self) -> Result<GcRound, Error> {
        let masters = self.client.list(&keys::below(&self.keys.masters())).await?;
        let slaves = self.client.list(&keys::below(&self.keys.slaves())).await?;
        let used: HashSet<NumericIdentity> = slaves.items.iter().filter_map(number_of).collect();
        let mut round = GcRound::default();
        let mut last = std::mem::take(&mut self.unused);
        for item in &masters.items {
            let Some(id) = item.key.rsplit('/').next().and_then(NumericIdentity::parse) else {
                continue;
            };
            if !self.range.contains(id) {
                continue;
            }
            let marked = last.remove(&item.key);
            if used.contains(&id) {
                round.used += 1;
                continue;
            }
            match self.collect(id, item, marked).await {
                Ok(Outcome::Used) => round.used += 1,
                Ok(Outcome::Marked) => {
                    round.marked += 1;
                    self.unused.insert(item.key.clone(), item.mod_revision);
                }
                Ok(Outcome::Forgotten) => round.marked += 1,
                Ok(Outcome::Deleted) => {
                    round.deleted += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    round.failed += 1;
                    tracing::warn!(identity = %id, error = %chain(&error), "Unable to collect an identity");
                    // It keeps its mark.
                    self.unused
                        .extend(marked.map(|revision| (item.key.clone(), revision)));
                }
            }
        }
        Ok(round)
    }

    /// Runs a round at each interval. Never returns.
    pub async fn run(&mut self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            match self.round().await {
                Ok(round) => tracing::debug!(?round, "Collected unused identities"),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Unable to collect unused identities");
                }
            }
        }
    }

    /// Handles a master key that seems to be unused.
    async fn collect(
        &self,
        id: NumericIdentity,
        item: &KeyValue,
        marked: Option<Revision>,
    ) -> Result<Outcome, Error> {
        let lock = self.client.lock(&self.keys.gc_lock(id)).await?;
        let result = self.collect_locked(id, item, marked, &lock).await;
        if let Err(error) = lock.unlock().await {
            // The driver of the client releases it.
            tracing::debug!(identity = %id, error = %chain(&error), "Unable to release a lock");
        }
        result
    }

    async fn collect_locked(
        &self,
        id: NumericIdentity,
        item: &KeyValue,
        marked: Option<Revision>,
        lock: &Lock,
    ) -> Result<Outcome, Error> {
        let locked = self.client.locked(lock);
        let labels = IdentityLabels::from(&*String::from_utf8_lossy(&item.value));
        let slaves = locked.list(&self.keys.slaves_of(&labels)).await?;
        if slaves.items.iter().any(|slave| number_of(slave) == Some(id)) {
            return Ok(Outcome::Used);
        }
        match marked {
            None => Ok(Outcome::Marked),
            // It was deleted and written again meanwhile, because it is used.
            Some(revision) if revision != item.mod_revision => Ok(Outcome::Forgotten),
            Some(_) => match locked.delete_if_unchanged(item).await? {
                true => Ok(Outcome::Deleted),
                false => Ok(Outcome::Forgotten),
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Used,
    /// Unused for the first time.
    Marked,
    /// Unused, but not the key of the last round.
    Forgotten,
    Deleted,
}

/// The number that is the value of a slave key.
pub(super) fn number_of(slave: &KeyValue) -> Option<NumericIdentity> {
    std::str::from_utf8(&slave.value)
        .ok()
        .and_then(NumericIdentity::parse)
}
