// SPDX-License-Identifier: Apache-2.0

//! A cluster with Cilium's kinds, and hives on it.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings, testing};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skep_k8s_apiserver::{ApiServer, Manner, Registry, Rows, Tracker, in_process_client};
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_client::{Client, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;
use statedb::clock::Clock;
use tokio::time::{Instant, sleep};

pub(crate) const PODS: Kind = Kind::new("", "v1", "Pod", "pods", true);
pub(crate) const NODES: Kind = Kind::new("", "v1", "Node", "nodes", false);
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
    pub(crate) client: Arc<dyn Client>,
    /// The client of hives.
    pub(crate) faults: Arc<FaultyClient>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let server = ApiServer::new(
            Tracker::new(rows, 10_000, false),
            Registry::builtin(),
            Manner::Real(skep_k8s_apiserver::Settings::default()),
        );
        let client: Arc<dyn Client> = Arc::new(in_process_client(&server));
        let definitions = [
            skep_k8s_crds::definitions::cilium_node(),
            skep_k8s_crds::definitions::cilium_identity(),
            skep_k8s_crds::definitions::cilium_endpoint(),
            skep_k8s_crds::definitions::cilium_endpoint_slice(),
        ];
        skep_k8s_crds::register_all(&*client, &definitions).await.unwrap();
        let faults = FaultyClient::new(client.clone());
        let world = Self { client, faults };
        for namespace in ["shop", "kube-system"] {
            let kind = Kind::new("", "v1", "Namespace", "namespaces", false);
            let exists = world.client.get(&kind, "", namespace).await.is_ok();
            if !exists {
                world
                    .create(&kind, json!({ "metadata": { "name": namespace } }))
                    .await;
            }
        }
        world
    }

    /// Creates an object, and its status.
    pub(crate) async fn create(&self, kind: &Kind, mut object: Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        let namespace = object["metadata"]["namespace"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let status = object.get("status").cloned();
        let options = WriteOptions::default();
        self.client
            .create(kind, &namespace, object, &options)
            .await
            .unwrap();
        if let Some(status) = status
            && *kind != ENDPOINTS
        {
            let patch = Patch::Merge(json!({ "status": status }));
            let patched = self
                .client
                .patch(kind, &namespace, &name, Subresource::Status, &patch, &options);
            patched.await.unwrap();
        }
    }

    pub(crate) async fn patch(&self, kind: &Kind, namespace: &str, name: &str, status: bool, patch: Value) {
        let part = if status {
            Subresource::Status
        } else {
            Subresource::None
        };
        let (options, patch) = (WriteOptions::default(), Patch::Merge(patch));
        let patched = self.client.patch(kind, namespace, name, part, &patch, &options);
        patched.await.unwrap();
    }

    pub(crate) async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        let object = self.client.get(kind, namespace, name).await.unwrap();
        (*object.to_value().unwrap()).clone()
    }

    pub(crate) async fn remove(&self, kind: &Kind, namespace: &str, name: &str) {
        let options = DeleteOptions {
            grace_period: Some(Duration::ZERO),
            ..DeleteOptions::default()
        };
        self.client.delete(kind, namespace, name, &options).await.unwrap();
    }

    /// Names of all objects of a kind, sorted.
    pub(crate) async fn names(&self, kind: &Kind) -> Vec<String> {
        let page = self.client.list(kind, "", &Default::default()).await.unwrap();
        let mut names: Vec<String> = page
            .items
            .iter()
            .map(|item| {
                item.to_value().unwrap()["metadata"]["name"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// Creates a pod.
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

/// Waits until something holds.
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
