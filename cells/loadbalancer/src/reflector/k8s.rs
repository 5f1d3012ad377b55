// SPDX-License-Identifier: Apache-2.0

//! Job `reflect-services-endpoints`: follows services and endpoint slices of the API server.
//!
//! There is no batching window: what waits is written as soon as nothing more is waiting. Only a source that never
//! pauses is cut, after 500 events or `lb-reflector-wait-time`.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hive::{Health, JobCtx};
use parking_lot::Mutex;
use skep_k8s::slim::{EndpointSlice, Labels, Service};
use skep_k8s::{
    Backoff, Change, Invalid, ListerWatcher, ObjectKey, Resource, SourceEvent, Told, follow, follow_in_pages,
};
use skep_node::{LocalNode, LocalNodeStore};
use statedb::{Db, InitGuard, Snapshot, Table};
use tokio::time::Instant;

use super::batch::{Batch, Changed, Latest};
use super::ingest::{Ingest, present};

/// An event of either source.
enum Event {
    Service(Told<Service>),
    Slice(Told<EndpointSlice>),
    NodeLabels(Labels),
}

/// Labels of this node, as soon as they are known and then whenever they change.
fn node_labels(node: &LocalNodeStore, db: Db) -> BoxStream<'static, Labels> {
    let table = node.table();
    let first = async move {
        let snapshot = table.wait_initialized(&db).await;
        (table, db, snapshot)
    };
    let next = |(table, db, snapshot): (Table<LocalNode>, Db, Snapshot)| async move {
        let (labels, watch) = {
            let (mut rows, watch) = table.all_watch(&snapshot);
            (
                rows.next().map(|node| node.labels.clone()).unwrap_or_default(),
                watch,
            )
        };
        let later = async move {
            watch.closed().await;
            let snapshot = db.read();
            (table, db, snapshot)
        };
        Some((labels, later.boxed()))
    };
    stream::unfold(first.boxed(), move |state| async move { next(state.await).await }).boxed()
}

/// What the job needs.
pub(super) struct ApiSource {
    pub(super) services: Arc<dyn ListerWatcher<Service>>,
    pub(super) slices: Arc<dyn ListerWatcher<EndpointSlice>>,
    pub(super) db: Db,
    /// This node, whose labels decide about services that name nodes. Without it the node has no labels.
    pub(super) node: Option<LocalNodeStore>,
    pub(super) wait: Duration,
    pub(super) services_done: InitGuard,
    pub(super) slices_done: InitGuard,
    /// Kept when the job runs again: the rows are still in the tables.
    pub(super) ingest: Mutex<Ingest>,
    pub(super) has_run: AtomicBool,
}

fn told<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
    in_pages: bool,
) -> BoxStream<'static, Told<T>> {
    if in_pages {
        follow_in_pages(source, backoff)
    } else {
        follow(source, backoff).map(Told::Event).boxed()
    }
}

/// How the job is.
#[derive(Default)]
struct Trouble {
    services: Option<Arc<skep_k8s::ApiError>>,
    slices: Option<Arc<skep_k8s::ApiError>>,
}

impl ApiSource {
    /// Follows both sources until the job ends.
    pub(super) async fn run(self: Arc<Self>, cx: JobCtx) {
        let backoff = Backoff::default();
        // Rows of an earlier run are compared with a whole list.
        let in_pages = !self.has_run.swap(true, Ordering::Relaxed);
        let services = told(self.services.clone(), backoff, in_pages).map(Event::Service);
        let slices = told(self.slices.clone(), backoff, in_pages).map(Event::Slice);
        let mut labels = match &self.node {
            Some(node) => node_labels(node, self.db.clone()),
            None => stream::pending().boxed(),
        };
        if self.node.is_some() {
            // Services whose annotations name nodes would come and go at start otherwise.
            tokio::select! {
                Some(labels) = labels.next() => self.ingest.lock().set_node_labels(&labels),
                () = cx.cancelled() => return,
            }
        }
        let labels = labels.map(Event::NodeLabels);
        let mut events = pin!(stream::select(labels, stream::select(services, slices)));
        let mut trouble = Trouble::default();
        cx.health.ok("Running");
        loop {
            let first = tokio::select! {
                event = events.next() => event,
                () = cx.cancelled() => return,
            };
            let deadline = Instant::now() + self.wait;
            let mut batch = Batch::default();
            let mut next = first;
            while let Some(event) = next.take() {
                self.gather(event, &mut batch, &mut trouble);
                if batch.is_full() || Instant::now() >= deadline {
                    break;
                }
                next = events.next().now_or_never().flatten();
                if next.is_none() {
                    // Whoever feeds the sources may have more to say when it gets its turn.
                    tokio::task::yield_now().await;
                    next = events.next().now_or_never().flatten();
                }
            }
            let mut ingest = self.ingest.lock();
            if !batch.is_empty() {
                ingest.write(&mut batch);
            }
            trouble.report(&ingest, &cx.health);
        }
    }

    /// Adds an event to the batch. A list is written at once, after what came before it.
    fn gather(&self, event: Event, batch: &mut Batch, trouble: &mut Trouble) {
        match event {
            Event::NodeLabels(labels) => {
                let mut ingest = self.ingest.lock();
                ingest.write(batch);
                ingest.set_node_labels(&labels);
            }
            Event::Service(Told::Page { items, invalid }) => {
                self.gather_page(present(items, invalid, Changed::Service), batch);
            }
            Event::Slice(Told::Page { items, invalid }) => {
                self.gather_page(present(items, invalid, Changed::Slice), batch);
            }
            Event::Service(Told::Complete) => self.complete(batch, &self.services_done),
            Event::Slice(Told::Complete) => self.complete(batch, &self.slices_done),
            Event::Service(Told::Event(SourceEvent::Replaced { items, invalid })) => {
                let mut ingest = self.ingest.lock();
                ingest.write(batch);
                ingest.replace_services(items, invalid, Some(&self.services_done));
                trouble.services = None;
            }
            Event::Slice(Told::Event(SourceEvent::Replaced { items, invalid })) => {
                let mut ingest = self.ingest.lock();
                ingest.write(batch);
                ingest.replace_slices(items, invalid, Some(&self.slices_done));
                trouble.slices = None;
            }
            Event::Service(Told::Event(event)) => {
                add(event, batch, &mut trouble.services, Changed::Service);
            }
            Event::Slice(Told::Event(event)) => add(event, batch, &mut trouble.slices, Changed::Slice),
        }
    }

    fn gather_page(&self, page: Vec<Changed>, batch: &mut Batch) {
        for changed in page {
            batch.push(changed);
            if batch.is_full() {
                self.ingest.lock().write(batch);
            }
        }
    }

    /// Writes the end of the first list.
    fn complete(&self, batch: &mut Batch, done: &InitGuard) {
        self.ingest.lock().write_last(batch, done);
    }
}

fn add<T: Resource>(
    event: SourceEvent<T>,
    batch: &mut Batch,
    trouble: &mut Option<Arc<skep_k8s::ApiError>>,
    changed: fn(ObjectKey, Latest<T>) -> Changed,
) {
    let (key, latest) = match event {
        SourceEvent::Upserted(object) => (ObjectKey::of(&*object), Latest::Present(object)),
        SourceEvent::Deleted(object) => (ObjectKey::of(&*object), Latest::Gone),
        SourceEvent::Invalid(Invalid {
            change: Change::Deleted,
            error,
        }) => ((*error.object).clone(), Latest::Gone),
        SourceEvent::Invalid(Invalid { error, .. }) => ((*error.object).clone(), Latest::Undecodable(error)),
        SourceEvent::Failing(error) => {
            *trouble = Some(error);
            return;
        }
        SourceEvent::Working => {
            *trouble = None;
            return;
        }
        // Handled by the caller.
        SourceEvent::Replaced { .. } => return,
    };
    batch.push(changed(key, latest));
}

impl Trouble {
    fn report(&self, ingest: &Ingest, health: &Health) {
        if let Some(error) = &self.services {
            health.degraded("Cannot follow services", &**error);
        } else if let Some(error) = &self.slices {
            health.degraded("Cannot follow endpoint slices", &**error);
        } else if !ingest.faults().is_empty() {
            health.degraded("Failure processing services", ingest.faults());
        } else {
            health.ok("Running");
        }
    }
}
