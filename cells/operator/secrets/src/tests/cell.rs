// SPDX-License-Identifier: Apache-2.0

//! The cell against an API server.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings, testing};
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_base_metrics::{MetricSet, Registry, exposition};
use skep_k8s_client::Client;
use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
use skep_k8s_crds::definitions;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;

use crate::{OWNER_NAME, OWNER_NAMESPACE};

const POLICIES: Kind = Kind::new(
    "cilium.io",
    "v2",
    "CiliumNetworkPolicy",
    "ciliumnetworkpolicies",
    true,
);
const TARGET: &str = "cilium-secrets";

struct Cluster {
    cluster: TestCluster,
    client: Arc<FaultyClient>,
}

impl Cluster {
    async fn new() -> Self {
        let cluster = TestCluster::new();
        let definitions = [
            definitions::cilium_network_policy(),
            definitions::cilium_clusterwide_network_policy(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        for name in ["shop", TARGET] {
            cluster.namespace(name).await;
        }
        Self {
            client: FaultyClient::new(cluster.client().clone()),
            cluster,
        }
    }

    async fn start(&self) -> Running {
        let client: Arc<dyn Client> = self.client.clone();
        let client = Cell::module("test", "Client").provide(move || client.clone());
        let settings = Settings::new().args(["--enable-policy-secrets-sync"]);
        let hive = Hive::new([crate::cell(), skep_base_metrics::workqueue::cell(), client]);
        testing::start_with(hive.root::<Arc<WorkqueueMetrics>>(), settings).await
    }

    async fn create(&self, kind: &Kind, namespace: &str, mut object: Value) {
        object["metadata"]["namespace"] = namespace.into();
        self.cluster.create(kind, object).await;
    }

    async fn patch(&self, kind: &Kind, namespace: &str, name: &str, patch: Value) {
        self.cluster.patch(kind, namespace, name, patch).await;
    }

    async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        self.cluster.delete(kind, namespace, name).await;
    }

    async fn secret(&self, name: &str) {
        let object = json!({
            "metadata": {"name": name, "labels": {"team": "red"}, "annotations": {"note": "1"}},
            "type": "Opaque",
            "data": {"tls.crt": "MQ=="},
        });
        self.create(&Kind::SECRET, "shop", object).await;
    }

    /// A policy of namespace `shop` that names a Secret.
    async fn policy(&self, name: &str, secret: &str) {
        let ports = json!({
            "ports": [{"port": "443", "protocol": "TCP"}],
            "terminatingTLS": {"secret": {"namespace": "shop", "name": secret}},
        });
        let spec = json!({"endpointSelector": {}, "egress": [{"toPorts": [ports]}]});
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.create(&POLICIES, "shop", object).await;
    }

    async fn copy(&self, name: &str) -> Option<Value> {
        match self.client.inner().get(&Kind::SECRET, TARGET, name).await {
            Ok(object) => Some((*object.to_value().unwrap()).clone()),
            Err(error) => {
                assert!(error.is_not_found(), "{error}");
                None
            }
        }
    }

    async fn wait_copy(&self, name: &str, is_right: impl Fn(Option<&Value>) -> bool) -> Option<Value> {
        for _ in 0..3000 {
            let copy = self.copy(name).await;
            if is_right(copy.as_ref()) {
                return copy;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it stays {:?}", self.copy(name).await);
    }
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

fn health(running: &Running) -> String {
    format!("{:?}", running.health().entries())
}

#[tokio::test(start_paused = true)]
async fn secrets_of_policies_are_copied_and_copies_follow_their_originals() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    cluster.secret("unused").await;
    cluster.policy("web", "ca").await;
    let running = cluster.start().await;

    let copy = cluster.wait_copy("shop-ca", |copy| copy.is_some()).await.unwrap();
    assert_eq!(
        (&copy["type"], &copy["data"]),
        (&json!("Opaque"), &json!({"tls.crt": "MQ=="}))
    );
    assert_eq!(
        copy["metadata"]["labels"],
        json!({"team": "red", OWNER_NAMESPACE: "shop", OWNER_NAME: "ca"})
    );
    assert_eq!(copy["metadata"]["annotations"], json!({"note": "1"}));

    let kept = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    cluster
        .patch(&Kind::SECRET, TARGET, "shop-ca", kept.clone())
        .await;
    let change = json!({"data": {"tls.crt": "Mg=="}, "metadata": {"annotations": {"note": null}}});
    cluster.patch(&Kind::SECRET, "shop", "ca", change).await;
    let is_new = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"]["tls.crt"] == "Mg==");
    let copy = cluster.wait_copy("shop-ca", is_new).await.unwrap();
    assert_eq!(copy["metadata"]["annotations"], Value::Null);
    assert_eq!(copy["metadata"]["finalizers"], kept["metadata"]["finalizers"]);
    let none = json!({"metadata": {"finalizers": null}});
    cluster.patch(&Kind::SECRET, TARGET, "shop-ca", none).await;

    // Another writer changes the copy.
    let change = json!({"data": {"tls.crt": "Mw=="}});
    cluster.patch(&Kind::SECRET, TARGET, "shop-ca", change).await;
    cluster.wait_copy("shop-ca", is_new).await;
    cluster.delete(&Kind::SECRET, TARGET, "shop-ca").await;
    cluster.wait_copy("shop-ca", is_new).await;
    assert!(cluster.copy("shop-unused").await.is_none());
    assert!(health(&running).contains("1 Secrets"), "{}", health(&running));

    cluster.delete(&POLICIES, "shop", "web").await;
    cluster.wait_copy("shop-ca", |copy| copy.is_none()).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn another_type_or_an_immutable_secret_makes_a_new_copy() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    cluster.policy("web", "ca").await;
    let running = cluster.start().await;
    cluster.wait_copy("shop-ca", |copy| copy.is_some()).await;

    for (kind, immutable, data) in [
        ("example.com/other", true, "Mg=="),
        ("example.com/other", false, "Mw=="),
    ] {
        cluster.delete(&Kind::SECRET, "shop", "ca").await;
        cluster.wait_copy("shop-ca", |copy| copy.is_none()).await;
        let told = health(&running);
        assert!(told.contains("`shop-ca`: there is no Secret `shop/ca`"), "{told}");
        let object = json!({
            "metadata": {"name": "ca"}, "type": kind, "immutable": immutable, "data": {"tls.crt": data},
        });
        cluster.create(&Kind::SECRET, "shop", object).await;
        let is_new = |copy: Option<&Value>| {
            copy.is_some_and(|copy| copy["type"] == kind && copy["data"]["tls.crt"] == data)
        };
        cluster.wait_copy("shop-ca", is_new).await;
    }
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_an_earlier_run_is_replaced_by_one_of_another_type() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    cluster.policy("web", "ca").await;
    let old = json!({
        "metadata": {"name": "shop-ca", "labels": {OWNER_NAMESPACE: "shop", OWNER_NAME: "ca"}},
        "type": "example.com/other", "immutable": true, "data": {"a": "MQ=="},
    });
    cluster.create(&Kind::SECRET, TARGET, old.clone()).await;
    let mut stale = old;
    stale["metadata"]["name"] = "shop-gone".into();
    cluster.create(&Kind::SECRET, TARGET, stale).await;
    let running = cluster.start().await;

    let is_new = |copy: Option<&Value>| copy.is_some_and(|copy| copy["type"] == "Opaque");
    cluster.wait_copy("shop-ca", is_new).await;
    cluster.wait_copy("shop-gone", |copy| copy.is_none()).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn secrets_that_are_no_copies_are_left_alone() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    let foreign = json!({"metadata": {"name": "shop-ca"}, "type": "Opaque", "data": {"a": "MQ=="}});
    cluster.create(&Kind::SECRET, TARGET, foreign).await;
    cluster.policy("web", "ca").await;
    let running = cluster.start().await;
    settle().await;
    let told = health(&running);
    assert!(
        told.contains("`shop-ca`: namespace `cilium-secrets` has a Secret of that name that is no copy"),
        "{told}"
    );
    cluster.delete(&POLICIES, "shop", "web").await;
    settle().await;
    assert_eq!(
        cluster.copy("shop-ca").await.unwrap()["data"],
        json!({"a": "MQ=="})
    );
    assert!(health(&running).contains("0 Secrets"), "{}", health(&running));
    testing::stop(running).await;
}

/// Series of the queue as Prometheus reads them.
fn queue(running: &Running) -> String {
    let metrics = running.get::<Arc<WorkqueueMetrics>>().unwrap();
    exposition(&Registry::new(metrics.metrics(), &[]).unwrap())
}

#[tokio::test(start_paused = true)]
async fn requests_that_fail_are_repeated() {
    for fault in [
        Fault::Unreachable,
        Fault::Hangs,
        Fault::AnswerLost,
        Fault::conflict(),
        Fault::forbidden(),
        Fault::rejected(500, "InternalError"),
    ] {
        let cluster = Cluster::new().await;
        for name in ["a", "b"] {
            cluster.secret(name).await;
            cluster.policy(name, name).await;
        }
        let running = cluster.start().await;
        cluster.client.fail_times(3, Verb::Get, fault.clone());
        cluster.client.fail_times(3, Verb::Create, fault.clone());
        for name in ["shop-a", "shop-b"] {
            cluster.wait_copy(name, |copy| copy.is_some()).await;
        }
        cluster.client.fail_times(2, Verb::Update, fault.clone());
        cluster
            .patch(&Kind::SECRET, "shop", "a", json!({"data": {"tls.crt": "Mg=="}}))
            .await;
        let is_new = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"]["tls.crt"] == "Mg==");
        cluster.wait_copy("shop-a", is_new).await;
        cluster.client.fail_times(2, Verb::Delete, fault.clone());
        cluster.delete(&POLICIES, "shop", "a").await;
        cluster.wait_copy("shop-a", |copy| copy.is_none()).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(
            health(&running).contains("1 Secrets"),
            "{fault:?}: {}",
            health(&running)
        );
        let (series, text) = ("{queue_name=\"secret-sync\"}", queue(&running));
        let retries = format!("cilium_workqueue_retries_total{series} ");
        assert!(
            text.contains(&retries) && !text.contains(&format!("{retries}0\n")),
            "{text}"
        );
        let depth = format!("cilium_workqueue_depth{series} 0\n");
        assert!(text.contains(&depth), "{text}");
        testing::stop(running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_list_of_policies_no_copy_is_deleted() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    cluster.policy("web", "ca").await;
    let running = cluster.start().await;
    cluster.wait_copy("shop-ca", |copy| copy.is_some()).await;
    testing::stop(running).await;

    cluster
        .client
        .inject(|request| (request.plural == "ciliumnetworkpolicies").then(Fault::forbidden));
    let running = cluster.start().await;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert!(cluster.copy("shop-ca").await.is_some());
    let told = health(&running);
    assert!(told.contains("Waiting for the Kubernetes API server"), "{told}");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_copied_unless_it_is_asked_for() {
    let cluster = Cluster::new().await;
    cluster.secret("ca").await;
    cluster.policy("web", "ca").await;
    let client: Arc<dyn Client> = cluster.client.clone();
    let client = Cell::module("test", "Client").provide(move || client.clone());
    let running = testing::start(Hive::new([crate::cell(), client.clone()])).await;
    settle().await;
    assert!(cluster.copy("shop-ca").await.is_none());
    testing::stop(running).await;

    let settings = Settings::new().args(["--enable-policy-secrets-sync", "--policy-secrets-namespace="]);
    let report = Hive::new([crate::cell(), client])
        .plan(settings)
        .expect_err("it names none");
    assert!(
        report
            .to_string()
            .contains("no namespace, and enable-policy-secrets-sync is on"),
        "{report}"
    );
}
