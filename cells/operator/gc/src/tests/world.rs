// SPDX-License-Identifier: Apache-2.0

//! A cluster with Cilium's kinds, and hives on it.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings, testing};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skep_k8s_client::Client;
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use statedb::clock::Clock;
use tokio::time::{Instant, sleep};

pub(crate) const PODS: Kind = Kind::POD;
pub(crate) const NODES: Kind = Kind::NODE;
pub(crate) const ENDPOINTS: Kind = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
pub(crate) const CILIUM_NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);
pub(crate) const IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);

/// The wall clock, by which objects are created, going on with the paused one.
#[derive(Debug)]
struct TestClock {
    base: Timestamp,
    began: Instant,
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        self.base + SignedDuration::try_from(self.began.elapsed()).unwrap()
    }
}

pub(crate) struct World {
    cluster: TestCluster,
    pub(crate) faults: Arc<FaultyClient>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let world = Self::without_slices().await;
        let definition = skep_k8s_crds::definitions::cilium_endpoint_slice();
        skep_k8s_crds::register_all(&**world.cluster.client(), &[definition])
            .await
            .unwrap();
        world
    }

    /// One without CiliumEndpointSlices, as clusters are where they are off.
    pub(crate) async fn without_slices() -> Self {
        let cluster = TestCluster::new();
        let definitions = [
            skep_k8s_crds::definitions::cilium_node(),
            skep_k8s_crds::definitions::cilium_identity(),
            skep_k8s_crds::definitions::cilium_endpoint(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        for namespace in ["shop", "kube-system"] {
            cluster.namespace(namespace).await;
        }
        Self {
            faults: FaultyClient::new(cluster.client().clone()),
            cluster,
        }
    }

    /// Creates an object, and its status.
    pub(crate) async fn create(&self, kind: &Kind, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let status = object.get("status").cloned();
        self.cluster.create(kind, object).await;
        if let Some(status) = status
            && *kind != ENDPOINTS
        {
            self.cluster.patch_status(kind, &namespace, &name, status).await;
        }
    }

    pub(crate) async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        status: bool,
        mut patch: Value,
    ) {
        if status {
            let status = patch["status"].take();
            self.cluster.patch_status(kind, namespace, name, status).await;
        } else {
            self.cluster.patch(kind, namespace, name, patch).await;
        }
    }

    pub(crate) async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        self.cluster.get(kind, namespace, name).await
    }

    pub(crate) async fn remove(&self, kind: &Kind, namespace: &str, name: &str) {
        self.cluster.delete(kind, namespace, name).await;
    }

    /// Names of all objects of a kind, sorted.
    pub(crate) async fn names(&self, kind: &Kind) -> Vec<String> {
        let objects = self.cluster.list(kind).await;
        let mut names: Vec<String> = objects
            .iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) async fn pod(&self, namespace: &str, name: &str, more: Value) {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Running" },
        });
        merge(&mut pod, more);
        self.create(&PODS, pod).await;
    }

    pub(crate) async fn start(&self, cell: Cell, flags: &[&str]) -> Running {
        let client: Arc<dyn Client> = self.faults.clone();
        let clock: Arc<dyn Clock> = Arc::new(TestClock {
            base: Timestamp::now(),
            began: Instant::now(),
        });
        let hive = Hive::new([
            cell,
            crate::tables::cell(),
            crate::agents::cell(),
            statedb::cell(),
            Cell::group([])
                .config::<skep_base_settings::identity::IdentityConfig>()
                .config::<skep_k8s_crds::Config>()
                .config::<skep_operator_leader::Config>()
                .provide(move || client.clone())
                .provide(move || clock.clone()),
        ]);
        testing::start_with(hive, Settings::new().args(flags.iter().copied())).await
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

pub(crate) async fn until(what: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !what().await {
        assert!(began.elapsed() < Duration::from_secs(7200), "timed out");
        sleep(Duration::from_millis(500)).await;
    }
}

pub(crate) async fn minutes(minutes: u64) {
    sleep(Duration::from_secs(60 * minutes)).await;
}

pub(crate) async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}
