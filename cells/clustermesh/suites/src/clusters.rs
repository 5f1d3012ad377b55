// SPDX-License-Identifier: Apache-2.0

//! Clusters of the suite: their configurations, and the store that they share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hive::{Cell, HookCtx, Lifecycle};
use skep_clustermesh_mesh::{ConfigFile, Connector};
use skep_clustermesh_types::{Capabilities, CiliumClusterConfig, ClusterName, keys};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::{Backend, Cause, Client, ClientKind, ClientOptions, Lifetime, RateLimit};
use skep_kvstore_etcd::KvstoreConfig;

/// The clusters; their ids are their positions, from 1.
const NAMES: [&str; 3] = ["cluster1", "cluster2", "cluster3"];

/// The store of all clusters, and how it is reached.
pub(crate) fn cell() -> Cell {
    Cell::group([
        skep_kvstore_client::cell::memory(),
        Cell::module("test-clusters", "Clusters that share a store in memory")
            .config::<KvstoreConfig>()
            .provide(new_connector),
    ])
}

/// Writes the configuration files of all clusters; returns their directory.
pub(crate) fn write_files(state_dir: &Path) -> std::io::Result<PathBuf> {
    let directory = state_dir.join("clustermesh");
    std::fs::create_dir_all(&directory)?;
    for name in NAMES {
        let text = format!("endpoints:\n- http://{name}.mesh.example:2379\n");
        std::fs::write(directory.join(name), text)?;
    }
    Ok(directory)
}

/// Connects to the one store, whatever the cluster.
#[derive(Debug)]
struct SharedStore(Memory);

impl Connector for SharedStore {
    fn connect(&self, _: &ClusterName, _: &ConfigFile) -> Result<Arc<dyn Backend>, Cause> {
        Ok(Arc::new(self.0.clone()))
    }

    fn client_options(&self, cluster: &ClusterName) -> ClientOptions {
        let mut options = ClientOptions::new(format!("etcd-{cluster}"), ClientKind::Mesh);
        options.rate = RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 0,
        };
        options
    }
}

/// The connector. Configurations of the clusters are in the store before anything is read.
fn new_connector(memory: Memory, client: Client, lifecycle: Lifecycle) -> Arc<dyn Connector> {
    lifecycle.on_start("publish-clusters", move |_: HookCtx| publish(client.clone()));
    Arc::new(SharedStore(memory))
}

async fn publish(client: Client) -> Result<(), skep_kvstore_client::Error> {
    for (name, id) in NAMES.into_iter().zip(1..) {
        let config = CiliumClusterConfig {
            id,
            capabilities: Capabilities {
                max_connected_clusters: 255,
                ..Capabilities::default()
            },
        };
        let value = config.encode().expect("a configuration is JSON");
        client
            .put(&keys::cluster_config(name), value, Lifetime::Permanent)
            .await?;
    }
    Ok(())
}
