// SPDX-License-Identifier: Apache-2.0

//! The job: watches Services, nodes and endpoint slices, writes the ingress of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use hive::Health;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, ObjectEvent, Subresource, WatchState, WatcherEvent, WriteOptions, watcher,
};
use skep_k8s_types::slim::{EndpointSlice, Node, Service};
use skep_k8s_types::{ObjectKey, Resource};
use tokio::time::{Instant, sleep_until, timeout};

use crate::world::{World, has_class, is_responsible};

/// Time until a failed write is retried.
const RETRY: Duration = Duration::from_secs(15);
/// Time until a write that met a conflict is retried.
const CONFLICT: Duration = Duration::from_secs(1);
/// Time after which a request counts as failed.
const REQUEST: Duration = Duration::from_secs(10);
const NAMED: usize = 10;

/// Services without the addresses that they should have.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unwritten(String);

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no answer from the API server")]
    Timeout,
}

type Events<T> = BoxStream<'static, WatcherEvent<T>>;

enum Event {
    Service(WatcherEvent<Service>),
    Node(WatcherEvent<Node>),
    Slice(WatcherEvent<EndpointSlice>),
    Due,
}

pub(crate) struct Controller {
    client: Arc<dyn Client>,
    is_default: bool,
    health: Health,
    services: Events<Service>,
    nodes: Events<Node>,
    slices: Events<EndpointSlice>,
    sources: [WatchState; 3],
    world: World,
    /// Services to look at, and when.
    due: BTreeMap<ObjectKey, Instant>,
    faults: BTreeMap<ObjectKey, String>,
    /// Addresses that were written, by Service: those of nodes that are gone by now, too.
    written: BTreeMap<ObjectKey, BTreeSet<String>>,
    queue: WorkqueueRecorder,
}

fn events<T: Resource>(client: &Arc<dyn Client>) -> Events<T> {
    watcher(Arc::new(Api::<T>::all(client.clone())), Backoff::default()).boxed()
}

impl Controller {
    pub(crate) fn new(
        client: Arc<dyn Client>,
        is_default: bool,
        queue: WorkqueueRecorder,
        health: Health,
    ) -> Self {
        Self {
            is_default,
            health,
            services: events(&client),
            nodes: events(&client),
            slices: events(&client),
            client,
            sources: Default::default(),
            world: World::default(),
            due: BTreeMap::new(),
            faults: BTreeMap::new(),
            written: BTreeMap::new(),
            queue,
        }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            let event = self.next().await;
            self.apply(event);
            // One pass for all that has happened.
            while let Some(event) = self.next().now_or_never() {
                if matches!(event, Event::Due) {
                    break;
                }
                self.apply(event);
            }
            self.queue.set_depth(self.due.len());
            if self.is_listed() {
                self.pass().await;
                self.queue.set_depth(self.due.len());
            }
            self.report();
        }
    }

    fn is_listed(&self) -> bool {
        self.sources.iter().all(|source| source.is_listed())
    }

    async fn next(&mut self) -> Event {
        let first = self.due.values().min().copied().filter(|_| self.is_listed());
        let due = async {
            match first {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // Watchers never end.
        tokio::select! {
            biased;
            Some(event) = self.services.next() => Event::Service(event),
            Some(event) = self.nodes.next() => Event::Node(event),
            Some(event) = self.slices.next() => Event::Slice(event),
            () = due => Event::Due,
        }
    }

    fn mark(&mut self, services: impl IntoIterator<Item = ObjectKey>) {
        let now = Instant::now();
        for service in services {
            if self.world.service(&service).is_some() && self.due.insert(service, now).is_none() {
                self.queue.added();
            }
        }
    }

    fn mark_all(&mut self) {
        let all: Vec<ObjectKey> = self.world.services().cloned().collect();
        self.mark(all);
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Service(event) => {
                self.sources[0].note(&event);
                self.apply_service(event);
            }
            Event::Node(event) => {
                self.sources[1].note(&event);
                self.apply_node(event);
            }
            Event::Slice(event) => {
                self.sources[2].note(&event);
                self.apply_slice(event);
            }
            Event::Due => {}
        }
    }

    fn apply_service(&mut self, event: WatcherEvent<Service>) {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let items: Vec<_> = items.into_iter().collect();
                let present: BTreeSet<ObjectKey> = items.iter().map(|item| ObjectKey::of(&**item)).collect();
                let undecoded: BTreeSet<ObjectKey> =
                    invalid.iter().map(|error| (*error.object).clone()).collect();
                let known: Vec<ObjectKey> = self.world.services().cloned().collect();
                for gone in known
                    .iter()
                    .filter(|key| !present.contains(key) && !undecoded.contains(key))
                {
                    self.remove_service(gone);
                }
                items.into_iter().for_each(|item| self.upsert_service(item));
            }
            WatcherEvent::Object(ObjectEvent::Applied(service)) => self.upsert_service(service),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.remove_service(&key),
            _ => {}
        }
    }

    fn upsert_service(&mut self, service: Arc<Service>) {
        let key = ObjectKey::of(&*service);
        if !is_responsible(&service, self.is_default) || service.metadata.deletion_timestamp.is_some() {
            self.remove_service(&key);
            return;
        }
        self.world.upsert_service(service);
        self.mark([key]);
    }

    fn remove_service(&mut self, key: &ObjectKey) {
        self.world.remove_service(key);
        self.due.remove(key);
        self.faults.remove(key);
        self.written.remove(key);
    }

    fn apply_node(&mut self, event: WatcherEvent<Node>) {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let present = items.iter().map(|node| node.metadata.name.clone());
                let undecoded = invalid.iter().map(|error| error.object.name.clone());
                let present: BTreeSet<_> = present.chain(undecoded).collect();
                let known: Vec<_> = self.world.nodes().cloned().collect();
                for gone in known.iter().filter(|name| !present.contains(*name)) {
                    self.world.remove_node(gone);
                }
                for node in items {
                    self.world.upsert_node(node);
                }
                self.mark_all();
            }
            WatcherEvent::Object(ObjectEvent::Applied(node)) => {
                let matters = self.world.upsert_node(node);
                if matters {
                    self.mark_all();
                }
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                self.world.remove_node(&key.name);
                self.mark_all();
            }
            _ => {}
        }
    }

    fn apply_slice(&mut self, event: WatcherEvent<EndpointSlice>) {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let present = items.iter().map(|slice| ObjectKey::of(&**slice));
                let undecoded = invalid.iter().map(|error| (*error.object).clone());
                let present: BTreeSet<_> = present.chain(undecoded).collect();
                let known: Vec<_> = self.world.slices().cloned().collect();
                for gone in known.iter().filter(|key| !present.contains(key)) {
                    self.world.remove_slice(gone);
                }
                for slice in items {
                    self.world.upsert_slice(&slice);
                }
                self.mark_all();
            }
            WatcherEvent::Object(ObjectEvent::Applied(slice)) => {
                let services = self.world.upsert_slice(&slice);
                self.mark(services);
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                let service = self.world.remove_slice(&key);
                self.mark(service);
            }
            _ => {}
        }
    }

    /// Writes whatever is due. The first request without an answer ends the pass.
    async fn pass(&mut self) {
        let now = Instant::now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let keys: Vec<(ObjectKey, Instant)> = due.map(|(key, at)| (key.clone(), *at)).collect();
        for (key, at) in keys {
            let Some(service) = self.world.service(&key).cloned() else {
                continue;
            };
            let _work = self.queue.taken(at.elapsed());
            let ingress = match self.world.ingress(&service) {
                Ok(ingress) => ingress,
                Err(error) => {
                    let text = hive::error_chain(&error).to_string();
                    tracing::warn!(service = %key, error = %text, "Cannot choose nodes of a Service");
                    self.faults.insert(key.clone(), text);
                    self.due.remove(&key);
                    continue;
                }
            };
            let written = match self.is_shown(&service, &ingress) {
                true => Ok(()),
                false => self.write(&service, &ingress).await,
            };
            self.faults.remove(&key);
            match written {
                Ok(()) => _ = self.due.remove(&key),
                // Its deletion is on the way.
                Err(WriteError::Api(error)) if error.is_not_found() => _ = self.due.remove(&key),
                Err(WriteError::Api(error)) if error.is_conflict() => {
                    self.due.insert(key, Instant::now() + CONFLICT);
                    self.queue.retried();
                }
                Err(error) => {
                    let text = hive::error_chain(&error).to_string();
                    tracing::warn!(service = %key, error = %text, "Cannot write the status of a Service");
                    let is_answered = matches!(&error, WriteError::Api(error) if error.status().is_some());
                    self.faults.insert(key.clone(), text);
                    let later = Instant::now() + RETRY;
                    self.due.insert(key, later);
                    self.queue.retried();
                    if !is_answered {
                        let due = self.due.values_mut().filter(|at| **at <= now);
                        due.for_each(|at| *at = later);
                        return;
                    }
                }
            }
        }
    }

    /// Whether the ingress of a Service without class is left to others: no node serves it.
    fn is_left(service: &Service, ingress: &BTreeSet<String>) -> bool {
        ingress.is_empty() && !has_class(service)
    }

    /// Whether an address is one of nodes.
    fn is_own(&self, key: &ObjectKey, address: &str) -> bool {
        let written = self.written.get(key);
        written.is_some_and(|written| written.contains(address)) || self.world.is_of_node(address)
    }

    fn is_shown(&self, service: &Service, ingress: &BTreeSet<String>) -> bool {
        let shown = service.status.load_balancer.ingress.iter();
        let mut shown = shown.map(|entry| entry.ip.as_str());
        if Self::is_left(service, ingress) {
            let key = ObjectKey::of(service);
            return !shown.any(|address| self.is_own(&key, address));
        }
        shown.eq(ingress.iter().map(String::as_str))
    }

    /// Replaces the ingress of a Service as it is now.
    async fn write(&mut self, service: &Service, ingress: &BTreeSet<String>) -> Result<(), WriteError> {
        let (kind, key) = (Service::kind(), ObjectKey::of(service));
        let read = timeout(REQUEST, self.client.get(&kind, &key.namespace, &key.name));
        let read = read.await.map_err(|_| WriteError::Timeout)??;
        let mut object: Value = (*read.to_value().map_err(ApiError::from)?).clone();
        let entries: Vec<Value> = match Self::is_left(service, ingress) {
            true => {
                let current = object["status"]["loadBalancer"]["ingress"].as_array();
                let is_others = |entry: &&Value| {
                    let address = entry["ip"].as_str();
                    address.is_none_or(|address| !self.is_own(&key, address))
                };
                current.into_iter().flatten().filter(is_others).cloned().collect()
            }
            false => ingress.iter().map(|ip| json!({ "ip": ip })).collect(),
        };
        if !object["status"].is_object() {
            object["status"] = json!({});
        }
        object["status"]["loadBalancer"] = match entries.is_empty() {
            true => json!({}),
            false => json!({ "ingress": entries }),
        };
        let written = self.written.entry(key.clone()).or_default();
        written.extend(ingress.iter().cloned());
        let options = WriteOptions::default();
        let update = self
            .client
            .update(&kind, &key.namespace, Subresource::Status, object, &options);
        timeout(REQUEST, update)
            .await
            .map_err(|_| WriteError::Timeout)??;
        tracing::info!(service = %key, addresses = ingress.len(), "Wrote addresses of nodes");
        Ok(())
    }

    fn report(&self) {
        let failing = self.sources.iter().find_map(WatchState::failing);
        if let Some(error) = failing {
            let message = "Waiting for the Kubernetes API server";
            self.health.degraded(message, &**error);
            return;
        }
        if !self.is_listed() {
            return;
        }
        let total = self.world.services().count();
        let invalid = self.sources.iter().flat_map(|source| source.invalid().values());
        let faults = self.faults.iter().map(|(key, error)| format!("`{key}`: {error}"));
        let texts = faults.chain(invalid.map(ToString::to_string));
        let texts: Vec<String> = texts.take(NAMED).collect();
        if texts.is_empty() {
            self.health.ok(format!("{total} services"));
            return;
        }
        let message = format!(
            "{} of {total} services without their addresses",
            self.faults.len()
        );
        self.health.degraded(message, &Unwritten(texts.join("; ")));
    }
}
