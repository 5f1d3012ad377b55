// SPDX-License-Identifier: Apache-2.0

//! Keys to reconcile, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use skep_base_metrics::workqueue::{Work, WorkqueueRecorder};
use tokio::time::Instant;

use crate::error::Retry;

/// Pause after a failure: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const CONFLICT: Duration = Duration::from_secs(1);
/// How often in a row a key is reconciled again at once: after that another writer reverts what is written.
const MOST_PASSES: u32 = 12;
const CONTESTED: &str = "what is written is changed again by another writer";

/// Keys with priority are taken before others, and have a limit of concurrency of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Priority,
    Normal,
}

#[derive(Debug)]
struct Failed {
    pause: Duration,
    cause: String,
}

/// Keys, each once; a taken key is not taken again until it is done.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    waiting: BTreeMap<K, (Instant, Lane)>,
    /// Waiting keys that are not taken, by lane.
    due: [BTreeSet<(Instant, K)>; 2],
    taken: BTreeMap<K, Lane>,
    /// Number of taken keys, by lane.
    running: [usize; 2],
    concurrency: usize,
    failed: BTreeMap<K, Failed>,
    passes: BTreeMap<K, u32>,
    paused: Option<Instant>,
    recorder: WorkqueueRecorder,
}

impl<K: Ord + Clone> Queue<K> {
    pub(crate) fn new(concurrency: usize, recorder: WorkqueueRecorder) -> Self {
        Self {
            waiting: BTreeMap::new(),
            due: Default::default(),
            taken: BTreeMap::new(),
            running: [0; 2],
            concurrency,
            failed: BTreeMap::new(),
            passes: BTreeMap::new(),
            paused: None,
            recorder,
        }
    }

    /// Changes how many keys of a lane are taken at the same time.
    pub(crate) fn set_concurrency(&mut self, keys: usize) {
        self.concurrency = keys;
    }

    /// Adds a key that is due after `delay`. A waiting key, also one that waits for a retry, is due no later than before.
    pub(crate) fn add(&mut self, key: K, delay: Duration, lane: Lane) {
        if !self.wait(key, Instant::now() + delay, lane) {
            self.recorder.added();
        }
    }

    /// Returns whether the key was waiting before.
    fn wait(&mut self, key: K, mut at: Instant, lane: Lane) -> bool {
        let mut entry = (at, key);
        let old = self.waiting.get(&entry.1).copied();
        if let Some((due, lane)) = old {
            at = at.min(due);
            entry.0 = due;
            self.due[lane as usize].remove(&entry);
        }
        entry.0 = at;
        self.waiting.insert(entry.1.clone(), (at, lane));
        if !self.taken.contains_key(&entry.1) {
            self.due[lane as usize].insert(entry);
        }
        self.recorder.set_depth(self.waiting.len());
        old.is_some()
    }

    /// The lanes in which another key may be taken.
    fn open(&self) -> impl Iterator<Item = usize> {
        let lanes = [Lane::Priority, Lane::Normal].map(|lane| lane as usize);
        lanes
            .into_iter()
            .filter(|lane| self.running[*lane] < self.concurrency)
    }

    /// When the next key may be taken.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let first = self.open().filter_map(|lane| Some(self.due[lane].first()?.0));
        let first = first.min()?;
        Some(self.paused.map_or(first, |paused| paused.max(first)))
    }

    /// Takes the key that has been due the longest, of those with priority if there are any.
    pub(crate) fn take(&mut self) -> Option<(K, Work)> {
        let now = Instant::now();
        if self.next_due()? > now {
            return None;
        }
        self.paused = None;
        let is_due = |lane: &usize| self.due[*lane].first().is_some_and(|(at, _)| *at <= now);
        let lane = self.open().find(is_due)?;
        let (at, key) = self.due[lane].pop_first()?;
        let (_, lane) = self.waiting.remove(&key)?;
        self.taken.insert(key.clone(), lane);
        self.running[lane as usize] += 1;
        self.recorder.set_depth(self.waiting.len());
        Some((key, self.recorder.taken(at.elapsed())))
    }

    /// A taken key may be taken again. Returns its lane.
    fn release(&mut self, key: &K) -> Lane {
        let lane = self.taken.remove(key);
        if let Some(lane) = lane {
            self.running[lane as usize] -= 1;
        }
        if let Some((at, lane)) = self.waiting.get(key) {
            self.due[*lane as usize].insert((*at, key.clone()));
        }
        lane.unwrap_or(Lane::Normal)
    }

    /// A taken key is done; it is due again after `again`, if at all.
    pub(crate) fn done(&mut self, key: &K, again: Option<Duration>) {
        if again != Some(Duration::ZERO) {
            self.passes.remove(key);
        } else if self.passes.get(key) == Some(&MOST_PASSES) {
            self.passes.remove(key);
            return self.fail(key.clone(), Retry::Backoff, CONTESTED.to_owned());
        } else {
            *self.passes.entry(key.clone()).or_default() += 1;
        }
        let lane = self.release(key);
        self.failed.remove(key);
        if let Some(pause) = again {
            self.add(key.clone(), pause, lane);
        }
    }

    pub(crate) fn fail(&mut self, key: K, retry: Retry, cause: String) {
        let lane = self.release(&key);
        let failures = self.failed.get(&key).map(|failed| failed.pause);
        let pause = match retry {
            Retry::Conflict => CONFLICT,
            _ => failures.map_or(BACKOFF.0, |pause| pause * 2).min(BACKOFF.1),
        };
        let at = Instant::now() + pause;
        if retry != Retry::OnChange {
            self.recorder.retried();
            // A change that came meanwhile is not delayed.
            self.wait(key.clone(), at, lane);
        }
        if retry == Retry::Unanswered {
            self.paused = Some(at);
        }
        if retry != Retry::Conflict {
            self.failed.insert(key, Failed { pause, cause });
        }
    }

    /// Keys that failed last, and why.
    pub(crate) fn failed(&self) -> impl ExactSizeIterator<Item = (&K, &str)> {
        self.failed.iter().map(|(key, failed)| (key, &*failed.cause))
    }
}
