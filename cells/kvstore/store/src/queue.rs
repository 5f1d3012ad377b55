// SPDX-License-Identifier: Apache-2.0

//! A queue of pending writes, for one worker: each item is in it once, and failures are retried with back-off.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Pauses before an item that failed is tried again, while the store is fine: from the first to the last, doubling.
const ITEM_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(60));
/// Pauses of the worker when the store fails.
const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(10));

/// Why an item failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store fails, so other items would fail as well: the worker pauses.
    Store,
    /// The item: it alone is delayed.
    Item,
}

impl From<&skep_kvstore::Error> for Failure {
    fn from(error: &skep_kvstore::Error) -> Self {
        if error.is_transient() {
            Self::Store
        } else {
            Self::Item
        }
    }
}

/// Items to be handled.
#[derive(Debug)]
pub(crate) struct Queue<T> {
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
    /// The item that the worker has taken.
    taken: Option<T>,
    store_failures: u32,
    paused_until: Option<Instant>,
}

impl<T: Clone + Ord + Hash> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                delayed: BTreeSet::new(),
                until: HashMap::new(),
                failures: HashMap::new(),
                taken: None,
                store_failures: 0,
                paused_until: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Adds an item. One that is delayed becomes ready; one that is being handled is handled again.
    pub(crate) fn push(&self, item: T) {
        self.state.lock().push(item);
        self.changed.notify_one();
    }

    /// How many items are in the queue, with the one that is being handled.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        let is_taken_again = state.taken.as_ref().is_some_and(|item| state.contains(item));
        state.ready.len() + state.delayed.len() + usize::from(state.taken.is_some() && !is_taken_again)
    }

    /// All items of the queue, with the one that is being handled.
    pub(crate) fn items(&self) -> HashSet<T> {
        let state = self.state.lock();
        state
            .ready
            .iter()
            .chain(state.until.keys())
            .chain(&state.taken)
            .cloned()
            .collect()
    }

    /// Takes the next item. The worker reports how it went by [`done`](Self::done) or [`failed`](Self::failed); an item whose
    /// outcome was not reported, because its worker was dropped, is taken again.
    pub(crate) async fn next(&self) -> T {
        self.state.lock().untake();
        loop {
            let changed = self.changed.notified();
            let wake = match self.state.lock().take(Instant::now()) {
                Ok(item) => return item,
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

    /// The taken item is handled.
    pub(crate) fn done(&self) {
        let mut state = self.state.lock();
        if let Some(item) = state.taken.take() {
            state.failures.remove(&item);
        }
        state.store_failures = 0;
    }

    /// The taken item is to be handled again.
    pub(crate) fn failed(&self, failure: Failure) {
        let mut state = self.state.lock();
        let Some(item) = state.taken.take() else {
            return;
        };
        let now = Instant::now();
        match failure {
            Failure::Store => {
                state.store_failures += 1;
                let pause = backoff(state.store_failures, STORE_BACKOFF);
                state.paused_until = Some(now + pause);
                state.push(item);
            }
            Failure::Item => {
                state.store_failures = 0;
                let failures = state.failures.entry(item.clone()).or_default();
                *failures += 1;
                let at = now + backoff(*failures, ITEM_BACKOFF);
                state.delay(item, at);
            }
        }
    }
}

impl<T: Clone + Ord + Hash> State<T> {
    fn contains(&self, item: &T) -> bool {
        self.queued.contains(item) || self.until.contains_key(item)
    }

    fn push(&mut self, item: T) {
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

    fn untake(&mut self) {
        if let Some(item) = self.taken.take() {
            self.push(item);
        }
    }

    /// Takes the next item, or returns when there may be one.
    fn take(&mut self, now: Instant) -> Result<T, Option<Instant>> {
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
        match self.ready.pop_front() {
            Some(item) => {
                self.queued.remove(&item);
                self.taken = Some(item.clone());
                Ok(item)
            }
            None => Err(self.delayed.first().map(|(at, _)| *at)),
        }
    }
}

/// The pause after so many failures in a row. A part is random, so that many programs do not reconnect at once.
pub(crate) fn backoff(failures: u32, (first, last): (Duration, Duration)) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let pause = first.saturating_mul(factor).min(last);
    pause.mul_f64(1.0 - 0.2 * fastrand::f64())
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
}
