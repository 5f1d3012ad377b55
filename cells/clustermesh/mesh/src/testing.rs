// SPDX-License-Identifier: Apache-2.0

//! For tests: remote clusters in stores in memory, and a directory that configures them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use skep_clustermesh_types::{
    Addresses, Capabilities, CiliumClusterConfig, ClusterName, ClusterService, Kind, ServicePort, keys,
};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::{Backend, Cause, Client, ClientKind, ClientOptions, Lifetime, RateLimit};

use crate::connector::Connector;
use crate::directory::ConfigFile;

#[derive(Clone, Debug, Default)]
pub struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    /// Keeps what this thread logs while the second value lives.
    pub fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let logged = Self::default();
        let writer = logged.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (logged, tracing::subscriber::set_default(subscriber))
    }

    pub fn warnings(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let lines = all
            .lines()
            .filter(|line| line.contains(" WARN ") && line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

/// Connects to stores by the names of their clusters.
#[derive(Debug, Default)]
pub struct StoreConnector {
    stores: Mutex<HashMap<String, Arc<dyn Backend>>>,
}

/// There is no store of that cluster.
#[derive(Debug, thiserror::Error)]
#[error("no store for `{0}`")]
pub struct NoStore(String);

impl StoreConnector {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets connections to a cluster reach this store from now on.
    pub fn set(&self, cluster: &str, store: Arc<dyn Backend>) {
        self.stores.lock().insert(cluster.to_owned(), store);
    }
}

impl Connector for StoreConnector {
    fn connect(&self, cluster: &ClusterName, file: &ConfigFile) -> Result<Arc<dyn Backend>, Cause> {
        let no_store = || Arc::new(NoStore(cluster.to_string())) as Cause;
        if file.text.contains("bad") {
            return Err(no_store());
        }
        self.stores
            .lock()
            .get(cluster.as_str())
            .cloned()
            .ok_or_else(no_store)
    }

    fn client_options(&self, cluster: &ClusterName) -> ClientOptions {
        let rate = RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 0,
        };
        ClientOptions {
            rate,
            ..ClientOptions::new(format!("etcd-{cluster}"), ClientKind::Mesh)
        }
    }
}

/// A remote cluster that writes its state into a store.
#[derive(Debug)]
pub struct FakeCluster {
    pub name: String,
    pub id: u32,
    client: Client,
}

impl FakeCluster {
    /// A cluster in a store in memory, with heartbeat and configuration.
    pub async fn in_memory(name: &str, id: u32) -> (Self, Memory) {
        let store = Memory::new();
        let cluster = Self::in_store(name, id, Arc::new(store.clone())).await;
        (cluster, store)
    }

    /// A cluster in a store, with heartbeat, configuration and all canaries.
    pub async fn in_store(name: &str, id: u32, store: Arc<dyn Backend>) -> Self {
        let rate = RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 0,
        };
        let options = ClientOptions {
            rate,
            ..ClientOptions::new("etcd", ClientKind::Full)
        };
        let (client, _) = Client::new(store, options);
        let cluster = Self {
            name: name.to_owned(),
            id,
            client,
        };
        cluster.publish().await;
        cluster
    }

    /// Writes heartbeat, configuration and all canaries.
    pub async fn publish(&self) {
        self.beat().await;
        self.configure(Capabilities {
            synced_canaries: true,
            max_connected_clusters: 255,
            ..Capabilities::default()
        })
        .await;
        for kind in Kind::ALL {
            self.put_key(&keys::canary(&self.name, kind, false), "2026-06-01T10:00:00Z")
                .await;
        }
    }

    pub async fn beat(&self) {
        self.put_key(skep_kvstore_client::keys::HEARTBEAT, "2026-06-01T10:00:00Z")
            .await;
    }

    /// Writes the configuration of the cluster.
    pub async fn configure(&self, capabilities: Capabilities) {
        let config = CiliumClusterConfig {
            id: self.id,
            capabilities,
        };
        let value = config.encode().expect("it is JSON");
        self.put_key(&keys::cluster_config(&self.name), value).await;
    }

    pub async fn put_key(&self, key: &str, value: impl Into<bytes::Bytes>) {
        let value = value.into();
        self.client
            .put(key, value, Lifetime::Permanent)
            .await
            .expect("it is written");
    }

    pub async fn delete_key(&self, key: &str) {
        self.client.delete(key).await.expect("it is deleted");
    }

    /// Deletes all keys of a prefix at once.
    pub async fn delete_prefix(&self, prefix: &str) {
        self.client.delete_prefix(prefix).await.expect("it is deleted");
    }

    /// Writes a value of a kind by its name.
    pub async fn put(&self, kind: Kind, name: &str, value: impl Into<bytes::Bytes>) {
        self.put_key(&kind.key(&self.name, false, name), value).await;
    }

    /// Deletes a value of a kind.
    pub async fn delete(&self, kind: Kind, name: &str) {
        self.delete_key(&kind.key(&self.name, false, name)).await;
    }

    /// A shared service `shop/<name>` with backends at port 80.
    pub fn service(&self, name: &str, backends: &[&str]) -> ClusterService {
        let port = ServicePort {
            protocol: "TCP".into(),
            port: 80,
        };
        let backend = |ip: &&str| {
            let ip = ip.parse().expect("it is an address");
            (ip, [("http".into(), port.clone())].into())
        };
        let backends: Addresses = backends.iter().map(backend).collect();
        ClusterService {
            cluster: self.name.clone(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            backends,
            include_external: true,
            shared: true,
            cluster_id: self.id,
            ..ClusterService::default()
        }
    }

    pub async fn put_service(&self, service: &ClusterService) {
        let value = service.encode().expect("it is JSON");
        self.put(Kind::Services, &service.key_name(), value).await;
    }
}

/// Writes the configuration file of a cluster.
pub fn write_file(directory: &Path, cluster: &str, text: &str) {
    std::fs::write(directory.join(cluster), format!("endpoints: [{text}]\n")).expect("it is written");
}

/// Removes the configuration file of a cluster.
pub fn remove_file(directory: &Path, cluster: &str) {
    std::fs::remove_file(directory.join(cluster)).expect("it is removed");
}
