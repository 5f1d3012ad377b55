// SPDX-License-Identifier: Apache-2.0

//! A queue of pending writes, for one worker, which may handle many at once: each item is in it once, and failures are
//! retried with back-off.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use skep_kvstore_client::backoff;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Pauses before an item that failed is tried again, while the store is fine: from the first to the last, doubling.
const ITEM_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(60));
/// Pauses of the worker when the store fails.
pub const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(10));

/// How much room an empty queue keeps.
pub const SMALL: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The store fails, so other items would fail as well: the worker pauses.
    Store,
    /// The item: it alone is delayed.
    Item,
}

impl From<&skep_kvstore_client::Error> for Failure {
    fn from(error: &skep_kvstore_client::Error) -> Self {
        if error.is_transient() {
            Self::Store
        } else {
            Self::Item
        }
    }
}

#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<T> {
    ready: VecDeque<T>,
    /// What `ready` contains.
    queued: HashSet<T>,
    /// Failed items by the time at which they are tried again.
    delayed: BTreeSet<(Instant, T)>,
    until: HashMap<T, Instant>,
    /// Failures in a row of an item.
    failures: HashMap<T, u32>,
    /// The items that the worker has taken.
    taken: HashSet<T>,
    /// Which of them were added again meanwhile: they are not taken twice at a time.
    again: HashSet<T>,
    store_failures: u32,
    paused_until: Option<Instant>,
}

impl<T: Clone + Ord + Hash> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + Ord + Hash> Queue<T> {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                delayed: BTreeSet::new(),
                until: HashMap::new(),
                failures: HashMap::new(),
                taken: HashSet::new(),
                again: HashSet::new(),
                store_failures: 0,
                paused_until: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Adds an item. One that is delayed becomes ready; one that is being handled is handled again.
    pub fn push(&self, item: T) {
        self.state.lock().push(item);
        self.changed.notify_one();
    }

    /// How many items are in the queue, with those that are being handled.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() + state.delayed.len() + state.taken.len()
    }

    /// All items of the queue, with those that are being handled.
    pub fn items(&self) -> HashSet<T> {
        let state = self.state.lock();
        state
            .ready
            .iter()
            .chain(state.until.keys())
            .chain(&state.taken)
            .cloned()
            .collect()
    }

    /// Returns to the queue what was taken and has no outcome, because its worker was dropped.
    pub fn restart(&self) {
        self.state.lock().untake();
    }

    /// Takes the next item, for a worker that handles one at a time. The worker reports how it went by [`done`](Self::done)
    /// or [`failed`](Self::failed); an item whose outcome was not reported is taken again.
    pub async fn next(&self) -> T {
        loop {
            self.restart();
            if let Some(item) = self.next_batch(1).await.pop() {
                return item;
            }
        }
    }

    /// Takes the next items, at least one and at most `max`. Others may be taken meanwhile.
    pub async fn next_batch(&self, max: usize) -> Vec<T> {
        loop {
            let changed = self.changed.notified();
            let wake = match self.state.lock().take(Instant::now(), max) {
                Ok(items) => return items,
                Err(wake) => wake,
            };
            match wake {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    pub fn done(&self) {
        let mut state = self.state.lock();
        for item in state.all_taken() {
            state.done(&item);
        }
    }

    /// What was taken is to be handled again.
    pub fn failed(&self, failure: Failure) {
        let mut state = self.state.lock();
        let taken = state.all_taken();
        state.failed(taken, failure);
    }

    /// These of the taken items are handled. Returns those that were not added again meanwhile.
    pub fn done_all(&self, items: Vec<T>) -> Vec<T> {
        let mut state = self.state.lock();
        let handled = items.into_iter().filter(|item| !state.done(item)).collect();
        drop(state);
        self.changed.notify_one();
        handled
    }

    /// These of the taken items are to be handled again.
    pub fn failed_all(&self, items: Vec<T>, failure: Failure) {
        self.state.lock().failed(items, failure);
        self.changed.notify_one();
    }
}

impl<T: Clone + Ord + Hash> State<T> {
    fn contains(&self, item: &T) -> bool {
        self.queued.contains(item) || self.until.contains_key(item)
    }

    fn push(&mut self, item: T) {
        if self.taken.contains(&item) {
            self.again.insert(item);
            return;
        }
        if let Some(at) = self.until.remove(&item) {
            self.delayed.remove(&(at, item.clone()));
        }
        if self.queued.insert(item.clone()) {
            self.ready.push_back(item);
        }
    }

    fn delay(&mut self, item: T, at: Instant) {
        // An item that was pushed meanwhile is ready.
        if !self.contains(&item) {
            self.until.insert(item.clone(), at);
            self.delayed.insert((at, item));
        }
    }

    fn all_taken(&self) -> Vec<T> {
        let mut taken: Vec<T> = self.taken.iter().cloned().collect();
        taken.sort_unstable();
        taken
    }

    fn untake(&mut self) {
        for item in self.all_taken() {
            self.release(&item);
            self.push(item);
        }
    }

    /// An item has an outcome. One that was added again meanwhile is ready; returns whether.
    fn release(&mut self, item: &T) -> bool {
        self.taken.remove(item);
        let is_added = self.again.remove(item);
        if is_added {
            self.push(item.clone());
        }
        is_added
    }

    /// An item is handled; returns whether it was added again meanwhile.
    fn done(&mut self, item: &T) -> bool {
        self.failures.remove(item);
        self.store_failures = 0;
        self.release(item)
    }

    fn failed(&mut self, items: Vec<T>, failure: Failure) {
        if items.is_empty() {
            return;
        }
        let now = Instant::now();
        match failure {
            Failure::Store => {
                // What failed at the same time is one failure.
                if self.paused_until.is_none_or(|at| at <= now) {
                    self.store_failures += 1;
                    let pause = backoff(self.store_failures, STORE_BACKOFF);
                    self.paused_until = Some(now + pause);
                }
                for item in items {
                    self.release(&item);
                    self.push(item);
                }
            }
            Failure::Item => {
                self.store_failures = 0;
                for item in items {
                    if self.release(&item) {
                        continue;
                    }
                    let failures = self.failures.entry(item.clone()).or_default();
                    *failures += 1;
                    let at = now + backoff(*failures, ITEM_BACKOFF);
                    self.delay(item, at);
                }
            }
        }
    }

    /// Takes the next items, or returns when there may be some.
    fn take(&mut self, now: Instant, max: usize) -> Result<Vec<T>, Option<Instant>> {
        if let Some(at) = self.paused_until {
            if at > now {
                return Err(Some(at));
            }
            self.paused_until = None;
        }
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, item)) = self.delayed.pop_first() {
                self.until.remove(&item);
                self.push(item);
            }
        }
        let count = self.ready.len().min(max);
        if count == 0 {
            // A queue that was long once does not stay large.
            self.ready.shrink_to(SMALL);
            self.queued.shrink_to(SMALL);
            self.taken.shrink_to(SMALL);
            return Err(self.delayed.first().map(|(at, _)| *at));
        }
        let items: Vec<T> = self.ready.drain(..count).collect();
        for item in &items {
            self.queued.remove(item);
            self.taken.insert(item.clone());
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_item_is_in_the_queue_once() {
        let queue = Queue::new();
        for item in ["a", "b", "a"] {
            queue.push(item);
        }

        assert_eq!(queue.len(), 2);
        assert_eq!(queue.next().await, "a");
        queue.push("a");
        assert_eq!(
            queue.len(),
            2,
            "what is pushed while it is handled is handled again"
        );
        queue.done();
        assert_eq!(queue.next().await, "b");
        queue.done();
        assert_eq!(queue.next().await, "a");
        queue.done();
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_fails_does_not_delay_others() {
        let queue = Queue::new();
        queue.push("bad");
        for _ in 0..8 {
            assert_eq!(queue.next().await, "bad");
            queue.failed(Failure::Item);
        }
        queue.push("good");
        let started = Instant::now();

        assert_eq!(queue.next().await, "good");
        queue.done();
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(queue.next().await, "bad");
        assert!(started.elapsed() > Duration::from_millis(400));

        queue.failed(Failure::Item);
        queue.push("bad");
        let started = Instant::now();
        assert_eq!(queue.next().await, "bad");
        assert_eq!(started.elapsed(), Duration::ZERO, "a new value is tried at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_delays_everything_up_to_ten_seconds() {
        let queue = Queue::new();
        queue.push("a");
        queue.push("b");
        let mut last = Duration::ZERO;
        for turn in 0..20 {
            let started = Instant::now();
            assert_eq!(queue.next().await, ["a", "b"][turn % 2]);
            last = started.elapsed();
            queue.failed(Failure::Store);
        }

        assert!(
            (Duration::from_secs(7)..=Duration::from_secs(11)).contains(&last),
            "{last:?}"
        );
        queue.next().await;
        queue.done();
        let started = Instant::now();
        queue.next().await;
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_without_an_outcome_is_taken_again() {
        let queue = Queue::new();
        queue.push("a");
        assert_eq!(queue.next().await, "a");

        assert_eq!(queue.items(), HashSet::from(["a"]));
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_is_taken_once_at_a_time() {
        let queue = Queue::new();
        for item in ["a", "b", "c"] {
            queue.push(item);
        }
        assert_eq!(queue.next_batch(2).await, ["a", "b"]);

        queue.push("a");
        assert_eq!(queue.next_batch(2).await, ["c"]);
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.done_all(vec!["b", "c"]), ["b", "c"]);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.done_all(vec!["a"]), [""; 0]);

        assert_eq!(queue.next_batch(2).await, ["a"], "it was added again");
        queue.failed_all(vec!["a"], Failure::Store);
        queue.restart();
        assert_eq!(queue.next_batch(2).await, ["a"]);
        queue.restart();
        assert_eq!(queue.next_batch(2).await, ["a"]);
    }
}
