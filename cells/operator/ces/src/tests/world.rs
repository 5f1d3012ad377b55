// SPDX-License-Identifier: Apache-2.0

//! A cluster with CiliumEndpoints, and leaders on it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings, testing};
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_k8s_client::Client;
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use tokio::time::{Instant, sleep};

pub(super) const NAMESPACES: Kind = Kind::NAMESPACE;
pub(super) const NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);
pub(super) const ENDPOINTS: Kind = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
pub(super) const SLICES: Kind = Kind::new(
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
);

pub(super) struct World {
    cluster: TestCluster,
    pub(super) faults: Arc<FaultyClient>,
}

impl Deref for World {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl World {
    pub(super) async fn new() -> Self {
        let cluster = TestCluster::new();
        let definitions = [
            skep_k8s_crds::definitions::cilium_node(),
            skep_k8s_crds::definitions::cilium_endpoint(),
            skep_k8s_crds::definitions::cilium_identity(),
            skep_k8s_crds::definitions::cilium_endpoint_slice(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        for namespace in ["shop", "bank"] {
            cluster.namespace(namespace).await;
        }
        Self {
            faults: FaultyClient::new(cluster.client().clone()),
            cluster,
        }
    }

    pub(super) async fn endpoint(&self, namespace: &str, name: &str, identity: u32) {
        self.create(&ENDPOINTS, endpoint(namespace, name, identity)).await;
    }

    /// Entries of all slices: slice → namespace/endpoint.
    pub(super) async fn slices(&self) -> BTreeMap<String, Vec<String>> {
        let slices = self.list(&SLICES).await;
        let of = |slice: &Value| {
            let namespace = slice["namespace"].as_str().unwrap();
            let entries = slice["endpoints"].as_array().unwrap().iter();
            entries
                .map(|entry| format!("{namespace}/{}", entry["name"].as_str().unwrap()))
                .collect()
        };
        slices
            .iter()
            .map(|slice| (slice["metadata"]["name"].as_str().unwrap().to_owned(), of(slice)))
            .collect()
    }

    /// Numbers of entries of all slices, sorted.
    pub(super) async fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.slices().await.values().map(Vec::len).collect();
        sizes.sort_unstable();
        sizes
    }

    pub(super) async fn start(&self, flags: &[&str]) -> Running {
        let client: Arc<dyn Client> = self.faults.clone();
        let hive = Hive::new([
            crate::cell(),
            skep_base_metrics::workqueue::cell(),
            skep_base_settings::cluster::cell(),
            Cell::group([])
                .config::<skep_k8s_crds::Config>()
                .config::<skep_identity_labels::LabelConfig>()
                .provide(move || client.clone()),
        ])
        .root::<Arc<WorkqueueMetrics>>();
        let flags = ["--enable-cilium-endpoint-slice"].iter().chain(flags).copied();
        testing::start_with(hive, Settings::new().args(flags)).await
    }
}

pub(super) fn endpoint(namespace: &str, name: &str, identity: u32) -> Value {
    json!({
        "metadata": {
            "name": name,
            "namespace": namespace,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": format!("uid-{name}") }],
        },
        "status": {
            "id": 7,
            "identity": { "id": identity, "labels": ["k8s:app=cart"] },
            "networking": { "node": "172.30.1.2", "addressing": [{ "ipv4": "10.0.2.8" }] },
            "encryption": { "key": 3 },
            "named-ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
            "service-account": "cart",
            "state": "ready",
        },
    })
}

#[track_caller]
pub(super) fn until(what: impl AsyncFn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let began = Instant::now();
        while !what().await {
            assert!(began.elapsed() < Duration::from_secs(3600), "{caller}: timed out");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(super) async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}
