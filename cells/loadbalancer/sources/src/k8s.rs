// SPDX-License-Identifier: Apache-2.0

//! Job `reflect-services-endpoints`: watches services and endpoint slices of the API server.
//!
//! There is no batching window: what waits is written as soon as nothing more is waiting. Only a source that never
//! pauses is cut, after 500 events or `lb-reflector-wait-time`.
//!
//! Labels of the node count at once for what is written; services that name nodes and did not change themselves are
//! looked at again when the labels have settled.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hive::{Health, JobCtx};
use parking_lot::Mutex;
use skep_k8s_client::{
    ApiError, Backoff, ListerWatcher, ObjectEvent, WatcherEvent, watcher, watcher_in_pages,
};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::{EndpointSlice, Labels, Service};
use skep_loadbalancer_model::types::Frontend;
use skep_node_local::{LocalNode, LocalNodeStore};
use statedb::{Db, InitGuard, Snapshot, Table};
use tokio::time::Instant;

use super::batch::{Batch, Event};
use super::reflector::{ServiceReflector, listed};
use super::waiter::AddressWaiter;

/// How long the labels of the node must rest before services that name nodes come or go with them: labels are often
/// replaced one after the other, and each time connections would be cut.
const LABELS_SETTLE: Duration = Duration::from_secs(1);
/// Longest wait for labels that do not rest.
const LABELS_WAIT: Duration = Duration::from_secs(10);

/// What the job waits for.
enum Input {
    Services(WatcherEvent<Service>),
    Slices(WatcherEvent<EndpointSlice>),
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
    /// Whose addresses services may have to wait for.
    pub(super) frontends: Table<Frontend>,
    /// This node, whose labels decide about services that name nodes. Without it the node has no labels.
    pub(super) node: Option<LocalNodeStore>,
    pub(super) wait: Duration,
    pub(super) services_done: InitGuard,
    pub(super) slices_done: InitGuard,
    /// Kept when the job runs again: the rows are still in the tables.
    pub(super) reflector: Mutex<ServiceReflector>,
    pub(super) has_run: AtomicBool,
}

fn watch<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
    in_pages: bool,
) -> BoxStream<'static, WatcherEvent<T>> {
    match in_pages {
        true => watcher_in_pages(source, backoff),
        false => watcher(source, backoff),
    }
}

/// How the job is.
#[derive(Default)]
struct State {
    services: Option<Arc<ApiError>>,
    slices: Option<Arc<ApiError>>,
    /// When services that name nodes are looked at again, and the latest time of that.
    reevaluate_at: Option<(Instant, Instant)>,
}

impl ApiSource {
    /// Follows both sources.
    pub(super) async fn run(&self, cx: &JobCtx) {
        let backoff = Backoff::default();
        // Rows of an earlier run are compared with a whole list.
        let in_pages = !self.has_run.swap(true, Ordering::Relaxed);
        let services = watch(self.services.clone(), backoff, in_pages).map(Input::Services);
        let slices = watch(self.slices.clone(), backoff, in_pages).map(Input::Slices);
        let mut labels = match &self.node {
            Some(node) => node_labels(node, self.db.clone()),
            None => stream::pending().boxed(),
        };
        if self.node.is_some() {
            // Services whose annotations name nodes would come and go at start otherwise.
            if let Some(labels) = labels.next().await {
                let mut reflector = self.reflector.lock();
                // A job that runs again has services already.
                if reflector.set_node_labels(&labels) {
                    reflector.reevaluate_node_placement();
                }
            }
        }
        let labels = labels.map(Input::NodeLabels);
        let mut events = pin!(stream::select(labels, stream::select(services, slices)));
        let mut state = State::default();
        let mut waiter = AddressWaiter::new(self.db.clone(), self.frontends.clone());
        cx.health.ok("Running");
        loop {
            let settled = state.reevaluate_at.map(|(due, _)| due);
            let first = tokio::select! {
                event = events.next() => event,
                () = tokio::time::sleep_until(settled.unwrap_or_else(Instant::now)), if settled.is_some() => {
                    state.reevaluate_at = None;
                    let mut reflector = self.reflector.lock();
                    reflector.reevaluate_node_placement();
                    state.report(&reflector, &cx.health);
                    continue;
                }
                () = waiter.wait() => {
                    waiter.begin();
                    let mut reflector = self.reflector.lock();
                    reflector.try_waiting();
                    waiter.attempted(reflector.is_waiting());
                    state.report(&reflector, &cx.health);
                    continue;
                }
            };
            let deadline = Instant::now() + self.wait;
            let mut batch = Batch::default();
            let mut next = first;
            while let Some(event) = next.take() {
                self.gather(event, &mut batch, &mut state);
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
            let mut reflector = self.reflector.lock();
            if !batch.is_empty() {
                self.take_labels(&mut reflector, &mut state);
                reflector.write(&mut batch);
            }
            if waiter.attempted(reflector.is_waiting()) {
                reflector.try_waiting();
                waiter.attempted(reflector.is_waiting());
            }
            state.report(&reflector, &cx.health);
        }
    }

    // The event of a change may come after those of services that are to see it.
    fn take_labels(&self, reflector: &mut ServiceReflector, state: &mut State) {
        if let Some(node) = self.node.as_ref().and_then(LocalNodeStore::get)
            && reflector.set_node_labels(&node.labels)
        {
            state.reevaluate_later();
        }
    }

    /// Adds an event to the batch. A list is written at once, after what came before it.
    fn gather(&self, input: Input, batch: &mut Batch, state: &mut State) {
        match input {
            Input::NodeLabels(labels) => {
                if self.reflector.lock().set_node_labels(&labels) {
                    state.reevaluate_later();
                }
            }
            Input::Services(WatcherEvent::Replaced { items, invalid }) => {
                let mut reflector = self.reflector.lock();
                self.take_labels(&mut reflector, state);
                reflector.write(batch);
                reflector.replace_services(items, invalid, Some(&self.services_done));
                state.services = None;
            }
            Input::Slices(WatcherEvent::Replaced { items, invalid }) => {
                let mut reflector = self.reflector.lock();
                reflector.write(batch);
                reflector.replace_slices(items, invalid, Some(&self.slices_done));
                state.slices = None;
            }
            Input::Services(event) => {
                self.add(
                    event,
                    batch,
                    &mut state.services,
                    Event::Service,
                    &self.services_done,
                );
            }
            Input::Slices(event) => {
                self.add(event, batch, &mut state.slices, Event::Slice, &self.slices_done);
            }
        }
    }

    fn add<T: Resource>(
        &self,
        event: WatcherEvent<T>,
        batch: &mut Batch,
        failure: &mut Option<Arc<ApiError>>,
        of: fn(ObjectEvent<T>) -> Event,
        done: &InitGuard,
    ) {
        match event {
            WatcherEvent::InitPage { items, invalid } | WatcherEvent::Replaced { items, invalid } => {
                for event in listed(items, invalid, of) {
                    batch.push_listed(event);
                    if batch.is_full() {
                        self.reflector.lock().write(batch);
                    }
                }
            }
            WatcherEvent::InitDone => self.complete(batch, done),
            WatcherEvent::Object(event) => batch.push(of(event)),
            WatcherEvent::Failing(error) => *failure = Some(error),
            WatcherEvent::Working => *failure = None,
        }
    }

    /// Writes the end of the first list.
    fn complete(&self, batch: &mut Batch, done: &InitGuard) {
        self.reflector.lock().write_last(batch, done);
    }
}

impl State {
    fn reevaluate_later(&mut self) {
        let now = Instant::now();
        let latest = self.reevaluate_at.map_or(now + LABELS_WAIT, |(_, latest)| latest);
        self.reevaluate_at = Some((latest.min(now + LABELS_SETTLE), latest));
    }

    fn report(&self, reflector: &ServiceReflector, health: &Health) {
        if let Some(error) = &self.services {
            health.degraded("Cannot watch services", &**error);
        } else if let Some(error) = &self.slices {
            health.degraded("Cannot watch endpoint slices", &**error);
        } else if !reflector.invalid_objects().is_empty() {
            health.degraded("Failure processing services", reflector.invalid_objects());
        } else {
            health.ok("Running");
        }
    }
}
