// SPDX-License-Identifier: Apache-2.0

//! Cells: copies remote clusters into the own key-value store.
//! Requires: [`Client`], settings of clusters and of the key-value store, a [`Connector`], metrics, if there are any.
//! Provides: [`ClusterMesh`] for the status, [`Readiness`], metrics. [`leader`] is what runs, in a scope of the leader.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_mesh::{
    ClusterLifecycle, ClusterMesh, ClusterMeshMetrics, ClusterMeshOptions, Connector, EtcdConnector,
};
use skep_kvstore_client::{Client, KvstoreMetrics};
use skep_kvstore_etcd::{KvstoreConfig, Resolver};
use skep_kvstore_store::{NoStoreRecorder, StoreMetrics, StoreRecorder};
use tokio::time::Instant;

use crate::config::{HeartbeatConfig, KvstoreMeshConfig};
use crate::copies::Copies;
use crate::metrics::KvstoreMeshMetrics;
use crate::mirror::reflectors;
use crate::orphans;
use crate::ready::{self, Readiness};

/// Time between two reports of metrics.
const REPORT: Duration = Duration::from_secs(1);

/// Names the scope of what only the leader runs.
pub(crate) struct Leader;

/// The copies of remote clusters. They are written while [`leader`] runs.
pub fn cell() -> Cell {
    Cell::module("kvstoremesh", "Copies the state of remote clusters")
        .config::<KvstoreMeshConfig>()
        .provide(skep_base_metrics::provided::<KvstoreMeshMetrics>)
        .provide(new_readiness)
        .provide(new_copies)
        .provide(new_mesh)
}

/// What only the leader does: copy, and write the heartbeat if that is enabled.
pub fn leader() -> Cell {
    Cell::scope::<Leader>("leader", [copying(), heartbeat()])
}

fn copying() -> Cell {
    Cell::module(
        "kvstoremesh-leader",
        "Copies remote clusters while this replica leads",
    )
    .run(start)
}

fn heartbeat() -> Cell {
    skep_kvstore_client::cell::heartbeat_updater()
        .config::<HeartbeatConfig>()
        .when(|config: &HeartbeatConfig| config.enable_heartbeat)
}

/// Why nothing can be copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeshError {
    /// Set `cluster-id`: a cluster without an id cannot be in a mesh.
    #[error("kvstoremesh requires a cluster id: set `cluster-id`")]
    NoClusterId,
}

fn new_readiness() -> Arc<Readiness> {
    Arc::new(Readiness::new())
}

#[derive(Params)]
struct CopiesParams {
    config: Cfg<KvstoreMeshConfig>,
    client: Client,
    metrics: Arc<KvstoreMeshMetrics>,
    store_metrics: Option<Arc<StoreMetrics>>,
    jobs: Jobs,
}

fn recorder(metrics: Option<Arc<StoreMetrics>>) -> Arc<dyn StoreRecorder> {
    match metrics {
        Some(metrics) => metrics,
        None => Arc::new(NoStoreRecorder),
    }
}

fn new_copies(params: CopiesParams) -> Arc<Copies> {
    Copies::new(
        params.client,
        !params.config.disable_drain_on_disconnection,
        recorder(params.store_metrics),
        params.metrics,
        params.jobs,
    )
}

#[derive(Params)]
struct MeshParams {
    config: Cfg<KvstoreMeshConfig>,
    cluster: Cfg<ClusterSettings>,
    kvstore: Cfg<KvstoreConfig>,
    copies: Arc<Copies>,
    connector: Option<Arc<dyn Connector>>,
    resolver: Option<Arc<dyn Resolver>>,
    kvstore_metrics: Option<Arc<KvstoreMetrics>>,
    store_metrics: Option<Arc<StoreMetrics>>,
    jobs: Jobs,
    health: Health,
}

fn new_mesh(params: MeshParams) -> Result<Arc<ClusterMesh>, MeshError> {
    let local = params.cluster.info();
    if local.id == 0 {
        return Err(MeshError::NoClusterId);
    }
    let directory = params.config.clustermesh_config.clone();
    if directory.as_os_str().is_empty() {
        return Ok(ClusterMesh::disabled());
    }
    let connector = params.connector.unwrap_or_else(|| {
        let connector = EtcdConnector::new(&params.kvstore, params.resolver);
        Arc::new(match params.kvstore_metrics {
            Some(metrics) => connector.with_recorder(metrics),
            None => connector,
        })
    });
    Ok(ClusterMesh::new(ClusterMeshOptions {
        local,
        directory,
        cache_ttl: params.config.clustermesh_cache_ttl,
        sync_timeout: params.config.global_ready_timeout,
        connector,
        observers: reflectors(&params.copies),
        lifecycle: Some(params.copies as Arc<dyn ClusterLifecycle>),
        recorder: recorder(params.store_metrics),
        // Those of this program have other names.
        metrics: Arc::new(ClusterMeshMetrics::default()),
        jobs: params.jobs,
        health: params.health,
    }))
}

#[derive(Params)]
struct LeaderParams {
    config: Cfg<KvstoreMeshConfig>,
    cluster: Cfg<ClusterSettings>,
    mesh: Arc<ClusterMesh>,
    copies: Arc<Copies>,
    readiness: Arc<Readiness>,
    metrics: Arc<KvstoreMeshMetrics>,
}

fn start(params: LeaderParams, jobs: Jobs) -> Result<(), SpawnError> {
    let LeaderParams {
        config,
        cluster,
        mesh,
        copies,
        readiness,
        metrics,
    } = params;
    let local = cluster.info().name;
    {
        let mesh = mesh.clone();
        jobs.spawn(Job::once("clustermesh-config", move |cx: JobCtx| {
            mesh.clone().run(cx)
        }))?;
    }
    let former = (copies.clone(), mesh.clone(), local);
    jobs.keep("former-clusters", former, orphans::remove)?;
    {
        let (mesh, metrics) = (mesh.clone(), metrics.clone());
        jobs.spawn(Job::every(REPORT, "metrics", move |_: JobCtx| {
            metrics.update(&mesh.status());
            std::future::ready(Ok::<(), std::convert::Infallible>(()))
        }))?;
    }
    jobs.spawn(Job::once("ready", move |cx: JobCtx| {
        let (mesh, copies) = (mesh.clone(), copies.clone());
        let (readiness, metrics, config) = (readiness.clone(), metrics.clone(), config.clone());
        async move {
            let started = Instant::now();
            let copied = ready::wait_copied(
                &mesh,
                &copies,
                config.per_cluster_ready_timeout,
                config.global_ready_timeout,
            );
            if cx.until_cancelled(copied).await.is_some() {
                copies.client.bootstrapped();
                metrics.bootstrap.set(started.elapsed().as_secs_f64());
                readiness.set();
            }
        }
    }))
}
