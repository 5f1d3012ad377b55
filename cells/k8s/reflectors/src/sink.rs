// SPDX-License-Identifier: Apache-2.0

//! Watched objects → a writer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use hive::{Health, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_k8s_client::{ApiError, Backoff, ListerWatcher, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::{ObjectKey, Resource};
use statedb::WriteTxn;

use crate::batch::{Batch, Pending};

/// Objects in one transaction, unless they come from one list.
const LARGEST_BATCH: usize = 10_000;

/// Most rejected objects that health names.
const NAMED: usize = 10;

/// The state of an object.
#[derive(Debug)]
pub enum State<'a, T> {
    /// It is new, or has changed.
    Applied(&'a Arc<T>),
    /// It is gone; with its last state, if that was valid.
    Deleted(Option<&'a Arc<T>>),
}

/// Why an object, or a part of it, cannot be used. It names the object.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(String);

impl Rejected {
    /// The text of an error and its causes.
    pub fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self(hive::error_chain(error).to_string())
    }

    pub(crate) fn text(text: String) -> Self {
        Self(text)
    }
}

/// Where the objects of a source go: the rows of a table, or a writer that several sources share.
///
/// What it had of an object that becomes invalid stays: it is not told.
pub trait Sink<T>: Send + 'static {
    /// Begins the transaction of a batch.
    fn write(&mut self) -> WriteTxn;

    /// Takes the new state of an object. Returns why the object, or a part of it, is not used: health names it until its next
    /// change.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of the table: the job ends.
    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, T>,
    ) -> Result<Option<Rejected>, statedb::Error>;

    /// Returns the objects that it has: those that a list does not have are deleted.
    fn objects(&self) -> Vec<ObjectKey>;

    /// All objects that exist were applied: the source is complete. Called after each list.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error>;

    /// What it has, for health: `7 identities`.
    fn summary(&self) -> String;

    /// [`summary`](Self::summary), with what the last batch did.
    fn report(&self) -> String {
        self.summary()
    }

    /// The source starts to deliver.
    fn begin(&mut self) {}

    /// The source has ended.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    fn end(&mut self) -> Result<(), statedb::Error> {
        Ok(())
    }
}

type Ready = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Passes the objects of a source on to a [`Sink`]: one change is one transaction when little happens, thousands share one under
/// load, a list is one. Reports health: connection, rejected objects.
pub struct Feed<T, S> {
    job: String,
    source: Arc<dyn ListerWatcher<T>>,
    /// Kept over restarts of the job, as what it has written is.
    state: Mutex<Progress<S>>,
    is_optional: bool,
    ready: Option<Ready>,
    backoff: Backoff,
    observe: Option<Box<dyn Fn(&'static str) + Send + Sync>>,
}

struct Progress<S> {
    sink: S,
    /// Objects that are not used, in whole or in part, and why.
    rejected: BTreeMap<ObjectKey, String>,
}

impl<T: Resource, S: Sink<T>> Feed<T, S> {
    /// A feed whose job has this name.
    pub fn new(job: &str, source: Arc<dyn ListerWatcher<T>>, sink: S) -> Self {
        Self {
            job: job.to_owned(),
            source,
            state: Mutex::new(Progress {
                sink,
                rejected: BTreeMap::new(),
            }),
            is_optional: false,
            ready: None,
            backoff: Backoff::default(),
            observe: None,
        }
    }

    /// While the kind is not registered, there are no objects of it: the source is complete.
    #[must_use]
    pub fn optional_kind(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Waits before the first list.
    #[must_use]
    pub fn after<F>(mut self, ready: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ready = Some(Box::new(move || Box::pin(ready())));
        self
    }

    /// Sets the backoff after failures.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Called with `upsert`, `delete`, `replace` or `invalid` for each event, to count them.
    #[must_use]
    pub fn observe(mut self, observe: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        self.observe = Some(Box::new(observe));
        self
    }

    /// Starts the job.
    ///
    /// # Errors
    ///
    /// If the module is stopping.
    pub fn spawn(self, jobs: &Jobs) -> Result<(), SpawnError> {
        let name = self.job.clone();
        let feed = Arc::new(self);
        jobs.spawn(Job::once(name, move |cx: JobCtx| {
            let feed = feed.clone();
            async move { feed.run(cx).await }
        }))
    }

    async fn run(&self, cx: JobCtx) -> Result<(), statedb::Error> {
        self.state.lock().sink.begin();
        let result = cx.until_cancelled(self.watch(&cx.health)).await;
        self.state.lock().sink.end()?;
        result.unwrap_or(Ok(()))
    }

    async fn watch(&self, health: &Health) -> Result<(), statedb::Error> {
        if let Some(ready) = &self.ready {
            ready().await;
        }
        let mut chunks = watcher(self.source.clone(), self.backoff).ready_chunks(LARGEST_BATCH);
        let mut failing: Option<Arc<ApiError>> = None;
        while let Some(chunk) = chunks.next().await {
            let mut batch = Batch::default();
            for event in chunk {
                self.count(&event);
                match batch.add(event) {
                    Some(WatcherEvent::Failing(error)) => failing = Some(error),
                    Some(WatcherEvent::Working) => failing = None,
                    _ => {}
                }
            }
            let mut state = self.state.lock();
            if !batch.is_empty() {
                failing = None;
                state.commit(batch)?;
            }
            let is_missing = |error: &Arc<ApiError>| self.is_optional && error.is_not_found();
            if failing.as_ref().is_some_and(is_missing) {
                let mut txn = state.sink.write();
                state.sink.listed(&mut txn)?;
                txn.commit();
                health.ok(format!("{} is not registered", T::kind().kind));
                continue;
            }
            state.report(health, failing.as_deref());
        }
        Ok(())
    }

    fn count(&self, event: &WatcherEvent<T>) {
        let Some(observe) = &self.observe else {
            return;
        };
        match event {
            WatcherEvent::Replaced { .. } => observe("replace"),
            WatcherEvent::Object(ObjectEvent::Applied(_)) => observe("upsert"),
            WatcherEvent::Object(ObjectEvent::Deleted(_, Some(_))) => observe("delete"),
            WatcherEvent::Object(_) => observe("invalid"),
            WatcherEvent::InitPage { .. }
            | WatcherEvent::InitDone
            | WatcherEvent::Failing(_)
            | WatcherEvent::Working => {}
        }
    }
}

impl<S> Progress<S> {
    /// Makes the changes of a batch visible, all at once.
    fn commit<T: Resource>(&mut self, batch: Batch<T>) -> Result<(), statedb::Error>
    where
        S: Sink<T>,
    {
        let mut txn = self.sink.write();
        let is_list = batch.is_list();
        if is_list {
            let listed: HashSet<&ObjectKey> = batch.keys().collect();
            self.rejected.retain(|key, _| listed.contains(key));
            for gone in self.sink.objects().iter().filter(|key| !listed.contains(key)) {
                self.sink.apply(&mut txn, gone, State::Deleted(None))?;
            }
        }
        for (key, Pending { last, invalid }) in batch.into_changes() {
            let rejected = match last {
                Some(last) => {
                    let state = match &last {
                        Ok(object) => State::Applied(object),
                        Err(object) => State::Deleted(object.as_ref()),
                    };
                    let rejected = self.sink.apply(&mut txn, &key, state)?;
                    rejected.map(|rejected| rejected.0)
                }
                None => None,
            };
            // Decoding errors name the object themselves.
            match rejected.or_else(|| invalid.map(|error| error.to_string())) {
                None => self.rejected.remove(&key),
                Some(reason) => self.rejected.insert(key, reason),
            };
        }
        if is_list {
            self.sink.listed(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }

    fn report<T>(&self, health: &Health, failing: Option<&ApiError>)
    where
        S: Sink<T>,
    {
        if let Some(error) = failing {
            health.degraded("Waiting for the Kubernetes API server", error);
        } else if self.rejected.is_empty() {
            health.ok(self.sink.report());
        } else {
            let mut text: Vec<String> = self.rejected.values().take(NAMED).cloned().collect();
            if self.rejected.len() > NAMED {
                text.push(format!("and {} more", self.rejected.len() - NAMED));
            }
            let message = format!(
                "{} objects rejected, {}",
                self.rejected.len(),
                self.sink.summary()
            );
            health.degraded(message, &Rejected(text.join("; ")));
        }
    }
}
