// SPDX-License-Identifier: Apache-2.0

//! Cell: the multi-cluster services API (MCS-API): services that several clusters export become one.
//! Requires: a Kubernetes client, the mesh, settings of the cluster, of definitions and of what is shared. Provides: an observer, metrics.
//! For leaders only: two programs would write the same objects.
//!
//! 1. The exports of all clusters are merged ([`merge`]): properties of the oldest, ports of all.
//! 2. The result is a ServiceImport, in each shared namespace that exists here.
//! 3. A Service is derived of it, global and without a selector: its addresses are those of the import.
//! 4. Endpoints of the local cluster come by copies of its slices; those of others by the mesh.
//! 5. The conditions of the local ServiceExport say whether it is valid, and where clusters disagree.

mod condition;
mod controller;
mod desired;
mod exports;
mod local;
pub mod merge;
mod metrics;
mod names;
mod plan;
mod slices;
mod state;
mod view;
mod write;

use std::sync::Arc;

use hive::{Cell, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, Member, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_export::ExportSettings;
use skep_clustermesh_mesh::{ClusterMesh, MeshObserver, observe};
use skep_clustermesh_types::{Kind, ServiceExport};
use skep_k8s_client::{ApiError, Client};
use skep_k8s_controller::Controller;
use skep_k8s_crds::Config;
use skep_k8s_types::Resource;
use skep_k8s_types::slim::Namespace;

use self::controller::Merger;
use self::exports::RemoteExports;
use self::metrics::McsApiMetrics;
use self::state::State;
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::remote::Incomplete;
use crate::synced;

#[cfg(test)]
pub(crate) use self::metrics::McsApiMetrics as Metrics;
pub(crate) use self::names::{HEADLESS, MANAGED_BY, MIRROR_MANAGER, SOURCE_CLUSTER};

hive::catalogue!(cell);

/// Services that are written at the same time.
const WORKERS: usize = 8;

/// Merges service exports of all clusters.
pub fn cell() -> Cell {
    Cell::module("mcsapi", "Merges service exports of all clusters")
        .provide(skep_base_metrics::provided::<McsApiMetrics>)
        .provide(new_observer)
        .run(start)
        .when(|config: &Config| config.clustermesh_enable_mcs_api)
}

type Observer = (Arc<RemoteExports>, Member<Arc<dyn MeshObserver>>);

fn new_observer() -> Observer {
    let exports = Arc::new(RemoteExports::default());
    (exports.clone(), Member(observe::<ServiceExport>(exports)))
}

/// Why the program does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The API server cannot be asked which kinds it has.
    #[error("cannot list the kinds of the API server")]
    Kinds(#[source] ApiError),
    /// Definitions are missing. Install them, or enable `clustermesh-mcs-api-install-crds`.
    #[error("the API server does not have {0}")]
    Missing(String),
}

#[derive(Params)]
struct StartParams {
    crds: Cfg<Config>,
    namespaces: Cfg<ExportSettings>,
    cluster: Cfg<ClusterSettings>,
    remote: Arc<RemoteExports>,
    mesh: Arc<ClusterMesh>,
    client: Arc<dyn Client>,
    metrics: Arc<McsApiMetrics>,
    queues: Option<Arc<WorkqueueMetrics>>,
    lifecycle: Lifecycle,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    if !params.client.is_enabled() || !params.mesh.is_enabled() {
        return Ok(());
    }
    if !params.crds.clustermesh_mcs_api_install_crds {
        let client = params.client.clone();
        params.lifecycle.on_start("find-kinds", move |_: HookCtx| {
            let client = client.clone();
            async move { find_kinds(&*client).await }
        });
    }
    let jobs = params.jobs.clone();
    let cluster = params.cluster.info().name;
    jobs.spawn(Job::once("merge-exports", move |cx: JobCtx| {
        let shares_namespaces = params.namespaces.clustermesh_default_global_namespace;
        let merger = Merger {
            state: State::new(cluster.to_string(), shares_namespaces),
            remote: params.remote.clone(),
            mesh: params.mesh.clone(),
            client: params.client.clone(),
            metrics: params.metrics.clone(),
            incomplete: Incomplete::default(),
        };
        let queue = WorkqueueRecorder::new(params.queues.as_ref(), "mcsapi");
        let controller = Controller::new(merger, queue)
            .concurrency(WORKERS)
            .wait_for(synced(params.mesh.clone(), &[Kind::ServiceExports]))
            .watch_all::<ExportObject>(&params.client)
            .watch_all::<ImportObject>(&params.client)
            .watch_all::<ServiceObject>(&params.client)
            .watch_all::<SliceObject>(&params.client)
            .watch_all::<Namespace>(&params.client)
            .source(params.remote.clone().changes(), |merger, changes| {
                merger.incomplete.affected(changes)
            });
        async move {
            cx.health.starting("Waiting for remote clusters");
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run(&cx.health)).await;
        }
    }))
}

/// Checks that the API server has what others had to install.
async fn find_kinds(client: &dyn Client) -> Result<(), StartError> {
    let kinds = client.kinds().await.map_err(StartError::Kinds)?;
    let required = [ExportObject::kind(), ImportObject::kind()];
    let missing = required.iter().filter(|kind| !kinds.contains(kind));
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(StartError::Missing(missing.join(", ")))
}
