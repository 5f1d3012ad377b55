// SPDX-License-Identifier: Apache-2.0

//! Endpoints of pods: labels, identities, addresses.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hive::Cell;
use serde_json::{Value, json};
use skep_endpoint_ipam::{Family, Ipam};
use skep_identity::{IdentityRange, Labels, NumericIdentity};
use skep_identity_allocator::{Allocator, testing::MemoryIdentities};
use skep_identity_cache::LocalIdentities;
use skep_k8s_client::{ApiError, Client, ListOptions, RawPage, RawWatch, WatchOptions};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use tokio::time::Instant;

use super::{ask, request};
use crate::{
    EndpointState, Phase,
    tests::hive::{Bench, Kernel},
};

/// A node with Kubernetes, identities and IPAM.
pub(super) struct Cluster {
    pub(super) bench: Bench,
    pub(super) objects: TestCluster,
    identities: MemoryIdentities,
}

impl Cluster {
    async fn start() -> Self {
        let objects = TestCluster::new();
        objects.namespace("shop").await;
        let account = json!({"metadata": {"name": "cart", "namespace": "shop"}});
        objects.create(&Kind::SERVICE_ACCOUNT, account).await;
        let identities = MemoryIdentities::new(IdentityRange::between(
            NumericIdentity::FIRST_ALLOCATED,
            NumericIdentity::new(65_535),
        ));
        Self::start_in(Kernel::new(), objects, identities, &[]).await
    }

    pub(super) async fn start_in(
        kernel: Kernel,
        objects: TestCluster,
        identities: MemoryIdentities,
        settings: &[&str],
    ) -> Self {
        let (client, store) = (objects.client().clone(), identities.clone());
        let fakes = Cell::module("cluster", "What stands for the cluster")
            .provide(move || -> Arc<dyn Client> { client.clone() })
            .provide(move |local: LocalIdentities| -> Allocator { store.allocator(local) });
        let cells = vec![
            skep_base_api::cell(),
            skep_base_limiter::cell(),
            crate::api::cell(),
            skep_identity_cache::cell(),
            skep_identity_cache::api::cell(),
            skep_k8s_reflectors::tables::cell(),
            skep_endpoint_ipam::cell(),
            skep_endpoint_ipam::sources::cell(),
            fakes,
        ];
        let mut flags = vec!["--ipam=kubernetes", "--identity-change-grace-period=50ms"];
        flags.extend(settings);
        let bench = Bench::start_in(kernel, &flags, cells).await;
        let networks = ["10.0.0.0/15", "fd00::/16"].map(|net| net.parse().unwrap());
        bench
            .local_node()
            .update(|node| node.pod_cidrs = networks.into())
            .unwrap();
        bench.hooks.load();
        Self {
            bench,
            objects,
            identities,
        }
    }

    /// Stops the agent; what outlives it stays.
    async fn restart(self) -> Self {
        let kernel = self.bench.kernel.clone();
        hive::testing::stop(self.bench.running).await;
        Self::start_in(kernel, self.objects, self.identities, &[]).await
    }

    async fn pod(&self, number: u8, labels: Value) {
        let pod = json!({
            "metadata": {"name": format!("cart-{number}"), "namespace": "shop", "labels": labels},
            "spec": {"nodeName": "n1", "serviceAccountName": "cart", "containers": [
                {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
        });
        self.objects.create(&Kind::POD, pod).await;
    }

    fn ipam(&self) -> Ipam {
        self.bench.running.get().unwrap()
    }

    /// Creates the endpoint of pod `cart-<n>`, as the plugin does; returns its model.
    async fn create(&self, number: u8) -> Value {
        self.bench.plug(number);
        let mut body = request(number);
        body["labels"] = Value::Null;
        body["k8s-uid"] = Value::Null;
        let ip = format!("10.0.1.{number}").parse().unwrap();
        self.ipam().ready().await;
        let owner = format!("shop/cart-{number}");
        let allocation = self.ipam().allocate_ip(ip, &owner, "default").unwrap();
        let uuid = self.ipam().start_expiration(&allocation).unwrap();
        body["addressing"]["ipv4-expiration-uuid"] = uuid.to_string().into();
        let (status, made) = ask(&self.bench, "PUT", "endpoint/0", body).await;
        assert_eq!(status, 201, "{made}");
        made
    }

    async fn model(&self, number: u8) -> Value {
        let path = format!("endpoint/pod-name:shop%2Fcart-{number}");
        ask(&self.bench, "GET", &path, Value::Null).await.1
    }

    /// Waits until the labels of the identity of `cart-<n>` contain a label; returns the id of the identity.
    async fn wait_label(&self, number: u8, label: &str) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let model = self.model(number).await;
            let identity = &model["status"]["identity"];
            let labels = identity["labels"].as_array();
            let is_known = labels.is_some_and(|labels| labels.iter().any(|known| known == label));
            if is_known && model["status"]["state"] == "ready" {
                return identity["id"].as_u64().unwrap();
            }
            assert!(Instant::now() < deadline, "{model}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn uses(&self, labels: &str) -> usize {
        self.identities.uses(&labels.parse::<Labels>().unwrap())
    }
}

const CART: &str = "k8s:app=cart;gen:io.cilium.k8s.named-ports=http.TCP.8080;\
    k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop;\
    k8s:io.cilium.k8s.policy.cluster=default;k8s:io.cilium.k8s.policy.serviceaccount=cart;\
    k8s:io.kubernetes.pod.namespace=shop;";

#[tokio::test]
async fn an_endpoint_has_the_identity_of_its_pods_labels() {
    let cluster = Cluster::start().await;
    cluster
        .pod(7, json!({"app": "cart", "pod-template-hash": "5d8f"}))
        .await;

    let made = cluster.create(7).await;

    let status = &made["status"];
    assert_eq!(status["state"], "ready");
    assert_eq!(status["identity"]["id"], 256);
    let texts = status["identity"]["labels"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|label| label.as_str().unwrap()).collect();
    assert_eq!(texts.join(";") + ";", CART);
    assert_eq!(status["labels"]["derived"], json!(["k8s:pod-template-hash=5d8f"]));
    let port = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
    assert_eq!(status["namedPorts"], port);
    let bench = &cluster.bench;
    bench
        .until("the claim", |bench| bench.identity_of("10.0.1.7") == Some(256))
        .await;
    assert_eq!(cluster.uses(CART), 1);
    let id = made["id"].as_u64().unwrap();
    let (_, log) = ask(bench, "GET", &format!("endpoint/{id}/log"), Value::Null).await;
    let texts: Vec<_> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["message"])
        .collect();
    let expected = [
        "Successfully regenerated endpoint program (Reason: LabelsUpdate)",
        "Completed endpoint regeneration with no pending regeneration requests",
        "Regenerating endpoint: LabelsUpdate",
        "Triggering endpoint regeneration due to LabelsUpdate: updated security labels",
        "Set identity for this endpoint",
        "Endpoint creation",
    ];
    assert_eq!(texts, expected);

    assert_eq!(cluster.ipam().addresses(Family::V4).len(), 1);
    let (status, _) = ask(bench, "DELETE", &format!("endpoint/{id}"), Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(cluster.ipam().addresses(Family::V4), []);
    assert_eq!(cluster.uses(CART), 0);
}

#[tokio::test]
async fn new_labels_of_pod_or_namespace_lead_to_another_identity() {
    let cluster = Cluster::start().await;
    cluster.pod(7, json!({"app": "cart"})).await;
    cluster.create(7).await;

    let patch = json!({"metadata": {"labels": {"app": "till"}}});
    cluster.objects.patch(&Kind::POD, "shop", "cart-7", patch).await;
    assert_eq!(cluster.wait_label(7, "k8s:app=till").await, 257);
    let patch = json!({"metadata": {"labels": {"team": "blue"}}});
    cluster.objects.patch(&Kind::NAMESPACE, "", "shop", patch).await;

    let label = "k8s:io.cilium.k8s.namespace.labels.team=blue";
    assert_eq!(cluster.wait_label(7, label).await, 258);
    assert_eq!(cluster.uses(CART), 0);
    let (status, _) = ask(
        &cluster.bench,
        "PATCH",
        "endpoint/container-id:container7/labels",
        json!({"user": ["unspec:mine=1"]}),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(cluster.wait_label(7, "unspec:mine=1").await, 259);
}

#[tokio::test]
async fn an_endpoint_is_init_until_its_pod_is_known() {
    let cluster = Cluster::start().await;

    let made = cluster.create(7).await;
    assert_eq!(
        made["status"]["identity"],
        json!({"id": 5, "labels": ["reserved:init"]})
    );
    cluster.pod(7, json!({"app": "cart"})).await;

    assert_eq!(cluster.wait_label(7, "k8s:app=cart").await, 256);
}

#[tokio::test]
async fn a_restart_keeps_identities_and_addresses_of_pods_that_are_there() {
    let cluster = Cluster::start().await;
    for number in [7, 8] {
        cluster.pod(number, json!({"app": "cart"})).await;
        cluster.create(number).await;
    }
    cluster.objects.delete(&Kind::POD, "shop", "cart-8").await;

    let cluster = cluster.restart().await;
    let endpoints = cluster.bench.endpoints();
    endpoints.accepting().await;

    cluster.wait_label(7, "k8s:app=cart").await;
    let owned = cluster.ipam().addresses(Family::V4);
    let owned: Vec<_> = owned
        .iter()
        .map(|one| (one.ip.to_string(), one.owner.as_str()))
        .collect();
    assert_eq!(owned, [("10.0.1.7".to_owned(), "shop/cart-7 [restored]")]);
    assert_eq!(cluster.model(7).await["status"]["identity"]["id"], 256);
    cluster
        .bench
        .until("gone", |_| endpoints.table().len(&endpoints.db().read()) == 1)
        .await;
}

/// An API server that is away.
struct Away;

#[async_trait]
impl Client for Away {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        std::future::pending().await
    }

    async fn list(&self, _: &Kind, _: &str, _: &ListOptions) -> Result<RawPage, ApiError> {
        std::future::pending().await
    }

    async fn watch(&self, _: &Kind, _: &str, _: &WatchOptions) -> Result<RawWatch, ApiError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn without_a_list_of_pods_endpoints_are_kept_and_new_ones_are_created() {
    let cluster = Cluster::start().await;
    cluster.pod(7, json!({"app": "cart"})).await;
    cluster.create(7).await;
    let kernel = cluster.bench.kernel.clone();
    hive::testing::stop(cluster.bench.running).await;

    tokio::time::pause();
    let away = TestCluster::of(Arc::new(Away));
    let cluster = Cluster::start_in(kernel, away, cluster.identities, &[]).await;
    let endpoints = cluster.bench.endpoints();
    endpoints.accepting().await;

    let owned = cluster.ipam().addresses(Family::V4);
    assert_eq!(owned.len(), 1);
    let row = endpoints.table().all(&endpoints.db().read()).next().cloned();
    assert!(row.is_some_and(|row| row.spec.pod == "cart-7" && row.is_live()));
}

#[tokio::test]
async fn deletions_that_were_queued_are_done_before_endpoints_are_created() {
    let cluster = Cluster::start().await;
    for number in [7, 8] {
        cluster.pod(number, json!({"app": "cart"})).await;
        cluster.create(number).await;
    }
    let queue = cluster.bench.folder().join("deleteQueue");
    for (name, text) in [
        ("a.delete", r#"{"container-id":"container8"}"#),
        ("b.delete", "{"),
        ("c.txt", "x"),
    ] {
        std::fs::write(queue.join(name), text).unwrap();
    }

    let cluster = cluster.restart().await;
    let endpoints = cluster.bench.endpoints();
    endpoints.accepting().await;

    cluster
        .bench
        .until("gone", |_| endpoints.table().len(&endpoints.db().read()) == 1)
        .await;
    let rows: Vec<_> = endpoints.table().all(&endpoints.db().read()).cloned().collect();
    assert_eq!(rows[0].spec.pod, "cart-7");
    assert_ne!(rows[0].state(), EndpointState::Disconnecting);
    let mut names: Vec<_> = std::fs::read_dir(&queue)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["c.txt", "lockfile"]);
    assert_eq!(cluster.ipam().addresses(Family::V4).len(), 1);
}

/// 40 label sets a second: many times that.
#[tokio::test]
async fn many_endpoints_of_as_many_label_sets_are_created_at_once() {
    let cluster = Cluster::start().await;
    let numbers: Vec<u8> = (10..110).collect();
    for number in &numbers {
        cluster
            .pod(*number, json!({"app": format!("app-{number}")}))
            .await;
    }
    let endpoints = cluster.bench.endpoints();
    endpoints.accepting().await;
    let metadata: crate::MetadataResolver = cluster.bench.running.get().unwrap();
    let begun = Instant::now();

    let mut ids = Vec::new();
    for number in &numbers {
        cluster.bench.plug(*number);
        let spec = crate::tests::world::spec(*number);
        let known = metadata.wait(&spec).await;
        ids.push(endpoints.add(spec, known, None, None, Phase::Live).unwrap().id);
    }
    for id in ids {
        endpoints.wait_ready(id).await.unwrap();
    }

    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let held: Allocator = cluster.bench.running.get().unwrap();
    assert_eq!(held.held(), 100);
}
