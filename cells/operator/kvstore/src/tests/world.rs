// SPDX-License-Identifier: Apache-2.0

//! A cluster whose identities and nodes are in a key-value store, and hives on it.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Level, Running, Settings, testing};
use serde_json::{Value, json};
use skep_k8s_apiserver::{ApiServer, Manner, Registry, Rows, Tracker, in_process_client};
use skep_k8s_client::{Client as Kubernetes, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;
use skep_kvstore::memory::Memory;
use skep_kvstore::testing::{FaultyBackend, RunningClient, options};
use skep_kvstore::{Client, ClientKind, Lifetime};

pub(crate) static PODS: Kind = Kind::new("", "v1", "Pod", "pods", true);
pub(crate) static CILIUM_NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);

pub(crate) struct World {
    kubernetes: Arc<dyn Kubernetes>,
    pub(crate) store: Memory,
    pub(crate) faults: Arc<FaultyBackend>,
    /// The client of the operator.
    pub(crate) client: RunningClient,
    /// A client of a node.
    pub(crate) node: RunningClient,
}

impl World {
    pub(crate) async fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let server = ApiServer::new(
            Tracker::new(rows, 10_000, false),
            Registry::builtin(),
            Manner::Real(skep_k8s_apiserver::Settings::default()),
        );
        let kubernetes: Arc<dyn Kubernetes> = Arc::new(in_process_client(&server));
        let definitions = [skep_k8s_crds::definitions::cilium_node()];
        skep_k8s_crds::register_all(&*kubernetes, &definitions)
            .await
            .unwrap();
        let store = Memory::new();
        let faults = FaultyBackend::new(Arc::new(store.clone()));
        let world = Self {
            kubernetes,
            client: RunningClient::new(faults.clone(), options(ClientKind::Full)),
            node: RunningClient::full(Arc::new(store.clone())),
            faults,
            store,
        };
        let namespace = Kind::new("", "v1", "Namespace", "namespaces", false);
        if world.kubernetes.get(&namespace, "", "kube-system").await.is_err() {
            world
                .create(&namespace, json!({ "metadata": { "name": "kube-system" } }))
                .await;
        }
        world
    }

    pub(crate) async fn create(&self, kind: &Kind, mut object: Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        let namespace = object["metadata"]["namespace"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let options = WriteOptions::default();
        self.kubernetes
            .create(kind, &namespace, object, &options)
            .await
            .unwrap();
    }

    pub(crate) async fn cilium_node(&self, name: &str) {
        self.create(&CILIUM_NODES, json!({ "metadata": { "name": name }, "spec": {} }))
            .await;
    }

    /// Creates the pod of an agent.
    pub(crate) async fn agent(&self, name: &str, node: &str) {
        let pod = json!({
            "metadata": { "name": name, "namespace": "kube-system", "labels": { "k8s-app": "cilium" } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        });
        self.create(&PODS, pod).await;
    }

    pub(crate) async fn set_phase(&self, pod: &str, phase: &str) {
        let (options, patch) = (
            WriteOptions::default(),
            Patch::Merge(json!({ "status": { "phase": phase } })),
        );
        let part = Subresource::Status;
        let patched = self
            .kubernetes
            .patch(&PODS, "kube-system", pod, part, &patch, &options);
        patched.await.unwrap();
    }

    pub(crate) async fn delete(&self, kind: &Kind, name: &str) {
        self.kubernetes
            .delete(kind, "", name, &DeleteOptions::default())
            .await
            .unwrap();
    }

    /// Writes keys as a node does.
    pub(crate) async fn put(&self, keys: &[(&str, &str)]) {
        for (key, value) in keys {
            self.node
                .put(key, value.to_string(), Lifetime::Permanent)
                .await
                .unwrap();
        }
    }

    /// The keys below a prefix, without it.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let items = self.store.items().into_iter();
        items
            .filter_map(|item| item.key.strip_prefix(prefix).map(str::to_owned))
            .collect()
    }

    /// Runs a cell of the operator of cluster `alder`, with id 7.
    pub(crate) async fn start(&self, cell: Cell, flags: &[&str]) -> Running {
        let (kubernetes, client): (_, Client) = (self.kubernetes.clone(), self.client.clone());
        let hive = Hive::new([
            cell,
            skep_clustermesh_types::cell(),
            skep_operator_gc::tables::cell(),
            skep_operator_gc::agents::cell(),
            skep_operator_gc::identities::cell(),
            statedb::cell(),
            Cell::group([])
                .config::<skep_k8s_crds::Config>()
                .config::<skep_operator_leader::Config>()
                .provide(move || kubernetes.clone())
                .provide(move || client.clone()),
        ]);
        let own = [
            "--cluster-name=alder",
            "--cluster-id=7",
            "--k8s-namespace=kube-system",
        ];
        testing::start_with(hive, Settings::new().args(own.iter().chain(flags).copied())).await
    }
}

pub(crate) async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Waits until the job of a module reports this.
#[track_caller]
pub(crate) fn wait_health<'a>(
    running: &'a Running,
    module: &'a str,
    level: Level,
    text: &'a str,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..10_000 {
            let entries = running.health().entries();
            let is_so = entries.iter().any(|entry| {
                let message = format!("{}: {:?}", entry.message, entry.error);
                entry.id.to_string().contains(module) && entry.level == level && message.contains(text)
            });
            if is_so {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "{caller}: {module} does not become {level} with {text}: {:?}",
            running.health().entries()
        );
    }
}
