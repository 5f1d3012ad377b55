// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes the configuration of this cluster, and keeps it as it should be.
//! Requires: a client of the key-value store. Without a cluster id nothing is published.

use std::time::Duration;

use hive::{Cell, Cfg, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::{Capabilities, CiliumClusterConfig, ServiceSettings, ValueError, keys};
use skep_k8s_crds::Config as CrdConfig;
use skep_kvstore_client::{Client, Event, Lifetime};

/// Time between two checks of the key.
const REFRESH: Duration = Duration::from_secs(5 * 60);
/// Pauses after failures: from the first to the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

hive::catalogue!(cell);
hive::catalogue!(cell_with_canaries);

/// Publishes the configuration of a cluster whose agents write to the store: not all prefixes have canaries.
pub fn cell() -> Cell {
    module().run(start)
}

/// Publishes the configuration of a cluster of which all prefixes have canaries.
pub fn cell_with_canaries() -> Cell {
    module().run(start_with_canaries)
}

fn module() -> Cell {
    Cell::module(
        "cluster-config-enforcement",
        "Publishes the configuration of this cluster",
    )
}

#[derive(Params)]
struct ConfigParams {
    cluster: Cfg<ClusterSettings>,
    services: Cfg<ServiceSettings>,
    crds: Cfg<CrdConfig>,
    client: Client,
    jobs: Jobs,
}

/// Why the configuration cannot be published.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cluster configuration")]
    Value(#[from] ValueError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

impl ConfigParams {
    fn config(&self, has_canaries: bool) -> CiliumClusterConfig {
        let info = self.cluster.info();
        CiliumClusterConfig {
            id: info.id,
            capabilities: Capabilities {
                synced_canaries: has_canaries,
                max_connected_clusters: info.max_connected_clusters.get(),
                service_exports_enabled: Some(self.crds.clustermesh_enable_mcs_api),
                endpoint_slices_export_mode: self.services.clustermesh_service_v2.published(),
                ..Capabilities::default()
            },
        }
    }
}

fn start(params: ConfigParams) -> Result<(), StartError> {
    publish(params, false)
}

fn start_with_canaries(params: ConfigParams) -> Result<(), StartError> {
    publish(params, true)
}

fn publish(params: ConfigParams, has_canaries: bool) -> Result<(), StartError> {
    let config = params.config(has_canaries);
    if config.id == 0 || !params.client.is_enabled() {
        return Ok(());
    }
    let publisher = Publisher {
        client: params.client,
        key: keys::cluster_config(params.cluster.info().name.as_str()),
        value: config.encode()?,
    };
    Ok(params.jobs.keep("enforce", publisher, Publisher::run)?)
}

struct Publisher {
    client: Client,
    key: String,
    value: Vec<u8>,
}

impl Publisher {
    async fn run(&self, cx: &JobCtx) {
        let mut lost = self.client.lost_keys(&self.key);
        let mut watcher = self.client.list_and_watch(&self.key);
        let mut backoff = BACKOFF.0;
        loop {
            let write = self
                .client
                .put_if_different(&self.key, self.value.clone(), Lifetime::Leased);
            let pause = match write.await {
                Ok(_) => {
                    cx.health.ok("Published");
                    backoff = BACKOFF.0;
                    REFRESH
                }
                Err(error) => {
                    cx.health
                        .degraded("Cannot publish the cluster configuration", &error);
                    let pause = backoff;
                    backoff = (pause * 2).min(BACKOFF.1);
                    pause
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = lost.next() => {}
                () = self.differs(&mut watcher) => {}
            }
        }
    }

    /// Waits until another has changed or deleted the key.
    async fn differs(&self, watcher: &mut skep_kvstore_client::Watcher) {
        loop {
            match watcher.next().await {
                Event::Create(item) | Event::Modify(item) => {
                    if *item.key == *self.key && item.value != self.value {
                        return;
                    }
                }
                Event::Delete(key) => {
                    if *key == *self.key {
                        return;
                    }
                }
                Event::ListDone => {}
            }
        }
    }
}
