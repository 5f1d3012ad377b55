// SPDX-License-Identifier: Apache-2.0

//! A cluster, a key-value store, and programs that publish the one in the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use hive::{All, Cell, Hive, Running, Settings, testing};
use serde_json::{Value, json};
use skep_clustermesh_export as export;
use skep_k8s_client::{Client as KubernetesClient, DeleteOptions, WriteOptions};
use skep_k8s_memory::{FakeClient, in_process_client};
use skep_k8s_types::Kind;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::{PATIENCE, RunningClient};
use skep_kvstore_client::{Backend, Client};

pub(crate) const NAMESPACES: Kind = Kind::NAMESPACE;
pub(crate) const SERVICES: Kind = Kind::SERVICE;
pub(crate) const SLICES: Kind = Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true);
pub(crate) const NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);
pub(crate) const IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);
pub(crate) const ENDPOINTS: Kind = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
pub(crate) const ENDPOINT_SLICES: Kind = Kind::new(
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
);
pub(crate) const EXPORTS: Kind = Kind::new(
    "multicluster.x-k8s.io",
    "v1beta1",
    "ServiceExport",
    "serviceexports",
    true,
);

pub(crate) fn exporters() -> Vec<Cell> {
    vec![
        export::services::cell(),
        export::slices::cell(),
        export::service_exports::cell(),
        export::nodes::cell(),
        export::identities::cell(),
        export::endpoints::cell(),
        export::cluster_config::cell_with_canaries(),
    ]
}

pub(crate) struct World {
    kubernetes: Arc<dyn KubernetesClient>,
    pub(crate) memory: Memory,
    uids: AtomicU32,
}

impl World {
    /// A cluster with the namespace `shop`, and an empty store in memory.
    pub(crate) async fn new() -> Self {
        let fake = FakeClient::new(statedb::Db::new()).expect("the database is empty");
        let world = Self {
            kubernetes: Arc::new(in_process_client(fake.server())),
            memory: Memory::new(),
            uids: AtomicU32::new(1),
        };
        world.namespace("shop", None).await;
        world
    }

    pub(crate) async fn namespace(&self, name: &str, global: Option<&str>) {
        let mut namespace = json!({ "metadata": { "name": name } });
        if let Some(global) = global {
            namespace["metadata"]["annotations"] = json!({ "clustermesh.cilium.io/global": global });
        }
        self.apply(&NAMESPACES, namespace).await;
    }

    /// Creates an object, or replaces it.
    pub(crate) async fn apply(&self, kind: &Kind, mut object: Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default().to_owned();
        let name = metadata["name"].as_str().expect("it has a name").to_owned();
        let options = WriteOptions::default();
        let client = &self.kubernetes;
        let written = match client.get(kind, &namespace, &name).await {
            Ok(_) => {
                let part = skep_k8s_client::Subresource::None;
                client.update(kind, &namespace, part, object, &options).await
            }
            Err(_) => {
                // Unlike a real server the fake one makes no uids.
                object["metadata"]["uid"] = format!("u{}", self.uids.fetch_add(1, Relaxed)).into();
                client.create(kind, &namespace, object, &options).await
            }
        };
        written.expect("it is written");
    }

    pub(crate) async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        let options = DeleteOptions::default();
        let deleted = self.kubernetes.delete(kind, namespace, name, &options);
        deleted.await.expect("it is deleted");
    }

    /// A program with these flags on the store in memory.
    pub(crate) async fn start(&self, flags: &[&str]) -> Program {
        self.start_on(Arc::new(self.memory.clone()), exporters(), flags)
            .await
    }

    pub(crate) async fn start_on(
        &self,
        backend: Arc<dyn Backend>,
        cells: Vec<Cell>,
        flags: &[&str],
    ) -> Program {
        let kvstore = RunningClient::full(backend);
        let (client, kubernetes) = (Client::clone(&kvstore), self.kubernetes.clone());
        let provided = Cell::module("test-clients", "Clients of tests")
            .provide(move || kubernetes.clone())
            .provide(move || client.clone());
        let hive = Hive::new([statedb::cell()])
            .with(provided)
            .with(skep_base_settings::cluster::cell())
            .with(Cell::group([]).config::<skep_k8s_crds::Config>())
            .with(skep_kvstore_store::metrics())
            .with(export::tables::cell())
            .with(Cell::group(cells))
            .root::<All<export::Exported>>();
        let own = ["--cluster-id=7", "--cluster-name=alder"];
        let settings = Settings::new().args(own.iter().chain(flags).copied());
        Program {
            running: testing::start_with(hive, settings).await,
            kvstore,
        }
    }

    /// What the store holds below a prefix, as texts.
    pub(crate) fn keys(&self, prefix: &str) -> BTreeMap<String, String> {
        let items = self.memory.items().into_iter();
        items
            .filter(|item| item.key.starts_with(prefix))
            .map(|item| {
                (
                    item.key.to_string(),
                    String::from_utf8_lossy(&item.value).into_owned(),
                )
            })
            .collect()
    }

    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        let keys = self.keys(prefix).into_keys();
        keys.map(|key| key[prefix.len()..].to_owned()).collect()
    }

    pub(crate) fn json(&self, key: &str) -> Option<Value> {
        let keys = self.keys(key);
        serde_json::from_str(keys.get(key)?).ok()
    }
}

pub(crate) struct Program {
    pub(crate) running: Running,
    kvstore: RunningClient,
}

impl Program {
    pub(crate) fn client(&self) -> &Client {
        &self.kvstore
    }

    /// Waits until all canaries are written.
    pub(crate) async fn synced(&self) {
        let exported = self.running.get::<All<export::Exported>>().expect("it is a root");
        let all = async {
            for exported in exported.iter() {
                exported.wait_synced().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all is written");
    }

    /// Health of a component, as a text.
    pub(crate) fn health(&self, id: &str) -> String {
        format!("{:?}", self.running.health().get(id))
    }

    pub(crate) async fn stop(self) {
        testing::stop(self.running).await;
        self.kvstore.stop().await;
    }
}

#[track_caller]
pub(crate) fn eventually<T: Fn() -> bool>(what: &str, is_true: T) -> impl Future<Output = ()> + use<T> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let wait = async {
            while !is_true() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{caller}: not within {PATIENCE:?}: {what}");
        }
    }
}

pub(crate) fn endpoint(name: &str, identity: u32, addresses: &[&str]) -> Value {
    let addressing: Vec<Value> = addresses
        .iter()
        .map(|ip| {
            let family = if ip.contains(':') { "ipv6" } else { "ipv4" };
            json!({ family: ip })
        })
        .collect();
    json!({
        "metadata": { "name": name, "namespace": "shop" },
        "status": {
            "identity": { "id": identity },
            "networking": { "addressing": addressing, "node": "192.168.50.21" },
        },
    })
}
