// SPDX-License-Identifier: Apache-2.0

//! CiliumNodes on the embedded API server, for tests.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_client::{Client, Subresource, WriteOptions};
use skep_k8s_crds::node::CiliumNode;
use skep_k8s_crds::pools::CiliumPodIPPool;
use skep_k8s_crds::{definitions, register_all};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Resource;
use tokio::time::Instant;

/// A server, and the client of the operator.
pub(crate) struct World {
    cluster: TestCluster,
    pub(crate) client: Arc<FaultyClient>,
}

impl World {
    pub(crate) async fn new() -> Arc<Self> {
        let cluster = TestCluster::new();
        let kinds = [definitions::cilium_node(), definitions::cilium_pod_ip_pool()];
        register_all(&**cluster.client(), &kinds).await.unwrap();
        Arc::new(Self {
            client: FaultyClient::new(cluster.client().clone()),
            cluster,
        })
    }

    /// The cell, with the client of this server.
    pub(crate) fn hive(&self) -> Hive {
        let client: Arc<dyn Client> = self.client.clone();
        let client = Cell::module("test-client", "A client").provide(move || client.clone());
        Hive::new([crate::cell(), client])
    }

    pub(crate) async fn operator(&self, flags: &[&str]) -> Running {
        let settings = Settings::new().args(flags.iter().copied());
        hive::testing::start_with(self.hive(), settings).await
    }

    pub(crate) async fn add(&self, name: &str, pod_cidrs: &[&str]) {
        let object = json!({
            "metadata": { "name": name, "finalizers": ["example.com/kept"] },
            "spec": { "ipam": { "podCIDRs": pod_cidrs } },
        });
        self.cluster.create(&CiliumNode::kind(), object).await;
    }

    pub(crate) async fn read(&self, name: &str) -> Value {
        self.cluster.get(&CiliumNode::kind(), "", name).await
    }

    pub(crate) async fn change(&self, name: &str, change: impl Fn(&mut Value)) {
        let mut object = self.read(name).await;
        change(&mut object);
        let (kind, options) = (CiliumNode::kind(), WriteOptions::default());
        self.client
            .inner()
            .update(&kind, "", Subresource::None, object, &options)
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.change(name, |object| object["metadata"]["finalizers"] = json!([]))
            .await;
        self.cluster.delete(&CiliumNode::kind(), "", name).await;
    }

    /// Waits until a node has these pod CIDRs and this error.
    #[track_caller]
    pub(crate) fn wait<'a>(
        &'a self,
        name: &'a str,
        pod_cidrs: &'a [&str],
        error: &'a str,
    ) -> impl Future<Output = ()> + 'a {
        self.until(move || async move {
            let object = self.read(name).await;
            let shown = &object["status"]["ipam"]["operator-status"]["error"];
            let holds = object["spec"]["ipam"]["podCIDRs"] == json!(pod_cidrs)
                && shown.as_str().unwrap_or_default() == error;
            (holds, format!("{object:#}"))
        })
    }

    pub(crate) async fn add_pool(&self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.cluster.create(&CiliumPodIPPool::kind(), object).await;
    }

    pub(crate) async fn pool(&self, name: &str) -> Value {
        self.cluster.get(&CiliumPodIPPool::kind(), "", name).await
    }

    pub(crate) async fn change_pool(&self, name: &str, spec: Value) {
        let mut object = self.pool(name).await;
        object["spec"] = spec;
        let (kind, options) = (CiliumPodIPPool::kind(), WriteOptions::default());
        let inner = self.client.inner();
        let updated = inner.update(&kind, "", Subresource::None, object, &options);
        updated.await.unwrap();
    }

    pub(crate) async fn delete_pool(&self, name: &str) {
        self.cluster.delete(&CiliumPodIPPool::kind(), "", name).await;
    }

    /// Waits until something holds; otherwise shows what there is.
    #[track_caller]
    pub(crate) fn until<F: Future<Output = (bool, String)>>(
        &self,
        check: impl Fn() -> F,
    ) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + Duration::from_secs(300);
            loop {
                let (holds, shown) = check().await;
                if holds {
                    return;
                }
                assert!(Instant::now() < deadline, "{caller}: {shown}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
