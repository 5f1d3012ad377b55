// SPDX-License-Identifier: Apache-2.0

//! Cell: backends of remote clusters as EndpointSlices, for DNS and others that read them from Kubernetes.
//! Requires: a Kubernetes client, the mesh, settings of services. Provides: observers.
//! For leaders only: two programs would write the same slices.
//!
//! Mirrored are global Services that are headless, or annotated with `service.cilium.io/global-sync-endpoint-slices`. Agents
//! do not use these slices: they have the backends by the mesh.

mod assign;
mod config;
mod controller;
mod object;
mod plan;
mod remote;

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Members, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_clustermesh_mesh::{ClusterMesh, MeshObserver, observe};
use skep_clustermesh_types::{ClusterEndpointSlice, ClusterService, Kind, ServiceSettings};
use skep_k8s_client::{Api, Client};
use skep_k8s_controller::{Controller, Store};
use skep_k8s_types::selector::{Selector, SelectorError};

use self::controller::Mirror;
use self::object::MirroredSlice;
use self::remote::RemoteBackends;
use crate::mcsapi::{MANAGED_BY, MIRROR_MANAGER};
use crate::object::ServiceObject;
use crate::remote::Incomplete;
use crate::slices::SliceIndex;
use crate::synced;

pub use self::config::Config;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module(
        "endpoint-sync",
        "Mirrors backends of remote clusters as EndpointSlices",
    )
    .config::<Config>()
    .provide(new_observers)
    .run(start)
    .when(|config: &Config| config.clustermesh_enable_endpoint_sync)
}

type Observers = (Arc<RemoteBackends>, Members<Arc<dyn MeshObserver>>);

fn new_observers(settings: Cfg<ServiceSettings>) -> Observers {
    let remote = Arc::new(RemoteBackends::new(settings.clustermesh_service_v2));
    let observers = vec![
        observe::<ClusterService>(remote.clone()),
        observe::<ClusterEndpointSlice>(remote.clone()),
    ];
    (remote, Members(observers))
}

/// Why the program does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// An error of this crate.
    #[error("selector of mirrored slices")]
    Selector(#[from] SelectorError),
    /// The program stops.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    remote: Arc<RemoteBackends>,
    mesh: Arc<ClusterMesh>,
    client: Arc<dyn Client>,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    if !params.client.is_enabled() || !params.mesh.is_enabled() {
        return Ok(());
    }
    let selector: Selector = format!("{MANAGED_BY}={MIRROR_MANAGER}").parse()?;
    let jobs = params.jobs.clone();
    jobs.spawn(Job::once("mirror", move |cx: JobCtx| {
        let config = &params.config;
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let mirror = Mirror {
            services: Store::default(),
            slices: Store::default(),
            slices_of: SliceIndex::default(),
            remote: params.remote.clone(),
            mesh: params.mesh.clone(),
            client: params.client.clone(),
            incomplete: Incomplete::default(),
            most: count(config.clustermesh_endpoints_per_slice),
            delay: config.clustermesh_endpoint_updates_batch_period,
        };
        let queue = WorkqueueRecorder::new(params.queues.as_ref(), "endpoint-sync");
        let slices = Api::<MirroredSlice>::all(params.client.clone()).labels(selector.clone());
        let controller = Controller::new(mirror, queue)
            .concurrency(count(config.clustermesh_concurrent_service_endpoint_syncs))
            .wait_for(synced(
                params.mesh.clone(),
                &[Kind::Services, Kind::EndpointSlices],
            ))
            .watch_all::<ServiceObject>(&params.client)
            .watch(Arc::new(slices))
            .source(params.remote.changes(), |mirror, changes| {
                mirror.incomplete.affected(changes)
            });
        async move {
            cx.health.starting("Waiting for remote clusters");
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run(&cx.health)).await;
        }
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests;
