// SPDX-License-Identifier: Apache-2.0

//! Cell: the replica is ready when everything is published that existed at first.
//! Requires: what is published, a client of the key-value store. Provides: [`Readiness`].

use std::sync::Arc;

use hive::config::Faults;
use hive::{All, Cell, Job, JobCtx, Jobs, SpawnError};
use skep_base_metrics::{Gauge, Metrics};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_export::Exported;
use skep_clustermesh_kvstoremesh::Readiness;
use skep_kvstore_client::Client;
use skep_kvstore_etcd::KvstoreConfig;
use tokio::time::Instant;

hive::catalogue!(cell);

/// When the replica is ready.
pub(super) fn cell() -> Cell {
    Cell::module("health-api-endpoints", "Readiness of this replica")
        .check(check)
        .provide(skep_base_metrics::provided::<BootstrapMetrics>)
        .provide(new)
        .run(start)
}

/// How the start went.
#[derive(Debug, Metrics)]
pub(super) struct BootstrapMetrics {
    /// Duration of the initial synchronization.
    #[metric(name = "bootstrap_seconds")]
    bootstrap: Gauge,
}

fn check(cluster: &ClusterSettings, kvstore: &KvstoreConfig, faults: &mut Faults) {
    if cluster.cluster_id == 0 {
        let max = cluster.max_connected_clusters;
        faults.add("cluster-id", format!("it must be from 1 to {max}"));
    }
    if kvstore.kvstore.is_empty() {
        faults.add("kvstore", "a key-value store is required");
    }
}

fn new() -> Arc<Readiness> {
    Arc::new(Readiness::new())
}

fn start(
    exported: All<Exported>,
    readiness: Arc<Readiness>,
    metrics: Arc<BootstrapMetrics>,
    client: Client,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let exported: Arc<[Exported]> = exported.into_vec().into();
    jobs.spawn(Job::once("ready", move |cx: JobCtx| {
        let (exported, readiness) = (exported.clone(), readiness.clone());
        let (metrics, client) = (metrics.clone(), client.clone());
        async move {
            let started = Instant::now();
            let synced = async {
                for exported in &*exported {
                    exported.wait_synced().await;
                }
            };
            if cx.until_cancelled(synced).await.is_some() {
                client.bootstrapped();
                metrics.bootstrap.set(started.elapsed().as_secs_f64());
                readiness.set();
                cx.health.ok("Everything is published");
            }
        }
    }))
}
