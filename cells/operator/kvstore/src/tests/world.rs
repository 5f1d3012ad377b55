// SPDX-License-Identifier: Apache-2.0

//! A cluster whose identities and nodes are in a key-value store, and hives on it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Level, Running, Settings, testing};
use serde_json::json;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::{FaultyBackend, RunningClient, options};
use skep_kvstore_client::{Client, ClientKind, Lifetime};

pub(crate) static PODS: Kind = Kind::POD;
pub(crate) static CILIUM_NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);

pub(crate) struct World {
    cluster: TestCluster,
    pub(crate) store: Memory,
    pub(crate) faults: Arc<FaultyBackend>,
    pub(crate) client: RunningClient,
    pub(crate) node: RunningClient,
}

impl Deref for World {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let cluster = TestCluster::new();
        let definitions = [
            skep_k8s_crds::definitions::cilium_node(),
            skep_k8s_crds::definitions::cilium_identity(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        cluster.namespace("kube-system").await;
        let store = Memory::new();
        let faults = FaultyBackend::new(Arc::new(store.clone()));
        Self {
            cluster,
            client: RunningClient::new(faults.clone(), options(ClientKind::Full)),
            node: RunningClient::full(Arc::new(store.clone())),
            faults,
            store,
        }
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
        let status = json!({ "phase": phase });
        self.patch_status(&PODS, "kube-system", pod, status).await;
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
        let (kubernetes, client): (_, Client) = (self.cluster.client().clone(), self.client.clone());
        let hive = Hive::new([
            cell,
            skep_base_settings::cluster::cell(),
            skep_operator_gc::tables::cell(),
            skep_operator_gc::agents::cell(),
            skep_base_settings::identity::cell(),
            skep_operator_gc::identities::cell(),
            skep_operator_gc::identities::objects_cell(),
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
