// SPDX-License-Identifier: Apache-2.0

//! Deletes unused master keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use skep_identity::{IdentityRange, NumericIdentity};
use skep_kvstore::{Client, Error, Key, KeyValue, Lock, Revision, keys};
use tokio::time::MissedTickBehavior;

use super::layout::{IdentityKeys, IdentityLabels};
use crate::log::chain;
use crate::recorder::{NoStoreRecorder, StoreRecorder};

/// Deletions under way at once: one that waits for a lock does not delay the others.
const CONCURRENT: usize = 16;

/// How an [`IdentityGc`] behaves.
#[derive(Clone, Debug)]
pub struct IdentityGcOptions {
    /// The keys of the own cluster.
    pub keys: IdentityKeys,
    /// The ids of the own cluster; others are ignored.
    pub range: IdentityRange,
    /// Time between two rounds (`identity-gc-interval`).
    pub interval: Duration,
    /// Deletions per [`rate_interval`](Self::rate_interval) (`identity-gc-rate-limit`); at least one.
    pub rate_limit: u32,
    /// See [`rate_limit`](Self::rate_limit) (`identity-gc-rate-interval`).
    pub rate_interval: Duration,
    /// Measures the rounds.
    pub recorder: Arc<dyn StoreRecorder>,
}

impl IdentityGcOptions {
    /// Cilium's keys, times and limit: a round every 15 min, 2500 deletions a minute.
    pub fn new(range: IdentityRange) -> Self {
        Self {
            keys: IdentityKeys::default(),
            range,
            interval: Duration::from_secs(15 * 60),
            rate_limit: 2500,
            rate_interval: Duration::from_secs(60),
            recorder: Arc::new(NoStoreRecorder),
        }
    }
}

/// Deletes master keys that are unused in two rounds. One program of a cluster runs it, the operator.
///
/// The allocation of an identity takes another lock, so that a node may begin to use it while it is deleted. The allocator of
/// that node writes the master key again.
#[derive(Debug)]
pub struct IdentityGc {
    client: Client,
    options: IdentityGcOptions,
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
    /// Ids of the cluster without a master key.
    pub free: usize,
}

/// A master key that was unused in the last round, and is.
struct Candidate<'a> {
    id: NumericIdentity,
    item: &'a KeyValue,
}

impl IdentityGc {
    /// A collector that has marked no key.
    pub fn new(client: Client, options: IdentityGcOptions) -> Self {
        Self {
            client,
            options,
            unused: HashMap::new(),
        }
    }

    /// Deletes what was unused in the last round and still is.
    ///
    /// # Errors
    ///
    /// If keys cannot be listed: marks stay. What fails for one identity is counted, and logged.
    pub async fn round(&mut self) -> Result<GcRound, Error> {
        let result = self.collect().await;
        self.options.recorder.identity_gc(result.as_ref().ok());
        result
    }

    /// Runs a round at each interval. Never returns.
    pub async fn run(&mut self) {
        loop {
            tokio::time::sleep(self.options.interval).await;
            match self.round().await {
                Ok(round) => tracing::debug!(?round, "Collected unused identities"),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Unable to collect unused identities");
                }
            }
        }
    }

    async fn collect(&mut self) -> Result<GcRound, Error> {
        let IdentityGcOptions { keys, range, .. } = &self.options;
        let masters = self.client.list(&keys::below(&keys.masters())).await?;
        let slaves = self.client.list(&keys::below(&keys.slaves())).await?;
        let used: HashSet<NumericIdentity> = slaves.items.iter().filter_map(id_of).collect();
        let mut round = GcRound {
            free: range.size(),
            ..GcRound::default()
        };
        let mut unused = HashMap::new();
        let mut candidates = Vec::new();
        for item in &masters.items {
            let id = item.key.rsplit('/').next().and_then(|text| text.parse().ok());
            let Some(id) = id.filter(|id| range.contains(*id)) else {
                continue;
            };
            round.free -= 1;
            if used.contains(&id) {
                round.used += 1;
            } else if self.unused.get(&item.key) == Some(&item.mod_revision) {
                candidates.push(Candidate { id, item });
            } else if self.unused.contains_key(&item.key) {
                // It was deleted and written again meanwhile, because it is used: two more rounds.
                round.marked += 1;
            } else {
                round.marked += 1;
                unused.insert(item.key.clone(), item.mod_revision);
            }
        }
        let outcomes = stream::iter(candidates)
            .zip(self.ticks())
            .map(|(candidate, ())| async {
                let outcome = self.delete(&candidate).await;
                (candidate, outcome)
            })
            .buffer_unordered(CONCURRENT);
        let mut outcomes = Box::pin(outcomes);
        while let Some((candidate, outcome)) = outcomes.next().await {
            match outcome {
                Ok(Outcome::Used) => round.used += 1,
                Ok(Outcome::Changed) => round.marked += 1,
                Ok(Outcome::Deleted) => {
                    round.deleted += 1;
                    round.free += 1;
                }
                Err(error) => {
                    round.failed += 1;
                    tracing::warn!(identity = %candidate.id, error = %chain(&error), "Unable to collect an identity");
                    // It keeps its mark.
                    unused.insert(candidate.item.key.clone(), candidate.item.mod_revision);
                }
            }
        }
        drop(outcomes);
        self.unused = unused;
        Ok(round)
    }

    /// The moments at which deletions may begin. A slow store does not lower the rate.
    fn ticks(&self) -> impl futures::Stream<Item = ()> + use<> {
        let pause = self.options.rate_interval / self.options.rate_limit.max(1);
        let mut interval = tokio::time::interval(pause.max(Duration::from_micros(1)));
        interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
        stream::unfold(interval, |mut interval| async move {
            interval.tick().await;
            Some(((), interval))
        })
    }

    /// Deletes a master key unless it is used by now.
    async fn delete(&self, candidate: &Candidate<'_>) -> Result<Outcome, Error> {
        let lock = self.client.lock(&self.options.keys.gc_lock(candidate.id)).await?;
        let result = self.delete_locked(candidate, &lock).await;
        if let Err(error) = lock.unlock().await {
            // The driver of the client releases it.
            tracing::debug!(identity = %candidate.id, error = %chain(&error), "Unable to release a lock");
        }
        result
    }

    async fn delete_locked(&self, candidate: &Candidate<'_>, lock: &Lock) -> Result<Outcome, Error> {
        let locked = self.client.locked(lock);
        let Candidate { id, item } = candidate;
        let labels = IdentityLabels::from(&*String::from_utf8_lossy(&item.value));
        let slaves = locked.list(&self.options.keys.slaves_of(&labels)).await?;
        if slaves.items.iter().any(|slave| id_of(slave) == Some(*id)) {
            return Ok(Outcome::Used);
        }
        let is_deleted = locked.delete_if_unchanged(item).await?;
        Ok(if is_deleted {
            Outcome::Deleted
        } else {
            Outcome::Changed
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Used,
    /// It was written again meanwhile.
    Changed,
    Deleted,
}

/// The id that is the value of a slave key.
pub(super) fn id_of(slave: &KeyValue) -> Option<NumericIdentity> {
    std::str::from_utf8(&slave.value)
        .ok()
        .and_then(|text| text.parse().ok())
}
