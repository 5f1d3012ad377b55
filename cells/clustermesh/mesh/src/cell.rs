// SPDX-License-Identifier: Apache-2.0

//! Cell: reads the state of remote clusters.
//! Requires: settings of clusters and of the key-value store; observers, a [`Connector`], metrics, if there are any.
//! Provides: [`ClusterMesh`].

use std::sync::Arc;

use hive::{All, Cell, Cfg, Health, Job, JobCtx, Jobs, Members, Params, SpawnError};
use skep_base_metrics::MetricHandle;
use skep_base_settings::cluster::ClusterSettings;
use skep_kvstore_client::KvstoreMetrics;
use skep_kvstore_etcd::{KvstoreConfig, Resolver};
use skep_kvstore_store::{NoStoreRecorder, StoreMetrics, StoreRecorder};

use crate::connector::{Connector, EtcdConnector};
use crate::mesh::{ClusterMesh, ClusterMeshOptions};
use crate::metrics::ClusterMeshMetrics;
use crate::observer::MeshObserver;
use crate::settings::ClusterMeshSettings;

/// The remote clusters, with the metrics of an agent.
pub fn cell() -> Cell {
    with_metrics(skep_base_metrics::provided::<ClusterMeshMetrics>)
}

/// As [`cell`], with the metrics of an operator: without nodes, addresses and changes of maps.
pub fn operator_cell() -> Cell {
    with_metrics(operator_metrics)
}

fn with_metrics(metrics: fn() -> (Arc<ClusterMeshMetrics>, Members<MetricHandle>)) -> Cell {
    Cell::module("clustermesh", "Reads the state of remote clusters")
        .config::<ClusterMeshSettings>()
        .provide(metrics)
        .provide(new_mesh)
        .run(start)
}

fn operator_metrics() -> (Arc<ClusterMeshMetrics>, Members<MetricHandle>) {
    let metrics = Arc::new(ClusterMeshMetrics::default());
    let exported = Members(metrics.of_operator());
    (metrics, exported)
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
    // What nothing observes is not read.
    if local.id == 0 || directory.as_os_str().is_empty() || params.observers.is_empty() {
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

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};
    use skep_base_metrics::{Namespace, Registry};

    use super::*;

    /// Names of the metrics that a program with this cell exports.
    fn exported(mesh: Cell, namespace: Namespace) -> Vec<String> {
        let cells = [
            skep_base_metrics::cell_in(namespace),
            skep_base_settings::cluster::cell(),
            skep_kvstore_etcd::cell(),
            mesh,
        ];
        let hive = Hive::new(cells).root::<Arc<Registry>>();
        let built = hive.plan(Settings::new()).expect("a plan").build();
        let registry = built.expect("a hive").get::<Arc<Registry>>();
        let registry = registry.expect("it is provided");
        let names = registry.all().map(|(name, _)| name.to_owned());
        names.filter(|name| name.contains("clustermesh")).collect()
    }

    #[test]
    fn operator_exports_no_metrics_of_nodes_and_addresses() {
        assert_eq!(
            exported(operator_cell(), Namespace::OPERATOR),
            [
                "cilium_operator_clustermesh_remote_cluster_cache_revocations",
                "cilium_operator_clustermesh_remote_cluster_endpoint_slices",
                "cilium_operator_clustermesh_remote_cluster_failures",
                "cilium_operator_clustermesh_remote_cluster_last_failure_ts",
                "cilium_operator_clustermesh_remote_cluster_readiness_status",
                "cilium_operator_clustermesh_remote_cluster_service_exports",
                "cilium_operator_clustermesh_remote_cluster_services",
                "cilium_operator_clustermesh_remote_clusters",
            ]
        );
    }

    #[test]
    fn agent_exports_all_metrics_of_remote_clusters() {
        let names = exported(cell(), Namespace::AGENT);

        assert_eq!(names.len(), 11, "{names:?}");
        for name in ["cluster_nodes", "cluster_endpoints", "change_duration_seconds"] {
            let name = format!("cilium_clustermesh_remote_{name}");
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }
}
