// SPDX-License-Identifier: Apache-2.0

//! Cell: remote services as backends of the load balancer.
//! Requires: the writer of its tables, the mesh. Provides: an observer.
//!
//! Traffic needs a service of the local cluster with the same name, annotated as global: frontends of remote clusters are not
//! used. Backends of a service without one are in the tables as well, unused.
//!
//! Changes are gathered while a transaction is written, the last one of each service, and written together: of a cluster
//! with ten thousand services the first list is a few transactions.

use std::collections::HashMap;
use std::sync::Arc;

use compact_str::CompactString;
use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{Cell, Health, Job, JobCtx, Jobs, Member, SpawnError};
use parking_lot::Mutex;
use skep_clustermesh_types::{Capabilities, ClusterService, Kind, RemoteInfo};
use skep_kvstore::Key;
use skep_loadbalancer_model::types::{BackendZone, Names};
use skep_loadbalancer_model::{
    BackendParams, ClusterAffinity, L3n4Addr, L4Proto, ServiceName, Source, Writer,
};
use statedb::InitGuard;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};

/// Services a transaction: others that write the same tables wait no longer than for these.
const BATCH: usize = 1000;

hive::catalogue!(cell);

/// Remote services as backends.
pub fn cell() -> Cell {
    Cell::module(
        "clustermesh-services",
        "Remote services as backends of the load balancer",
    )
    .provide(new_observer)
    .run(start)
}

/// Writes the backends of remote services.
#[derive(Debug)]
pub struct ServiceObserver {
    writer: Writer,
    metrics: Arc<ClusterMeshMetrics>,
    pending: Mutex<Pending>,
    progress: watch::Sender<Progress>,
}

/// A service of a cluster.
type Place = (u32, ServiceName);

#[derive(Debug, Default)]
struct Pending {
    /// What the service is to be; `None` if it is gone. And since when that waits.
    services: HashMap<Place, (Option<Arc<ClusterService>>, Instant)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Changes that were observed.
    observed: u64,
    /// Those of them that are in the tables.
    written: u64,
}

impl ServiceObserver {
    /// An observer that writes by this writer, as long as [`write`](Self::write) runs.
    pub fn new(writer: Writer, metrics: Arc<ClusterMeshMetrics>) -> Arc<Self> {
        Arc::new(Self {
            writer,
            metrics,
            pending: Mutex::default(),
            progress: watch::Sender::default(),
        })
    }

    fn note(&self, cluster: &RemoteInfo, service: &ClusterService, new: Option<Arc<ClusterService>>) {
        let place = (cluster.id, ServiceName::new(&service.namespace, &service.name));
        let mut pending = self.pending.lock();
        let entry = pending
            .services
            .entry(place)
            .or_insert_with(|| (None, Instant::now()));
        entry.0 = new;
        self.progress.send_modify(|progress| progress.observed += 1);
    }

    /// Writes what was observed. Never returns.
    pub async fn write(&self) {
        let mut progress = self.progress.subscribe();
        loop {
            // The sender lives as long as this.
            let _ = progress
                .wait_for(|progress| progress.written < progress.observed)
                .await;
            self.write_pending();
            tokio::task::yield_now().await;
        }
    }

    /// Writes up to a batch.
    fn write_pending(&self) {
        let (batch, observed) = {
            let mut pending = self.pending.lock();
            let observed = self.progress.borrow().observed;
            if pending.services.len() <= BATCH {
                (std::mem::take(&mut pending.services), Some(observed))
            } else {
                let places: Vec<Place> = pending.services.keys().take(BATCH).cloned().collect();
                let take = |place: Place| pending.services.remove_entry(&place);
                (places.into_iter().filter_map(take).collect(), None)
            }
        };
        let mut txn = self.writer.write();
        for ((cluster_id, name), (service, _)) in &batch {
            let backends = service.as_deref().map(|service| backends(*cluster_id, service));
            let backends = backends.unwrap_or_default();
            self.writer
                .set_backends(&mut txn, name, Source::ClusterMesh, *cluster_id, backends);
        }
        txn.commit();
        let duration = self.metrics.change_duration.with([Kind::Services.as_str()]);
        for (_, since) in batch.values() {
            duration.observe_duration(since.elapsed());
        }
        if let Some(observed) = observed {
            self.progress.send_modify(|progress| progress.written = observed);
        }
    }
}

impl ValueObserver<ClusterService> for ServiceObserver {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, service: &Arc<ClusterService>) {
        // One that is not shared any longer counts as gone.
        let new = service.shared.then(|| service.clone());
        self.note(cluster, service, new);
    }

    fn delete(&self, cluster: &RemoteInfo, _name: &Key, service: &Arc<ClusterService>) {
        self.note(cluster, service, None);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        let mode = &capabilities.endpoint_slices_export_mode;
        if !mode.has_services() {
            tracing::error!(
                mode = mode.as_str(),
                "A remote cluster publishes no services: its backends are not used"
            );
        }
        mode.has_services()
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        async {
            let observed = self.progress.borrow().observed;
            let mut progress = self.progress.subscribe();
            let _ = progress.wait_for(|progress| progress.written >= observed).await;
        }
        .boxed()
    }
}

/// The backends of a service: one for each address, protocol and port, with all names of the port.
fn backends(cluster_id: u32, service: &ClusterService) -> Vec<BackendParams> {
    let mut backends = Vec::new();
    for (ip, ports) in &service.backends {
        let zone = service.zones.get(&ip.to_string()).map(|zone| {
            let hints = zone.for_zones.iter().flatten();
            Arc::new(BackendZone {
                zone: zone.zone.clone(),
                for_zones: hints.map(|hint| hint.name.clone()).collect(),
            })
        });
        let mut names: HashMap<(L4Proto, u16), Vec<CompactString>> = HashMap::new();
        for (name, port) in ports {
            // Others than those that the load balancer knows serve nothing.
            let Ok(proto @ (L4Proto::Tcp | L4Proto::Udp | L4Proto::Sctp)) = port.protocol.parse::<L4Proto>()
            else {
                continue;
            };
            // Sorted, since ports are.
            let names = names.entry((proto, port.port)).or_default();
            names.extend((!name.is_empty()).then(|| name.clone()));
        }
        for ((proto, port), names) in names {
            backends.push(BackendParams {
                port_names: if names.is_empty() {
                    Names::ABSENT
                } else {
                    names.into_iter().collect()
                },
                zone: zone.clone(),
                cluster_id,
                ..BackendParams::new(L3n4Addr::new(*ip, port, proto), Source::ClusterMesh)
            });
        }
    }
    backends
}

type Observer = (Arc<ServiceObserver>, Member<Arc<dyn MeshObserver>>);

fn new_observer(writer: Writer, metrics: Arc<ClusterMeshMetrics>) -> Observer {
    let observer = ServiceObserver::new(writer, metrics);
    (observer.clone(), Member(observe::<ClusterService>(observer)))
}

fn start(
    mesh: Arc<ClusterMesh>,
    observer: Arc<ServiceObserver>,
    jobs: Jobs,
    health: Health,
) -> Result<(), StartError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    observer.writer.set_backend_filter(Arc::new(ClusterAffinity));
    let guard = observer.writer.register_initializer("clustermesh")?;
    let writing = observer.clone();
    jobs.spawn(Job::once("write-services", move |cx: JobCtx| {
        let observer = writing.clone();
        async move {
            let _ = cx.until_cancelled(observer.write()).await;
        }
    }))?;
    let guard = Arc::new(guard);
    jobs.spawn(Job::once("wait-services", move |cx: JobCtx| {
        let (mesh, observer, guard, health) = (mesh.clone(), observer.clone(), guard.clone(), health.clone());
        async move {
            cx.until_cancelled(complete(&mesh, &observer, &guard, &health))
                .await;
        }
    }))?;
    Ok(())
}

/// Why remote services cannot be written.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The program stops.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Another cell has the name of the source.
    #[error("cannot register remote services as a source of the load balancer")]
    Initializer(#[from] statedb::Error),
}

/// Reports remote services complete, or that it takes too long: the load balancer does not wait any longer.
async fn complete(mesh: &ClusterMesh, observer: &ServiceObserver, guard: &InitGuard, health: &Health) {
    match mesh.wait_synced(&[Kind::Services, Kind::EndpointSlices]).await {
        Ok(()) => health.ok("Services of remote clusters are complete"),
        Err(error) => {
            tracing::warn!(
                error = hive::error_chain(&error),
                "Failed waiting for clustermesh synchronization, expect possible disruption of cross-cluster connections"
            );
            health.degraded("Failed waiting for clustermesh synchronization", &error);
        }
    }
    let mut txn = observer.writer.write();
    if let Err(error) = txn.initialized(guard) {
        tracing::error!(%error, "Cannot report services of remote clusters complete");
    }
    txn.commit();
}
