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

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{BoxError, Cell, Cfg, Health, Jobs, Members};
use skep_clustermesh_types::{Capabilities, ClusterEndpointSlice, ClusterService, Kind, RemoteInfo};
use skep_kvstore_client::Key;
use skep_loadbalancer_model::{ClusterAffinity, ServiceName, Source, Writer, WriterError};

use crate::batch::{Batches, Realized, reconciled};
use crate::complete::InitialSync;
use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};
use slices::SliceObserver;

pub use skep_clustermesh_types::{ServiceMode, ServiceSettings};

/// Services a transaction: others that write the same tables wait no longer than for these.
const BATCH: usize = 1000;

hive::catalogue!(cell);

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
    mode: ServiceMode,
    batches: Arc<Batches<Place, Desired>>,
}

type Place = (u32, ServiceName);

/// Where the backends of a service are.
#[derive(Debug)]
enum Desired {
    Service(Arc<ClusterService>),
    Slices(Vec<Arc<ClusterEndpointSlice>>),
    Gone,
}

impl ServiceObserver {
    fn new(writer: Writer, metrics: Arc<ClusterMeshMetrics>, mode: ServiceMode) -> Arc<Self> {
        Arc::new(Self {
            writer,
            mode,
            batches: Arc::new(Batches::new(Kind::Services, BATCH, metrics)),
        })
    }

    fn note(&self, place: Place, desired: Desired) {
        self.batches.note(place, desired);
    }

    /// `name` is `<namespace>/<name>`: values with another name were rejected when they were decoded.
    fn upsert_or_delete(&self, cluster: &RemoteInfo, name: &Key, desired: Desired) {
        if let Some((namespace, name)) = name.split_once('/') {
            self.note((cluster.id, ServiceName::new(namespace, name)), desired);
        }
    }

    fn write(&self, batch: Vec<(Place, Desired)>) -> Result<Realized, WriterError> {
        let mut txn = self.writer.write();
        for ((cluster_id, name), desired) in &batch {
            let backends = match desired {
                Desired::Service(service) => backends::of_service(*cluster_id, service),
                Desired::Slices(slices) => backends::of_slices(*cluster_id, slices),
                Desired::Gone => Vec::new(),
            };
            self.writer
                .set_backends(&mut txn, name, Source::ClusterMesh, *cluster_id, backends)?;
        }
        Ok(reconciled(self.writer.frontends(), &txn.commit()))
    }
}

impl ValueObserver<ClusterService> for ServiceObserver {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, service: &Arc<ClusterService>) {
        // One that is not shared any longer counts as gone.
        let desired = if service.shared {
            Desired::Service(service.clone())
        } else {
            Desired::Gone
        };
        self.upsert_or_delete(cluster, name, desired);
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.upsert_or_delete(cluster, name, Desired::Gone);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        let mode = &capabilities.endpoint_slices_export_mode;
        if !self.mode.reads_services(mode) && !self.mode.reads_slices(mode) {
            tracing::error!(
                publishes = mode.as_str(), reads = %self.mode,
                "Ignoring backends of remote cluster: incompatible export mode"
            );
        }
        self.mode.reads_services(mode)
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        self.batches.flushed().boxed()
    }
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
) -> Result<(), BoxError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    observer.writer.set_backend_filter(Arc::new(ClusterAffinity));
    let guard = observer.writer.register_initializer("clustermesh")?;
    let writing = observer.clone();
    observer
        .batches
        .clone()
        .spawn(&jobs, "write-services", move |batch| Ok(writing.write(batch)?))?;
    let awaited = InitialSync {
        kinds: &[Kind::Services, Kind::EndpointSlices],
        what: "Services of remote clusters",
        done: move || {
            let mut txn = observer.writer.write();
            txn.initialized(&guard)?;
            txn.commit();
            Ok(())
        },
    };
    awaited.spawn(mesh, &jobs, "wait-services", health)?;
    Ok(())
}
