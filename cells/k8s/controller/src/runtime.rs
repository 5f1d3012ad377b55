// SPDX-License-Identifier: Apache-2.0

//! The loop of a controller.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use hive::{Health, Job, JobCtx, OnceJob};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{Api, Backoff, Client, ListerWatcher, ObjectEvent, WatchState, WatcherEvent, watcher};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{ObjectKey, Resource};
use tokio::time::{Instant, sleep_until};

use crate::error::Failure;
use crate::queue::{Lane, Queue};
use crate::reconciler::{Reconciler, Watches};
use crate::store::Store;
use crate::switch::Switch;

/// Keys, and other faults, that health names at most.
const NAMED: usize = 10;
/// Time between two reports of health while keys are reconciled: a report looks at all of them.
const REPORT: Duration = Duration::from_secs(1);
/// Keys that are reconciled at the same time, unless set otherwise.
const CONCURRENCY: usize = 4;
/// A limit of the rate is looked at again after this time, however low it is.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

type Apply<R> = Box<dyn FnOnce(&mut R) -> Vec<<R as Reconciler>::Key> + Send>;
type Resync<R> = (Duration, fn(&R) -> Vec<<R as Reconciler>::Key>);
type State<R> = (Str, fn(&mut R) -> &WatchState);
type Done<R> = (
    <R as Reconciler>::Key,
    Result<<R as Reconciler>::Output, <R as Reconciler>::Error>,
);

/// A job that runs a controller, which is made again with each start.
pub fn job<R: Reconciler>(
    name: &'static str,
    controller: impl Fn() -> Controller<R> + Send + Sync + 'static,
) -> OnceJob {
    Job::once(name, move |cx: JobCtx| {
        let controller = controller();
        async move {
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run(&cx.health)).await;
        }
    })
}

/// A reconciler, its sources and its queue.
pub struct Controller<R: Reconciler> {
    reconciler: R,
    sources: SelectAll<BoxStream<'static, Apply<R>>>,
    states: Vec<State<R>>,
    listed: Vec<fn(&mut R) -> bool>,
    switches: Vec<Switch<R>>,
    /// What is waited for, beside the lists of sources.
    waits: FuturesUnordered<BoxFuture<'static, ()>>,
    is_synced: bool,
    queue: Queue<R::Key>,
    resync: Option<Resync<R>>,
}

impl<R: Reconciler> Controller<R> {
    /// A controller without sources; `recorder` has the metrics of its queue.
    pub fn new(reconciler: R, recorder: WorkqueueRecorder) -> Self {
        Self {
            reconciler,
            sources: stream::select_all([stream::pending().boxed()]),
            states: Vec::new(),
            listed: Vec::new(),
            switches: Vec::new(),
            waits: FuturesUnordered::new(),
            is_synced: false,
            queue: Queue::new(CONCURRENCY, recorder),
            resync: None,
        }
    }

    #[must_use]
    pub fn watch<T: Resource>(mut self, source: Arc<dyn ListerWatcher<T>>) -> Self
    where
        R: Watches<T>,
    {
        let events = watcher(source, Backoff::default());
        self.listed
            .push(|reconciler| Watches::<T>::store(reconciler).watch().is_listed());
        self.events(events)
    }

    /// Watches objects while `is_wanted` holds, and forgets them afterwards. No key is reconciled while they are wanted and not
    /// listed.
    #[must_use]
    pub fn watch_while<T: Resource>(
        mut self,
        source: Arc<dyn ListerWatcher<T>>,
        is_wanted: fn(&R) -> bool,
    ) -> Self
    where
        R: Watches<T>,
    {
        let is_listed = |reconciler: &mut R| Watches::<T>::store(reconciler).watch().is_listed();
        let forget = |reconciler: &mut R| *Watches::<T>::store(reconciler) = Store::default();
        let switch = Switch::new(is_wanted, is_listed, forget);
        let events = switch.events(source);
        self.switches.push(switch);
        self.events(events)
    }

    fn events<T: Resource>(mut self, events: impl Stream<Item = WatcherEvent<T>> + Send + 'static) -> Self
    where
        R: Watches<T>,
    {
        let state: fn(&mut R) -> &WatchState = |reconciler| Watches::<T>::store(reconciler).watch();
        self.states.push((T::kind().plural, state));
        self.source(events, |reconciler, event| {
            let invalid: Vec<ObjectKey> = match &event {
                WatcherEvent::Replaced { invalid, .. } => {
                    invalid.iter().map(|error| (*error.object).clone()).collect()
                }
                WatcherEvent::Object(ObjectEvent::Invalid(error)) => vec![(*error.object).clone()],
                _ => Vec::new(),
            };
            let changes = Watches::<T>::store(reconciler).apply(event);
            let keys = changes.iter().flat_map(|change| reconciler.affected(change));
            let mut keys: Vec<R::Key> = keys.collect();
            keys.extend(
                invalid
                    .iter()
                    .flat_map(|key| Watches::<T>::invalid(reconciler, key)),
            );
            keys
        })
    }

    /// Watches all objects of a kind, in all namespaces.
    #[must_use]
    pub fn watch_all<T: Resource>(self, client: &Arc<dyn Client>) -> Self
    where
        R: Watches<T>,
    {
        self.watch(Arc::new(Api::<T>::all(client.clone())))
    }

    /// Takes in other events, such as the changes of a table; `affected` returns the keys that one affects.
    #[must_use]
    pub fn source<S>(mut self, events: S, affected: fn(&mut R, S::Item) -> Vec<R::Key>) -> Self
    where
        S: Stream<Item: Send + 'static> + Send + 'static,
    {
        let events =
            events.map(move |event| -> Apply<R> { Box::new(move |reconciler| affected(reconciler, event)) });
        self.sources.push(events.boxed());
        self
    }

    /// Reconciles nothing before `ready` has ended, such as the initialization of a table.
    #[must_use]
    pub fn wait_for(self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        self.waits.push(ready.boxed());
        self
    }

    /// Reconciles at most so many keys at the same time.
    #[must_use]
    pub fn concurrency(mut self, keys: usize) -> Self {
        self.queue.set_concurrency(keys);
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
            let mut is_listed = true;
            for switch in &self.switches {
                is_listed &= switch.turn(&mut self.reconciler);
            }
            let due = is_listed.then(|| self.next_due()).flatten();
            let is_idle = running.is_empty() && due.is_none_or(|due| due > Instant::now());
            if is_idle || reported.is_none_or(|at| at.elapsed() >= REPORT) {
                self.report(health);
                reported = Some(Instant::now());
            }
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
                Some(()) = self.waits.next(), if !self.waits.is_empty() => {}
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
                        self.add(keys(&self.reconciler));
                    }
                }
            }
        }
    }

    /// When the next key is due, if all sources are complete.
    fn next_due(&mut self) -> Option<Instant> {
        if !self.is_synced {
            if !self.is_complete() {
                return None;
            }
            self.is_synced = true;
            let keys = self.reconciler.synced();
            self.add(keys);
        }
        let wait = self.reconciler.wait().min(LONGEST_WAIT);
        Some(self.queue.next_due()?.max(Instant::now() + wait))
    }

    fn is_complete(&mut self) -> bool {
        let reconciler = &mut self.reconciler;
        self.waits.is_empty() && self.listed.iter().all(|is_listed| is_listed(reconciler))
    }

    fn next_resync(&self) -> Option<Instant> {
        let (every, _) = self.resync?;
        Some(Instant::now() + every.mul_f64(1.0 - 0.2 * fastrand::f64()))
    }

    fn apply(&mut self, apply: Apply<R>) {
        let keys = apply(&mut self.reconciler);
        self.add(keys);
    }

    fn add(&mut self, keys: Vec<R::Key>) {
        for key in keys {
            let lane = match self.reconciler.has_priority(&key) {
                true => Lane::Priority,
                false => Lane::Normal,
            };
            let delay = self.reconciler.delay(&key);
            self.queue.add(key, delay, lane);
        }
    }

    fn finish(&mut self, key: R::Key, result: Result<R::Output, R::Error>) {
        match self.reconciler.finished(&key, result) {
            Ok(again) => self.queue.done(&key, again),
            Err(error) => {
                let cause = hive::error_chain(&error);
                tracing::warn!(%key, error = %cause, "{} {}", R::KEYS, R::FAILED);
                self.queue.fail(key, error.retry(), cause);
            }
        }
        let keys = self.reconciler.affected_by_results();
        self.add(keys);
    }

    fn report(&mut self, health: &Health) {
        let mut invalid = Vec::new();
        for (kind, state) in &self.states {
            let state = state(&mut self.reconciler);
            if let Some(error) = state.failing() {
                let error = format!("cannot watch {kind}: {}", hive::error_chain(&**error));
                health.degraded("Waiting for the Kubernetes API server", &Faults(error));
                return;
            }
            invalid.extend(state.invalid().values().map(ToString::to_string));
        }
        if !self.is_synced {
            return;
        }
        self.reconciler.record();
        let failed = self.queue.failed();
        let summary = self.reconciler.summary(failed.len());
        let mut faults = self.reconciler.faults();
        faults.truncate(NAMED);
        faults.extend(failed.take(NAMED).map(|(key, cause)| format!("`{key}`: {cause}")));
        let count = invalid.len();
        invalid.truncate(NAMED);
        if count > 0 {
            let named = invalid.join("; ");
            faults.push(format!("{count} objects cannot be decoded, such as {named}"));
        }
        match faults.is_empty() {
            true => health.ok(summary),
            false => health.degraded(summary, &Faults(faults.join("; "))),
        }
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
