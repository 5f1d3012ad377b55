// SPDX-License-Identifier: Apache-2.0

//! The loop of a controller.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt};
use hive::Health;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{Api, Backoff, Client, ListerWatcher, WatchState, watcher};
use skep_k8s_types::Resource;
use tokio::time::{Instant, sleep_until};

use crate::error::Failure;
use crate::queue::Queue;
use crate::store::{Change, Store};

const NAMED: usize = 10;
/// Time between two reports of health while keys are reconciled: a report looks at all of them.
const REPORT: Duration = Duration::from_secs(1);
/// Keys that are reconciled at the same time, unless set otherwise.
const CONCURRENCY: usize = 4;

/// The requests for one key. Returns after which time the key is to be reconciled again, if at all.
pub type Work<E> = BoxFuture<'static, Result<Option<Duration>, E>>;

/// What a controller does about a key.
pub trait Reconciler: Send + 'static {
    /// What is reconciled: mostly the key of an object.
    type Key: Ord + Clone + Display + Send + Sync + 'static;
    type Error: Failure;
    /// What keys are, in the plural, for health: `Secrets`.
    const KEYS: &'static str;
    /// What is wrong with keys that failed, for health: `are not copied`.
    const FAILED: &'static str;

    /// Computes what must be written for a key. Called again when a change affects it: a key without work is done, one that
    /// is not wanted any more, too.
    fn reconcile(&mut self, key: &Self::Key) -> Work<Self::Error>;

    /// Number of keys that there should be.
    fn total(&self) -> usize;

    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a reconciler does with changes of a kind of objects.
pub trait Watches<T: Resource>: Reconciler {
    fn store(&mut self) -> &mut Store<T>;

    /// Returns the keys that a change affects. The store has the new state already.
    fn affected(&mut self, change: &Change<T>) -> Vec<Self::Key>;
}

type Apply<R> = Box<dyn FnOnce(&mut R) -> Vec<<R as Reconciler>::Key> + Send>;
type Resync<R> = (Duration, fn(&R) -> Vec<<R as Reconciler>::Key>);
type State<R> = fn(&mut R) -> &WatchState;
type Done<R> = (
    <R as Reconciler>::Key,
    Result<Option<Duration>, <R as Reconciler>::Error>,
);

/// A reconciler, its sources and its queue.
pub struct Controller<R: Reconciler> {
    reconciler: R,
    sources: SelectAll<BoxStream<'static, Apply<R>>>,
    states: Vec<State<R>>,
    queue: Queue<R::Key>,
    concurrency: usize,
    resync: Option<Resync<R>>,
}

impl<R: Reconciler> Controller<R> {
    /// A controller without sources; `recorder` has the metrics of its queue.
    pub fn new(reconciler: R, recorder: WorkqueueRecorder) -> Self {
        Self {
            reconciler,
            sources: SelectAll::new(),
            states: Vec::new(),
            queue: Queue::new(recorder),
            concurrency: CONCURRENCY,
            resync: None,
        }
    }

    #[must_use]
    pub fn watch<T: Resource>(mut self, source: Arc<dyn ListerWatcher<T>>) -> Self
    where
        R: Watches<T>,
    {
        let events = watcher(source, Backoff::default()).map(|event| -> Apply<R> {
            Box::new(|reconciler| {
                let changes = Watches::<T>::store(reconciler).apply(event);
                let keys = changes.iter().flat_map(|change| reconciler.affected(change));
                keys.collect()
            })
        });
        self.sources.push(events.boxed());
        self.states
            .push(|reconciler| Watches::<T>::store(reconciler).watch());
        self
    }

    /// Watches all objects of a kind, in all namespaces.
    #[must_use]
    pub fn watch_all<T: Resource>(self, client: &Arc<dyn Client>) -> Self
    where
        R: Watches<T>,
    {
        self.watch(Arc::new(Api::<T>::all(client.clone())))
    }

    /// Reconciles at most so many keys at the same time.
    #[must_use]
    pub fn concurrency(mut self, keys: usize) -> Self {
        self.concurrency = keys;
        self
    }

    /// Reconciles all keys again after this time, a fifth less at least.
    #[must_use]
    pub fn resync(mut self, every: Duration, keys: fn(&R) -> Vec<R::Key>) -> Self {
        self.resync = Some((every, keys));
        self
    }

    /// Runs without end; drop the future to stop.
    pub async fn run(mut self, health: &Health) {
        let mut running: FuturesUnordered<BoxFuture<'static, Done<R>>> = FuturesUnordered::new();
        let mut resync = self.next_resync();
        let mut reported: Option<Instant> = None;
        loop {
            let is_listed = self.is_listed();
            let has_room = is_listed && running.len() < self.concurrency;
            let due = self.queue.next_due().filter(|_| has_room);
            // Watchers never end.
            tokio::select! {
                biased;
                Some(apply) = self.sources.next() => {
                    self.apply(apply);
                    // One round for all that has happened.
                    while let Some(Some(apply)) = self.sources.next().now_or_never() {
                        self.apply(apply);
                    }
                }
                Some((key, result)) = running.next(), if !running.is_empty() => self.finish(key, result),
                () = at(due), if due.is_some() => {
                    if let Some((key, work)) = self.queue.take() {
                        let requests = self.reconciler.reconcile(&key);
                        running.push(Box::pin(async move {
                            let result = requests.await;
                            drop(work);
                            (key, result)
                        }));
                    }
                }
                () = at(resync), if resync.is_some() => {
                    resync = self.next_resync();
                    if let Some((_, keys)) = self.resync {
                        keys(&self.reconciler).into_iter().for_each(|key| self.queue.add(key));
                    }
                }
            }
            if running.is_empty() || reported.is_none_or(|at| at.elapsed() >= REPORT) {
                self.report(health);
                reported = Some(Instant::now());
            }
        }
    }

    fn is_listed(&mut self) -> bool {
        let reconciler = &mut self.reconciler;
        self.states.iter().all(|state| state(reconciler).is_listed())
    }

    fn next_resync(&self) -> Option<Instant> {
        let (every, _) = self.resync?;
        Some(Instant::now() + every.mul_f64(1.0 - 0.2 * fastrand::f64()))
    }

    fn apply(&mut self, apply: Apply<R>) {
        let keys = apply(&mut self.reconciler);
        keys.into_iter().for_each(|key| self.queue.add(key));
    }

    fn finish(&mut self, key: R::Key, result: Result<Option<Duration>, R::Error>) {
        match result {
            Ok(again) => self.queue.done(&key, again),
            Err(error) => {
                let cause = hive::error_chain(&error);
                tracing::warn!(%key, error = %cause, "{} {}", R::KEYS, R::FAILED);
                self.queue.fail(key, error.retry(), cause);
            }
        }
    }

    fn report(&mut self, health: &Health) {
        let mut invalid = Vec::new();
        for state in &self.states {
            let state = state(&mut self.reconciler);
            if let Some(error) = state.failing() {
                health.degraded("Waiting for the Kubernetes API server", &**error);
                return;
            }
            invalid.extend(state.invalid().values().map(ToString::to_string));
        }
        if !self.is_listed() {
            return;
        }
        let total = self.reconciler.total();
        let failed = self.queue.failed();
        let count = failed.len();
        let failed = failed.map(|(key, cause)| format!("`{key}`: {cause}"));
        let mut faults: Vec<String> = failed.chain(self.reconciler.faults()).chain(invalid).collect();
        if faults.is_empty() {
            health.ok(format!("{total} {}", R::KEYS));
            return;
        }
        faults.truncate(NAMED);
        let message = format!("{count} of {total} {} {}", R::KEYS, R::FAILED);
        health.degraded(message, &Faults(faults.join("; ")));
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Faults(String);

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
