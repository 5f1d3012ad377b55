// SPDX-License-Identifier: Apache-2.0

//! Deletes unused master keys.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, stream};
use skep_identity::{IdentityRange, NumericIdentity};
use skep_kvstore_client::{Client, Error, Key, KeyValue, Lock, Revision, Unused, keys};
use tokio::time::MissedTickBehavior;

use crate::layout::{IdentityKeys, IdentityLabels};
use hive::error_chain as chain;

/// Locks that are waited for or held at once: one that another holds does not delay the others.
const CONCURRENT: usize = 128;
/// Keys deleted by one request at most. While requests wait for the rate limit of the client, locked keys gather.
const BATCH: usize = 40;
const REQUESTS: usize = 2;

/// How an [`IdentityGc`] behaves.
#[derive(Clone, Debug)]
pub struct IdentityGcOptions {
    /// The keys of the own cluster.
    pub keys: IdentityKeys,
    /// The ids of the own cluster; others are ignored.
    pub range: IdentityRange,
    /// Deletions per [`rate_interval`](Self::rate_interval) (`identity-gc-rate-limit`); at least one.
    pub rate_limit: u32,
    /// See [`rate_limit`](Self::rate_limit) (`identity-gc-rate-interval`).
    pub rate_interval: Duration,
}

impl IdentityGcOptions {
    /// Cilium's keys and limit: 2500 deletions a minute.
    pub fn new(range: IdentityRange) -> Self {
        Self {
            keys: IdentityKeys::default(),
            range,
            rate_limit: 2500,
            rate_interval: Duration::from_secs(60),
        }
    }
}

/// Deletes master keys that are unused in two rounds. One program of a cluster runs it, the operator.
///
/// One request deletes many keys, if no node has a slave key for any of their labels. If one has, each is listed and deleted by
/// itself: a node may begin to use it in between, as the allocation takes another lock; its allocator then writes the
/// master key again.
#[derive(Debug)]
pub struct IdentityGc {
    client: Client,
    options: IdentityGcOptions,
    /// Master keys that were unused in the last round.
    unused: HashMap<Key, Revision>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcRound {
    pub used: usize,
    /// Master keys that are deleted by a later round, unless they are used then.
    pub marked: usize,
    pub deleted: usize,
    /// Master keys that could not be checked or deleted. The next round tries again.
    pub failed: usize,
    /// Ids of the cluster without a master key.
    pub free: usize,
}

/// A master key that was unused in the last round, and is.
#[derive(Debug)]
struct Candidate {
    id: NumericIdentity,
    item: KeyValue,
    /// The keys of the nodes that use it, by its labels.
    users: String,
}

type Collected = (Candidate, Result<Outcome, Error>);

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
            round.free = round.free.saturating_sub(1);
            if used.contains(&id) {
                round.used += 1;
            } else if self.unused.get(&item.key) == Some(&item.mod_revision) {
                let labels = IdentityLabels::from(&*String::from_utf8_lossy(&item.value));
                candidates.push(Candidate {
                    id,
                    item: item.clone(),
                    users: keys.slaves_of(&labels),
                });
            } else if self.unused.contains_key(&item.key) {
                // It was deleted and written again meanwhile, because it is used: two more rounds.
                round.marked += 1;
            } else {
                round.marked += 1;
                unused.insert(item.key.clone(), item.mod_revision);
            }
        }
        let mut outcomes = stream::iter(candidates)
            .zip(self.ticks())
            .map(|(candidate, ())| self.lock(candidate))
            .buffer_unordered(CONCURRENT)
            .ready_chunks(BATCH)
            .map(|batch| self.delete(batch))
            .buffer_unordered(REQUESTS)
            .flat_map(stream::iter)
            .boxed();
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
                    tracing::warn!(identity = %candidate.id, error = %chain(&error), "Unable to garbage-collect identity");
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

    async fn lock(&self, candidate: Candidate) -> (Candidate, Result<Lock, Error>) {
        let path = self.options.keys.gc_lock(candidate.id);
        let lock = self.client.lock(&path).await;
        (candidate, lock)
    }

    /// Deletes master keys unless they are used by now.
    async fn delete(&self, batch: Vec<(Candidate, Result<Lock, Error>)>) -> Vec<Collected> {
        let mut collected = Vec::with_capacity(batch.len());
        let mut locked = Vec::with_capacity(batch.len());
        for (candidate, lock) in batch {
            match lock {
                Ok(lock) => locked.push((candidate, lock)),
                Err(error) => collected.push((candidate, Err(error))),
            }
        }
        let unused: Vec<Unused<'_>> = locked
            .iter()
            .map(|(candidate, lock)| Unused {
                item: &candidate.item,
                users: candidate.users.as_str().into(),
                lock,
            })
            .collect();
        let all = self.client.delete_unused(&unused).await;
        drop(unused);
        let mut unlocks = Vec::with_capacity(locked.len());
        for (candidate, lock) in locked {
            let outcome = match &all {
                Ok(true) => Ok(Outcome::Deleted),
                // One of them is used, or was written again.
                Ok(false) => self.delete_one(&candidate, &lock).await,
                Err(error) => Err(error.clone()),
            };
            collected.push((candidate, outcome));
            unlocks.push(lock.unlock());
        }
        for error in join_all(unlocks).await.into_iter().filter_map(Result::err) {
            // The driver of the client releases it.
            tracing::debug!(error = %chain(&error), "Unable to release lock");
        }
        collected
    }

    async fn delete_one(&self, candidate: &Candidate, lock: &Lock) -> Result<Outcome, Error> {
        let locked = self.client.locked(lock);
        let Candidate { id, item, users } = candidate;
        let slaves = locked.list(users).await?;
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
    Changed,
    Deleted,
}

/// The id that is the value of a slave key.
pub(super) fn id_of(slave: &KeyValue) -> Option<NumericIdentity> {
    std::str::from_utf8(&slave.value)
        .ok()
        .and_then(|text| text.parse().ok())
}
