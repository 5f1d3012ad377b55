// SPDX-License-Identifier: Apache-2.0

//! Cell: reads the state of remote clusters.
//! Requires: settings of clusters and of the key-value store; observers, a [`Connector`], metrics, if there are any.
//! Provides: [`ClusterMesh`].

use std::sync::Arc;

use hive::{All, Cell, Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use skep_clustermesh_types::ClusterSettings;
use skep_kvstore::KvstoreMetrics;
use skep_kvstore_etcd::{KvstoreConfig, Resolver};
use skep_kvstore_store::{NoStoreRecorder, StoreMetrics, StoreRecorder};

use crate::connector::{Connector, EtcdConnector};
use crate::mesh::{ClusterMesh, ClusterMeshOptions};
use crate::metrics::ClusterMeshMetrics;
use crate::observer::MeshObserver;
use crate::settings::ClusterMeshSettings;

/// The remote clusters.
pub fn cell() -> Cell {
    Cell::module("clustermesh", "Reads the state of remote clusters")
        .config::<ClusterMeshSettings>()
        .provide(skep_metrics::provided::<ClusterMeshMetrics>)
        .provide(new_mesh)
        .run(start)
}

#[derive(Params)]
struct MeshParams {
    settings: Cfg<ClusterMeshSettings>,
    cluster: Cfg<ClusterSettings>,
    kvstore: Cfg<KvstoreConfig>,
    connector: Option<Arc<dyn Connector>>,
    resolver: Option<Arc<dyn Resolver>>,
    observers: All<Arc<dyn MeshObserver>>,
    metrics: Arc<ClusterMeshMetrics>,
    kvstore_metrics: Option<Arc<KvstoreMetrics>>,
    store_metrics: Option<Arc<StoreMetrics>>,
    jobs: Jobs,
    health: Health,
}

fn new_mesh(params: MeshParams) -> Arc<ClusterMesh> {
    let local = params.cluster.info();
    let directory = params.settings.clustermesh_config.clone();
    if local.id == 0 || directory.as_os_str().is_empty() {
        return ClusterMesh::disabled();
    }
    let connector = params.connector.unwrap_or_else(|| {
        let connector = EtcdConnector::new(&params.kvstore, params.resolver);
        Arc::new(match params.kvstore_metrics {
            Some(metrics) => connector.with_recorder(metrics),
            None => connector,
        })
    });
    let recorder: Arc<dyn StoreRecorder> = match params.store_metrics {
        Some(metrics) => metrics,
        None => Arc::new(NoStoreRecorder),
    };
    ClusterMesh::new(ClusterMeshOptions {
        local,
        directory,
        cache_ttl: params.settings.clustermesh_cache_ttl,
        connector,
        observers: params.observers.iter().cloned().collect(),
        lifecycle: None,
        recorder,
        metrics: params.metrics,
        sync_timeout: params.settings.clustermesh_sync_timeout,
        jobs: params.jobs,
        health: params.health,
    })
}

fn start(mesh: Arc<ClusterMesh>, jobs: Jobs) -> Result<(), SpawnError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    jobs.spawn(Job::once("clustermesh-config", move |cx: JobCtx| {
        mesh.clone().run(cx)
    }))
}
