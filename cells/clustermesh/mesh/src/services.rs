// SPDX-License-Identifier: Apache-2.0

//! Cell: remote services as backends of the load balancer.
//! Requires: the writer of its tables, the mesh. Provides: an observer.
//!
//! Clusters publish services or endpoint slices or both: `--clustermesh-service-v2` says which are read.
//!
//! Traffic needs a service of the local cluster with the same name, annotated as global: frontends of remote clusters are not
//! used. Backends of a service without one are in the tables as well, unused.
//!
//! Changes are gathered while a transaction is written, the last one of each service, and written together: of a cluster
//! with ten thousand services the first list is a few transactions.

mod backends;
mod slices;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{Cell, Cfg, Health, Job, JobCtx, Jobs, Members, SpawnError};
use parking_lot::Mutex;
use skep_clustermesh_types::{Capabilities, ClusterEndpointSlice, ClusterService, Kind, RemoteInfo};
use skep_kvstore::Key;
use skep_loadbalancer_model::{ClusterAffinity, ServiceName, Source, Writer};
use statedb::InitGuard;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};
use slices::SliceObserver;

pub use skep_clustermesh_types::{ServiceMode, ServiceSettings};

/// Services a transaction: others that write the same tables wait no longer than for these.
const BATCH: usize = 1000;

hive::catalogue!(cell);

/// Remote services as backends.
pub fn cell() -> Cell {
    Cell::module(
        "clustermesh-services",
        "Remote services as backends of the load balancer",
    )
    .config::<ServiceSettings>()
    .provide(new_observers)
    .run(start)
}

/// Writes the backends of remote services.
#[derive(Debug)]
pub struct ServiceObserver {
    writer: Writer,
    metrics: Arc<ClusterMeshMetrics>,
    mode: ServiceMode,
    pending: Mutex<Pending>,
    progress: watch::Sender<Progress>,
}

/// A service of a cluster.
type Place = (u32, ServiceName);

#[derive(Debug, Default)]
struct Pending {
    /// Where the backends of the service are, and since when that waits.
    services: HashMap<Place, (Desired, Instant)>,
}

/// Where the backends of a service are.
#[derive(Debug)]
enum Desired {
    /// In the service.
    Service(Arc<ClusterService>),
    /// In its slices.
    Slices(Vec<Arc<ClusterEndpointSlice>>),
    /// It has none.
    Gone,
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
    pub fn new(writer: Writer, metrics: Arc<ClusterMeshMetrics>, mode: ServiceMode) -> Arc<Self> {
        Arc::new(Self {
            writer,
            metrics,
            mode,
            pending: Mutex::default(),
            progress: watch::Sender::default(),
        })
    }

    fn note(&self, place: Place, desired: Desired) {
        let mut pending = self.pending.lock();
        match pending.services.entry(place) {
            Entry::Occupied(mut entry) => entry.get_mut().0 = desired,
            Entry::Vacant(entry) => {
                entry.insert((desired, Instant::now()));
            }
        }
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
        for ((cluster_id, name), (desired, _)) in &batch {
            let backends = match desired {
                Desired::Service(service) => backends::of_service(*cluster_id, service),
                Desired::Slices(slices) => backends::of_slices(*cluster_id, slices),
                Desired::Gone => Vec::new(),
            };
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
        let desired = if service.shared {
            Desired::Service(service.clone())
        } else {
            Desired::Gone
        };
        self.note(place(cluster, service), desired);
    }

    fn delete(&self, cluster: &RemoteInfo, _name: &Key, service: &Arc<ClusterService>) {
        self.note(place(cluster, service), Desired::Gone);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        let mode = &capabilities.endpoint_slices_export_mode;
        if !self.mode.reads_services(mode) && !self.mode.reads_slices(mode) {
            tracing::error!(
                publishes = mode.as_str(), reads = %self.mode,
                "A remote cluster does not publish what is read: its backends are not used"
            );
        }
        self.mode.reads_services(mode)
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

fn place(cluster: &RemoteInfo, service: &ClusterService) -> Place {
    (cluster.id, ServiceName::new(&service.namespace, &service.name))
}

type Observers = (Arc<ServiceObserver>, Members<Arc<dyn MeshObserver>>);

fn new_observers(
    writer: Writer,
    metrics: Arc<ClusterMeshMetrics>,
    settings: Cfg<ServiceSettings>,
) -> Observers {
    let services = ServiceObserver::new(writer, metrics, settings.clustermesh_service_v2);
    let slices = Arc::new(SliceObserver::new(services.clone()));
    let members = vec![
        observe::<ClusterService>(services.clone()),
        observe::<ClusterEndpointSlice>(slices),
    ];
    (services, Members(members))
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
