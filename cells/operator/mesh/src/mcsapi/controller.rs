// SPDX-License-Identifier: Apache-2.0

//! The job: watches exports, imports, Services, slices and namespaces, and writes what follows of them.
//!
//! Nothing is written before all lists are complete, and remote clusters too, or `clustermesh-sync-timeout` is over. After that a
//! cluster whose exports are not known keeps what it had in imports: nothing of it is deleted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hive::Health;
use jiff::Timestamp;
use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::Kind;
use skep_k8s_client::{Api, Backoff, Client, WatcherEvent, watcher};
use skep_k8s_types::slim::Namespace;
use skep_k8s_types::{ObjectKey, Resource};
use tokio::time::Instant;

use super::exports::RemoteExports;
use super::metrics::McsApiMetrics;
use super::state::{Dirty, State};
use super::write::Writer;
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::queue::Queue;
use crate::write::Faults;

/// Services that are written at the same time.
const WORKERS: usize = 8;

/// Services a round: events are taken over between rounds.
const ROUND: usize = 64;

/// How often is looked whether clusters that are waited for are still configured.
const LOOK: Duration = Duration::from_secs(10);

enum Event {
    Export(WatcherEvent<ExportObject>),
    Import(WatcherEvent<ImportObject>),
    Service(WatcherEvent<ServiceObject>),
    Slice(WatcherEvent<SliceObject>),
    Namespace(WatcherEvent<Namespace>),
}

fn watch<T: Resource>(
    client: &Arc<dyn Client>,
    event: fn(WatcherEvent<T>) -> Event,
) -> BoxStream<'static, Event> {
    let api = Api::<T>::all(client.clone());
    watcher(Arc::new(api), Backoff::default()).map(event).boxed()
}

pub(crate) struct Controller {
    pub(crate) state: State,
    pub(crate) remote: Arc<RemoteExports>,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) metrics: Arc<McsApiMetrics>,
    pub(crate) health: Health,
    pub(crate) queue: Queue<ObjectKey>,
    /// Services whose clusters are not all known.
    pub(crate) incomplete: BTreeSet<ObjectKey>,
    /// When they are looked at again.
    pub(crate) look: Option<Instant>,
}

impl Controller {
    pub(crate) async fn run(&mut self) {
        let mut events = stream::select_all([
            watch(&self.client, Event::Export),
            watch(&self.client, Event::Import),
            watch(&self.client, Event::Service),
            watch(&self.client, Event::Slice),
            watch(&self.client, Event::Namespace),
        ]);
        self.health.starting("Waiting for remote clusters");
        let mesh = self.mesh.clone();
        let synced = async move {
            if let Err(error) = mesh.wait_synced(&[Kind::ServiceExports]).await {
                tracing::warn!(
                    error = hive::error_chain(&error),
                    "Merging service exports without those of some clusters"
                );
            }
        };
        let mut synced = synced.boxed().shared();
        let mut is_synced = false;
        let remote = self.remote.clone();
        loop {
            let due = self.due(is_synced);
            let timer = async {
                match due {
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
                    self.add_all();
                }
                () = timer => {}
            }
            while let Some(Some(event)) = events.next().now_or_never() {
                self.handle(event);
            }
            self.take_remote_changes();
            if is_synced && self.state.is_complete() {
                self.round().await;
            }
            self.report(is_synced);
        }
    }

    fn due(&self, is_synced: bool) -> Option<Instant> {
        if !is_synced || !self.state.is_complete() {
            return None;
        }
        let next = self.queue.next();
        [next, self.look].into_iter().flatten().min()
    }

    fn add_all(&mut self) {
        let mut dirty: Dirty = self.remote.keys().into_iter().collect();
        let known = self.state.exports.keys().chain(self.state.imports.keys());
        dirty.extend(known.cloned());
        self.add(dirty);
    }

    fn add(&mut self, dirty: Dirty) {
        let now = Instant::now();
        for key in dirty {
            self.queue.add(key, now);
        }
    }

    fn handle(&mut self, event: Event) {
        let mut dirty = Dirty::new();
        let state = &mut self.state;
        match event {
            Event::Export(event) => state.exports.handle(event, |key, _, _| {
                dirty.insert(key.clone());
            }),
            Event::Import(event) => state.imports.handle(event, |key, _, _| {
                dirty.insert(key.clone());
            }),
            Event::Service(event) => state.services.handle(event, |key, old, new| {
                State::service_changed(&mut dirty, key, old.or(new));
                State::service_changed(&mut dirty, key, new);
            }),
            Event::Slice(event) => state.slice_event(event, &mut dirty),
            Event::Namespace(event) => {
                let mut namespaces = BTreeSet::new();
                state.namespaces.handle(event, |key, old, new| {
                    let shared = |namespace: Option<&Arc<Namespace>>| {
                        let metadata = &namespace?.metadata;
                        Some((
                            metadata.annotations.clone(),
                            metadata.deletion_timestamp.is_some(),
                        ))
                    };
                    if shared(old) != shared(new) {
                        namespaces.insert(key.name.clone());
                    }
                });
                for namespace in &namespaces {
                    state.in_namespace(namespace, &mut dirty);
                }
                let remote = self.remote.keys().into_iter();
                dirty.extend(remote.filter(|key| namespaces.contains(&key.namespace)));
            }
        }
        self.add(dirty);
    }

    fn take_remote_changes(&mut self) {
        let changes = self.remote.take_changes();
        if changes.is_cluster_synced {
            self.add(self.incomplete.clone());
        }
        self.add(changes.keys);
    }

    /// Looks at services that are due, and writes what has to be.
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
            let remotes = self.remote.of(&key);
            let plan = self.state.plan(&key, &remotes, &unknown, Timestamp::now());
            self.metrics.update(&key, &self.state);
            if plan.is_incomplete {
                self.incomplete.insert(key.clone());
                self.look.get_or_insert(now + LOOK);
            } else {
                self.incomplete.remove(&key);
            }
            if !plan.actions.is_empty() {
                writes.push((key, plan));
            } else if let Some(fault) = plan.fault {
                self.queue.failed(key, fault, now);
            } else {
                self.queue.settled(&key);
            }
        }
        if writes.is_empty() {
            return;
        }
        let client = &*self.client;
        let writes = stream::iter(writes).map(|(key, plan)| async move {
            let writer = Writer {
                client,
                namespace: &key.namespace,
            };
            let (written, result) = writer.run(plan.actions).await;
            (key, written, result, plan.fault)
        });
        let outcomes: Vec<_> = writes.buffer_unordered(WORKERS).collect().await;
        for (key, written, result, fault) in outcomes {
            for written in written {
                self.state.written(written);
            }
            self.metrics.update(&key, &self.state);
            let now = Instant::now();
            match (result, fault) {
                (Err(error), _) => {
                    let error = hive::error_chain(&error).to_string();
                    tracing::warn!(service = %key, error, "Cannot reconcile an exported service");
                    self.queue.failed(key, error, now);
                }
                (Ok(()), Some(fault)) => self.queue.failed(key, fault, now),
                (Ok(()), None) => self.queue.changed(key, now),
            }
        }
    }

    fn report(&self, is_synced: bool) {
        let mut faults = self.state.faults();
        faults.extend(self.queue.errors());
        match Faults::of(faults) {
            Some(faults) => self.health.degraded("Merging service exports", &faults),
            None if !is_synced || !self.state.is_complete() => {}
            None if self.incomplete.is_empty() => self.health.ok("Merging service exports"),
            None => {
                let count = self.incomplete.len();
                let text = format!("Merging service exports; {count} services wait for clusters");
                self.health.ok(text);
            }
        }
    }
}
