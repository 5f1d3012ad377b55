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

#[derive(Debug)]
struct Failed {
    pause: Duration,
    cause: String,
}

/// Keys, each once; one that is taken is not taken again until it is done.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    due: BTreeMap<K, Instant>,
    taken: BTreeSet<K>,
    failed: BTreeMap<K, Failed>,
    paused: Option<Instant>,
    recorder: WorkqueueRecorder,
}

impl<K: Ord + Clone> Queue<K> {
    pub(crate) fn new(recorder: WorkqueueRecorder) -> Self {
        Self {
            due: BTreeMap::new(),
            taken: BTreeSet::new(),
            failed: BTreeMap::new(),
            paused: None,
            recorder,
        }
    }

    /// Adds a key; one that waits for a retry is due at once.
    pub(crate) fn add(&mut self, key: K) {
        if self.due.insert(key, Instant::now()).is_none() {
            self.recorder.added();
        }
        self.recorder.set_depth(self.due.len());
    }

    /// When the next key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let keys = self.due.iter().filter(|(key, _)| !self.taken.contains(key));
        let first = keys.map(|(_, at)| *at).min()?;
        Some(self.paused.map_or(first, |paused| paused.max(first)))
    }

    /// Takes the key that has been due the longest.
    pub(crate) fn take(&mut self) -> Option<(K, Work)> {
        let now = Instant::now();
        if self.next_due()? > now {
            return None;
        }
        self.paused = None;
        let keys = self.due.iter().filter(|(key, _)| !self.taken.contains(key));
        let (key, at) = keys.min_by_key(|(_, at)| **at)?;
        let (key, at) = (key.clone(), *at);
        self.due.remove(&key);
        self.taken.insert(key.clone());
        self.recorder.set_depth(self.due.len());
        Some((key, self.recorder.taken(at.elapsed())))
    }

    /// A taken key is done; it is due again after `again`, if at all.
    pub(crate) fn done(&mut self, key: &K, again: Option<Duration>) {
        self.taken.remove(key);
        self.failed.remove(key);
        if let Some(pause) = again {
            let at = Instant::now() + pause;
            self.due.entry(key.clone()).or_insert(at);
        }
        self.recorder.set_depth(self.due.len());
    }

    pub(crate) fn fail(&mut self, key: K, retry: Retry, cause: String) {
        self.taken.remove(&key);
        let failures = self.failed.get(&key).map(|failed| failed.pause);
        let pause = match retry {
            Retry::Conflict => CONFLICT,
            _ => failures.map_or(BACKOFF.0, |pause| pause * 2).min(BACKOFF.1),
        };
        let at = Instant::now() + pause;
        if retry != Retry::OnChange {
            self.recorder.retried();
            // A change that came meanwhile is not delayed.
            self.due.entry(key.clone()).or_insert(at);
        }
        if retry == Retry::Unanswered {
            self.paused = Some(at);
        }
        if retry != Retry::Conflict {
            self.failed.insert(key, Failed { pause, cause });
        }
        self.recorder.set_depth(self.due.len());
    }

    /// Keys that failed last, and why.
    pub(crate) fn failed(&self) -> impl ExactSizeIterator<Item = (&K, &str)> {
        self.failed.iter().map(|(key, failed)| (key, &*failed.cause))
    }
}
