// SPDX-License-Identifier: Apache-2.0

//! What has to be reconciled: keys, each with its own backoff after failures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use skep_base_metrics::workqueue::{Work, WorkqueueRecorder};
use tokio::time::Instant;

/// Wait after a failure; doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Passes over a key in a row that changed something, before it counts as a failure: another writer reverts each of them.
const MOST_PASSES: u32 = 12;

#[derive(Debug)]
pub(crate) struct Queue<K> {
    /// How long a key waits, for further changes of it.
    delay: Duration,
    /// Keys that wait, each with the time when it is due.
    waiting: BTreeMap<K, Instant>,
    due: BTreeSet<(Instant, K)>,
    failed: BTreeMap<K, Failure>,
    passes: BTreeMap<K, u32>,
    taken: BTreeMap<K, Work>,
    recorder: WorkqueueRecorder,
}

#[derive(Debug)]
struct Failure {
    attempts: u32,
    /// Not while the key is taken.
    retry: Option<Instant>,
    error: String,
}

impl<K: Ord + Clone + Display> Queue<K> {
    pub(crate) fn new(delay: Duration, recorder: WorkqueueRecorder) -> Self {
        Self {
            delay,
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            failed: BTreeMap::new(),
            passes: BTreeMap::new(),
            taken: BTreeMap::new(),
            recorder,
        }
    }

    /// Adds a key. One that has failed waits for its retry.
    pub(crate) fn add(&mut self, key: K, now: Instant) {
        if !self.failed.contains_key(&key) {
            self.wait(key, now + self.delay);
        }
    }

    fn wait(&mut self, key: K, until: Instant) {
        if !self.waiting.contains_key(&key) {
            self.due.insert((until, key.clone()));
            self.waiting.insert(key, until);
            self.recorder.added();
            self.record_depth();
        }
    }

    fn record_depth(&self) {
        let retries = self.failed.values().filter(|failure| failure.retry.is_some());
        self.recorder.set_depth(self.waiting.len() + retries.count());
    }

    /// Takes a key that is due. It must be reported [`settled`](Self::settled), [`changed`](Self::changed) or
    /// [`failed`](Self::failed).
    pub(crate) fn take(&mut self, now: Instant) -> Option<K> {
        let (key, due) = self.take_due(now)?;
        let work = self.recorder.taken(now - due);
        self.taken.insert(key.clone(), work);
        self.record_depth();
        Some(key)
    }

    /// A key that is due, and since when.
    fn take_due(&mut self, now: Instant) -> Option<(K, Instant)> {
        let due = self
            .failed
            .iter_mut()
            .find_map(|(key, failure)| Some((key, failure.retry.take_if(|retry| *retry <= now)?)));
        match due {
            Some((key, retry)) => Some((key.clone(), retry)),
            None => {
                let first = self.due.first().filter(|(at, _)| *at <= now)?.clone();
                self.due.remove(&first);
                self.waiting.remove(&first.1);
                Some((first.1, first.0))
            }
        }
    }

    /// When a key is due, if nothing happens before.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        let retries = self.failed.values().filter_map(|failure| failure.retry);
        retries.chain(due).min()
    }

    pub(crate) fn settled(&mut self, key: &K) {
        self.taken.remove(key);
        self.failed.remove(key);
        self.passes.remove(key);
    }

    /// A key was changed: it is looked at again.
    pub(crate) fn changed(&mut self, key: K, now: Instant) {
        self.taken.remove(&key);
        let passes = self.passes.entry(key.clone()).or_default();
        *passes += 1;
        if *passes > MOST_PASSES {
            self.passes.remove(&key);
            let error = "what is written is changed again by another writer".to_owned();
            return self.failed(key, error, now);
        }
        self.failed.remove(&key);
        self.wait(key, now);
    }

    /// A key could not be reconciled.
    pub(crate) fn failed(&mut self, key: K, error: String, now: Instant) {
        self.taken.remove(&key);
        if let Some(at) = self.waiting.remove(&key) {
            self.due.remove(&(at, key.clone()));
        }
        let attempts = self.failed.get(&key).map_or(0, |failure| failure.attempts);
        let wait = FIRST_RETRY
            .saturating_mul(1 << attempts.min(6))
            .min(LONGEST_RETRY);
        let failure = Failure {
            attempts: attempts.saturating_add(1),
            retry: Some(now + wait),
            error,
        };
        self.failed.insert(key, failure);
        self.recorder.retried();
        self.record_depth();
    }

    /// Keys that failed, each with its last error.
    pub(crate) fn errors(&self) -> impl Iterator<Item = String> {
        self.failed
            .iter()
            .map(|(key, failure)| format!("{key}: {}", failure.error))
    }
}

#[cfg(test)]
mod tests {
    use skep_base_metrics::workqueue::WorkqueueMetrics;
    use skep_base_metrics::{MetricSet, Registry, exposition};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_delays_its_key_alone() {
        let start = Instant::now();
        let mut queue = Queue::new(Duration::ZERO, WorkqueueRecorder::default());
        queue.add("a", start);
        queue.add("b", start);
        assert_eq!((queue.take(start), queue.take(start)), (Some("a"), Some("b")));

        queue.failed("a", "denied".to_owned(), start);
        queue.add("a", start);
        queue.add("b", start);

        assert_eq!((queue.take(start), queue.take(start)), (Some("b"), None));
        assert_eq!(queue.next(), Some(start + FIRST_RETRY));
        assert_eq!(queue.take(start + FIRST_RETRY), Some("a"));
        assert_eq!(queue.take(start + FIRST_RETRY), None, "it is taken");
        queue.failed("a", "denied".to_owned(), start + FIRST_RETRY);
        assert_eq!(queue.next(), Some(start + 3 * FIRST_RETRY));
        assert_eq!(queue.errors().collect::<Vec<_>>(), ["a: denied"]);
        queue.settled(&"a");
        assert_eq!(queue.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_counted_and_measured() {
        let metrics = WorkqueueMetrics::default();
        let registry = Registry::new(metrics.metrics(), &[]).unwrap();
        let shows = |series: &str| {
            let text = exposition(&registry);
            let line = series.replace('@', "{queue_name=\"mcsapi\"}");
            assert!(
                text.contains(&format!("\ncilium_workqueue_{line}\n")),
                "{line}\n{text}"
            );
        };
        let start = Instant::now();
        let mut queue = Queue::new(Duration::ZERO, metrics.queue("mcsapi"));
        for key in ["a", "b", "a"] {
            queue.add(key, start);
        }
        shows("depth@ 2");
        shows("adds_total@ 2");

        let later = start + Duration::from_secs(3);
        queue.take(later);
        queue.take(later);
        tokio::time::advance(Duration::from_secs(1)).await;
        shows("depth@ 0");
        shows("queue_duration_seconds_sum@ 6");
        shows("unfinished_work_seconds@ 2");
        queue.failed("a", "denied".to_owned(), later);
        queue.settled(&"b");

        shows("depth@ 1");
        shows("retries_total@ 1");
        shows("work_duration_seconds_sum@ 2");
        shows("unfinished_work_seconds@ 0");
        queue.take(later + FIRST_RETRY);
        shows("depth@ 0");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_never_settles_is_a_failure() {
        let now = Instant::now();
        let mut queue = Queue::new(Duration::ZERO, WorkqueueRecorder::default());
        queue.add("a", now);
        let mut passes = 0;
        while let Some(key) = queue.take(now) {
            queue.changed(key, now);
            passes += 1;
        }

        assert_eq!(passes, MOST_PASSES + 1);
        assert!(queue.errors().next().unwrap().contains("another writer"));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_within_the_delay_are_one() {
        let start = Instant::now();
        let delay = Duration::from_millis(500);
        let mut queue = Queue::new(delay, WorkqueueRecorder::default());
        queue.add("a", start);
        queue.add("a", start + delay / 2);

        assert_eq!(queue.take(start + delay / 2), None);
        assert_eq!(queue.next(), Some(start + delay));
        assert_eq!(queue.take(start + delay), Some("a"));
        assert_eq!(queue.take(start + 2 * delay), None);
    }
}
