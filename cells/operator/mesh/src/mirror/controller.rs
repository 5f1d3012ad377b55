// SPDX-License-Identifier: Apache-2.0

//! The job: watches Services and mirrored slices, and writes the latter.
//!
//! Nothing is written before both lists are complete, and remote clusters too, or `clustermesh-sync-timeout` is over. Slices of a
//! cluster whose services are not known stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hive::Health;
use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::{Kind, SERVICE_NAME_LABEL};
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, DeleteOptions, Preconditions, Subresource, WatcherEvent, WriteOptions,
    watcher,
};
use skep_k8s_types::selector::Selector;
use skep_k8s_types::slim::Str;
use skep_k8s_types::{ObjectKey, Resource};
use tokio::time::Instant;

use super::object::MirroredSlice;
use super::plan::{Action, Plan, View, plan};
use super::remote::RemoteBackends;
use crate::object::ServiceObject;
use crate::queue::Queue;
use crate::store::Store;
use crate::write::{Faults, WriteError, replaced};

const FIELD_MANAGER: &str = "cilium-operator-endpoint-sync";

/// Services a round: events are taken over between rounds.
const ROUND: usize = 64;

/// How often is looked whether clusters that are waited for are still configured.
const LOOK: Duration = Duration::from_secs(10);

enum Event {
    Service(WatcherEvent<ServiceObject>),
    Slice(WatcherEvent<MirroredSlice>),
}

enum Written {
    Slice(Arc<MirroredSlice>),
    Gone(Str),
}

pub(crate) struct Controller {
    pub(crate) services: Store<ServiceObject>,
    pub(crate) slices: Store<MirroredSlice>,
    /// Slices by the service that their label names.
    pub(crate) slices_of: BTreeMap<ObjectKey, BTreeSet<Str>>,
    pub(crate) remote: Arc<RemoteBackends>,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) health: Health,
    pub(crate) queue: Queue<ObjectKey>,
    pub(crate) incomplete: BTreeSet<ObjectKey>,
    pub(crate) look: Option<Instant>,
    pub(crate) most: usize,
    pub(crate) workers: usize,
}

fn service_of(slice: &MirroredSlice) -> Option<ObjectKey> {
    let metadata = &slice.metadata;
    Some(ObjectKey {
        namespace: metadata.namespace.clone(),
        name: Str::new(metadata.labels.get(SERVICE_NAME_LABEL)?),
    })
}

/// Takes over a slice, in its old and new state; returns its services.
fn slice_changed(
    slices_of: &mut BTreeMap<ObjectKey, BTreeSet<Str>>,
    old: Option<&Arc<MirroredSlice>>,
    new: Option<&Arc<MirroredSlice>>,
) -> Vec<ObjectKey> {
    let mut services = Vec::new();
    for (slice, is_new) in [(old, false), (new, true)] {
        let Some(slice) = slice else { continue };
        let Some(service) = service_of(slice) else {
            continue;
        };
        let names = slices_of.entry(service.clone()).or_default();
        if is_new {
            names.insert(slice.metadata.name.clone());
        } else {
            names.remove(&slice.metadata.name);
        }
        if names.is_empty() {
            slices_of.remove(&service);
        }
        services.push(service);
    }
    services
}

impl Controller {
    pub(crate) async fn run(&mut self, selector: Selector) {
        let services = watcher(
            Arc::new(Api::<ServiceObject>::all(self.client.clone())),
            Backoff::default(),
        );
        let slices = Api::<MirroredSlice>::all(self.client.clone()).labels(selector);
        let slices = watcher(Arc::new(slices), Backoff::default());
        let streams: [BoxStream<'static, Event>; 2] = [
            services.map(Event::Service).boxed(),
            slices.map(Event::Slice).boxed(),
        ];
        let mut events = stream::select_all(streams);
        self.health.starting("Waiting for remote clusters");
        let mesh = self.mesh.clone();
        let synced = async move {
            if let Err(error) = mesh.wait_synced(&[Kind::Services, Kind::EndpointSlices]).await {
                tracing::warn!(
                    error = hive::error_chain(&error),
                    "Mirroring services without those of some clusters"
                );
            }
        };
        let mut synced = synced.boxed();
        let mut is_synced = false;
        let remote = self.remote.clone();
        loop {
            let is_ready = is_synced && self.is_complete();
            let due = [self.queue.next(), self.look].into_iter().flatten().min();
            let timer = async {
                match due.filter(|_| is_ready) {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Watches never end.
                Some(event) = events.next() => self.handle(event),
                () = remote.changed() => {}
                () = &mut synced, if !is_synced => {
                    is_synced = true;
                    let services = self.slices_of.keys().cloned().chain(remote.keys());
                    let services: Vec<ObjectKey> = services.collect();
                    self.add(services);
                }
                () = timer => {}
            }
            while let Some(Some(event)) = events.next().now_or_never() {
                self.handle(event);
            }
            let changes = self.remote.take_changes();
            if changes.is_cluster_synced {
                self.add(self.incomplete.clone());
            }
            self.add(changes.keys);
            if is_synced && self.is_complete() {
                self.round().await;
            }
            self.report(is_synced);
        }
    }

    fn is_complete(&self) -> bool {
        self.services.is_complete() && self.slices.is_complete()
    }

    fn add(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        let now = Instant::now();
        for key in keys {
            self.queue.add(key, now);
        }
    }

    fn handle(&mut self, event: Event) {
        let mut dirty = BTreeSet::new();
        let Self {
            slices_of, remote, ..
        } = self;
        match event {
            Event::Service(event) => self.services.handle(event, |key, _, _| {
                if remote.contains(key) || slices_of.contains_key(key) {
                    dirty.insert(key.clone());
                }
            }),
            Event::Slice(event) => self.slices.handle(event, |_, old, new| {
                dirty.extend(slice_changed(slices_of, old, new))
            }),
        }
        self.add(dirty);
    }

    fn plan(&self, key: &ObjectKey, unknown: &BTreeSet<String>) -> Result<Plan, String> {
        if let Some(error) = self.services.invalid(key) {
            return Err(error.to_string());
        }
        let names = self.slices_of.get(key).into_iter().flatten();
        let slice = |name: &Str| {
            let key = ObjectKey {
                namespace: key.namespace.clone(),
                name: name.clone(),
            };
            self.slices.get(&key).map(|slice| &**slice)
        };
        Ok(plan(&View {
            key,
            service: self.services.get(key).map(|service| &**service),
            slices: names.filter_map(slice).collect(),
            remotes: &self.remote.of(key),
            unknown,
            most: self.most,
        }))
    }

    /// Looks at Services that are due, and writes what has to be.
    async fn round(&mut self) {
        let unknown = self.remote.unknown_clusters(&self.mesh);
        let now = Instant::now();
        if self.look.is_some_and(|look| look <= now) {
            // A cluster that is not configured any longer is not waited for.
            self.look = None;
            self.add(self.incomplete.clone());
        }
        let mut writes = Vec::new();
        while writes.len() < ROUND
            && let Some(key) = self.queue.take(now)
        {
            let plan = match self.plan(&key, &unknown) {
                Ok(plan) => plan,
                Err(fault) => {
                    self.queue.failed(key, fault, now);
                    continue;
                }
            };
            if plan.is_incomplete {
                self.incomplete.insert(key.clone());
                self.look.get_or_insert(now + LOOK);
            } else {
                self.incomplete.remove(&key);
            }
            if plan.actions.is_empty() {
                self.queue.settled(&key);
            } else {
                writes.push((key, plan.actions));
            }
        }
        if writes.is_empty() {
            return;
        }
        let client = &*self.client;
        let writes = stream::iter(writes).map(|(key, actions)| async move {
            let (written, result) = write(client, &key, actions).await;
            (key, written, result)
        });
        let outcomes: Vec<_> = writes.buffer_unordered(self.workers).collect().await;
        for (key, written, result) in outcomes {
            let slices_of = &mut self.slices_of;
            for written in written {
                match written {
                    Written::Slice(slice) => self.slices.apply(slice, |_, old, new| {
                        slice_changed(slices_of, old, new);
                    }),
                    Written::Gone(name) => {
                        let key = ObjectKey {
                            namespace: key.namespace.clone(),
                            name,
                        };
                        self.slices.delete(&key, |_, old, new| {
                            slice_changed(slices_of, old, new);
                        });
                    }
                }
            }
            let now = Instant::now();
            match result {
                Ok(()) => self.queue.changed(key, now),
                Err(error) => {
                    let error = hive::error_chain(&error).to_string();
                    tracing::warn!(service = %key, error, "Cannot mirror a service");
                    self.queue.failed(key, error, now);
                }
            }
        }
    }

    fn report(&self, is_synced: bool) {
        let mut faults: Vec<String> = self.services.faults().chain(self.slices.faults()).collect();
        faults.extend(self.queue.errors());
        match Faults::of(faults) {
            Some(faults) => self.health.degraded("Mirroring services", &faults),
            None if is_synced && self.is_complete() => self.health.ok("Mirroring services"),
            None => {}
        }
    }
}

/// Writes slices of a Service. Returns what was written, and the first error.
async fn write(
    client: &dyn Client,
    service: &ObjectKey,
    actions: Vec<Action>,
) -> (Vec<Written>, Result<(), WriteError>) {
    let mut written = Vec::new();
    let mut result = Ok(());
    for action in actions {
        let (verb, name) = match &action {
            Action::Create(_) => ("create", Str::const_new("")),
            Action::Update(name, _) => ("update", name.clone()),
            Action::Delete(metadata) => ("delete", metadata.name.clone()),
        };
        match act(client, &service.namespace, action).await {
            Ok(slice) => written.push(slice),
            Err(cause) if result.is_ok() => {
                let object = ObjectKey {
                    namespace: service.namespace.clone(),
                    name: if name.is_empty() {
                        service.name.clone()
                    } else {
                        name
                    },
                };
                result = Err(WriteError {
                    verb,
                    kind: MirroredSlice::kind().kind,
                    object,
                    cause,
                });
            }
            Err(error) => tracing::debug!(%service, %error, "A further write failed"),
        }
    }
    (written, result)
}

async fn act(client: &dyn Client, namespace: &Str, action: Action) -> Result<Written, ApiError> {
    let kind = MirroredSlice::kind();
    let options = WriteOptions {
        field_manager: FIELD_MANAGER.to_owned(),
        ..WriteOptions::default()
    };
    let (name, result) = match action {
        Action::Create(object) => {
            let created = client.create(&kind, namespace, object, &options).await?;
            return Ok(Written::Slice(created.decode()?));
        }
        Action::Update(name, object) => {
            let read = match client.get(&kind, namespace, &name).await {
                Err(error) if error.is_not_found() => return Ok(Written::Gone(name)),
                read => read?,
            };
            let current = read.to_value()?;
            if current["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                // Another writer was first.
                return Ok(Written::Slice(read.decode()?));
            }
            let (part, object) = (Subresource::None, replaced(&current, &object));
            let updated = client.update(&kind, namespace, part, object, &options).await;
            (name, updated.map(Some))
        }
        Action::Delete(metadata) => {
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: metadata.uid.clone(),
                    resource_version: metadata.resource_version.clone(),
                },
                ..DeleteOptions::default()
            };
            let deleted = client.delete(&kind, namespace, &metadata.name, &options).await;
            (metadata.name, deleted.map(|()| None))
        }
    };
    let slice = match result {
        // Another writer was first.
        Err(error) if error.is_conflict() || error.is_not_found() => {
            match client.get(&kind, namespace, &name).await {
                Err(error) if error.is_not_found() => None,
                read => Some(read?),
            }
        }
        result => result?,
    };
    match slice {
        Some(slice) => Ok(Written::Slice(slice.decode()?)),
        None => Ok(Written::Gone(name)),
    }
}
