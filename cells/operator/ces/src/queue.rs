// SPDX-License-Identifier: Apache-2.0

//! When which slice is written.

use std::collections::HashMap;
use std::time::Duration;

use skep_base_metrics::workqueue::{Work, WorkqueueRecorder};
use skep_k8s_types::slim::Str;
use tokio::time::Instant;

/// How long a change waits for others of its slice.
const COALESCE: Duration = Duration::from_millis(500);

/// Wait after a failed write; doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(100);

/// Failures in a row after which a slice is reported as failed for good. It is written again all the same.
const TRANSIENT: u32 = 15;

#[derive(Debug)]
struct Item {
    due: Instant,
    since: Instant,
}

/// Slices that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: HashMap<Str, Item>,
    failures: HashMap<Str, u32>,
    taken: HashMap<Str, Work>,
    recorder: WorkqueueRecorder,
}

impl Queue {
    pub(crate) fn new(recorder: WorkqueueRecorder) -> Self {
        Self {
            recorder,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, name: Str) {
        let now = Instant::now();
        let due = now + COALESCE;
        let item = self.items.entry(name).or_insert_with(|| {
            self.recorder.added();
            Item { due, since: now }
        });
        item.due = item.due.min(due);
        self.recorder.set_depth(self.items.len());
    }

    /// A write has failed, returns whether only for now.
    pub(crate) fn retry(&mut self, name: Str) -> bool {
        self.taken.remove(&name);
        let failures = self.failures.entry(name.clone()).or_default();
        let wait = FIRST_RETRY
            .saturating_mul(1 << (*failures).min(7))
            .min(LONGEST_RETRY);
        *failures = failures.saturating_add(1);
        let is_transient = *failures <= TRANSIENT;
        let now = Instant::now();
        let item = self.items.entry(name).or_insert(Item { due: now, since: now });
        item.due = now + wait;
        self.recorder.retried();
        self.recorder.set_depth(self.items.len());
        is_transient
    }

    /// A write has succeeded, or there is nothing to write.
    pub(crate) fn succeeded(&mut self, name: &str) {
        self.taken.remove(name);
        self.failures.remove(name);
    }

    pub(crate) fn failing(&self) -> usize {
        self.failures.len()
    }

    /// The slice that is due first, of those selected; it is removed if it is due now.
    pub(crate) fn next(&mut self, selected: impl Fn(&Str) -> bool) -> Next {
        let items = self.items.iter().filter(|(name, _)| selected(name));
        let Some((name, item)) = items.min_by_key(|(name, item)| (item.due, *name)) else {
            return Next::Nothing;
        };
        let now = Instant::now();
        if item.due > now {
            return Next::At(item.due);
        }
        let (name, since) = (name.clone(), item.since);
        let work = self.recorder.taken(now - item.due);
        self.items.remove(&name);
        self.taken.insert(name.clone(), work);
        self.recorder.set_depth(self.items.len());
        Next::Due(name, since)
    }
}

/// What is to be written next.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    Nothing,
    At(Instant),
    /// This slice, which has waited since then.
    Due(Str, Instant),
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn next(queue: &mut Queue) -> Option<Str> {
        match queue.next(|_| true) {
            Next::Due(name, _) => Some(name),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_wait_for_others_and_failures_longer_each_time() {
        let mut queue = Queue::default();
        let name = Str::new("ces-a");

        queue.add(name.clone());
        advance(Duration::from_millis(499)).await;
        queue.add(name.clone());
        assert_eq!(next(&mut queue), None);
        advance(Duration::from_millis(1)).await;
        assert_eq!(next(&mut queue), Some(name.clone()));
        assert_eq!(next(&mut queue), None);

        let mut waits = Vec::new();
        for _ in 0..9 {
            queue.retry(name.clone());
            let Next::At(due) = queue.next(|_| true) else {
                panic!("it waits")
            };
            waits.push((due - Instant::now()).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        queue.add(name.clone());
        advance(Duration::from_millis(500)).await;
        assert_eq!(
            next(&mut queue),
            Some(name),
            "a change does not wait for the retry"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn sixteenth_failure_is_no_transient_one() {
        let mut queue = Queue::default();

        let transient: Vec<bool> = (0..17).map(|_| queue.retry(Str::new("ces-a"))).collect();

        assert_eq!(transient.iter().filter(|transient| **transient).count(), 15);
        assert_eq!(queue.failing(), 1);
        queue.succeeded("ces-a");
        assert_eq!(queue.failing(), 0);
        assert!(queue.retry(Str::new("ces-a")));
    }
}
