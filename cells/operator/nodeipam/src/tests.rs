// SPDX-License-Identifier: Apache-2.0

//! The cell against an API server.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_base_metrics::{MetricSet, Registry, exposition};
use skep_k8s_client::Client;
use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::slim::{EndpointSlice, Node, Service};
use skep_k8s_types::{Kind, Resource};

const N1: &[&str] = &["ExternalIP 192.0.2.1"];
const N2: &[&str] = &["ExternalIP 192.0.2.2"];
const N3: &[&str] = &["ExternalIP 192.0.2.3"];

struct Cluster {
    cluster: TestCluster,
    client: Arc<FaultyClient>,
}

impl Cluster {
    fn new() -> Self {
        let cluster = TestCluster::new();
        Self {
            client: FaultyClient::new(cluster.client().clone()),
            cluster,
        }
    }

    async fn operator(&self, flags: &[&str]) -> Running {
        let client: Arc<dyn Client> = self.client.clone();
        let client = Cell::module("test", "Client")
            .config::<skep_base_settings::ServiceIpamConfig>()
            .provide(move || client.clone());
        let flags = ["--enable-node-ipam"].iter().chain(flags).copied();
        let settings = Settings::new().args(flags);
        let hive = Hive::new([crate::cell(), skep_base_metrics::workqueue::cell(), client]);
        hive::testing::start_with(hive.root::<Arc<WorkqueueMetrics>>(), settings).await
    }

    async fn create(&self, kind: &Kind, namespace: &str, mut object: Value) {
        object["metadata"]["namespace"] = namespace.into();
        self.cluster.create(kind, object).await;
    }

    async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        self.cluster.delete(kind, namespace, name).await;
    }

    /// Creates a node with addresses such as `ExternalIP 192.0.2.1`.
    async fn node(&self, name: &str, addresses: &[&str]) {
        let addresses: Vec<Value> = addresses
            .iter()
            .filter_map(|text| text.split_once(' '))
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect();
        let (kind, object) = (Node::kind(), json!({ "metadata": { "name": name } }));
        self.create(&kind, "", object).await;
        let status = json!({ "addresses": addresses });
        self.cluster.patch_status(&kind, "", name, status).await;
    }

    async fn patch_node(&self, name: &str, patch: Value) {
        self.cluster.patch(&Node::kind(), "", name, patch).await;
    }

    async fn service(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = json!({
            "metadata": { "name": name, "annotations": {} },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "io.cilium/node", "ports": [{ "port": 80 }],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            },
        });
        change(&mut object);
        self.create(&Service::kind(), "default", object).await;
    }

    async fn annotate(&self, service: &str, value: &str) {
        let patch = json!({ "metadata": { "annotations": { MATCH: value } } });
        self.cluster
            .patch(&Service::kind(), "default", service, patch)
            .await;
    }

    async fn shown(&self, name: &str) -> String {
        let kind = Service::kind();
        let raw = self.client.inner().get(&kind, "default", name);
        let value = raw.await.unwrap().to_value().unwrap();
        let ingress = value["status"]["loadBalancer"]["ingress"].as_array().cloned();
        let ips = ingress.unwrap_or_default().into_iter();
        let ips = ips.map(|entry| entry["ip"].as_str().unwrap_or("?").to_owned());
        ips.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn shows(&self, name: &str, expected: &str) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            for _ in 0..2000 {
                if self.shown(name).await == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("{place}: got `{}`, expected `{expected}`", self.shown(name).await);
        }
    }
}

const MATCH: &str = "io.cilium.nodeipam/match-node-labels";

/// Time is paused: it passes only while nothing else can be done.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

fn health(running: &Running) -> String {
    let entries = running.health().entries();
    let entry = entries
        .iter()
        .find(|entry| entry.id.to_string().ends_with("job-service-nodeipam"));
    entry.map_or_else(String::new, |entry| {
        format!(
            "{}: {}",
            entry.message,
            entry.error.as_deref().unwrap_or_default()
        )
    })
}

#[tokio::test(start_paused = true)]
async fn external_addresses_of_all_nodes_sorted_as_texts() {
    let cluster = Cluster::new();
    let n1 = [
        "ExternalIP 192.0.2.9",
        "InternalIP 10.0.0.1",
        "ExternalIP 2001:db8::1",
    ];
    cluster.node("n1", &n1).await;
    let n2 = ["ExternalIP 192.0.2.10", "ExternalIP 192.0.2.9", "Hostname n2"];
    cluster.node("n2", &n2).await;
    cluster.node("n3", &["InternalIP 10.0.0.3"]).await;
    cluster.service("web", |_| {}).await;

    let running = cluster.operator(&[]).await;

    cluster.shows("web", "192.0.2.10 192.0.2.9").await;
    settle().await;
    assert_eq!(cluster.client.count(Verb::Update), 1, "written once");
    assert_eq!(health(&running), "1 services: ");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn internal_addresses_if_no_node_has_an_external_one() {
    let cluster = Cluster::new();
    cluster.node("n1", &["InternalIP 10.0.0.1"]).await;
    cluster.service("web", |_| {}).await;
    let running = cluster.operator(&[]).await;
    cluster.shows("web", "10.0.0.1").await;

    cluster
        .node("n2", &["InternalIP 10.0.0.2", "ExternalIP 192.0.2.2"])
        .await;
    cluster.shows("web", "192.0.2.2").await;

    cluster.delete(&Node::kind(), "", "n2").await;
    cluster.shows("web", "10.0.0.1").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn what_another_controller_wrote_stays_while_no_node_serves() {
    let cluster = Cluster::new();
    cluster.node("n1", N1).await;
    for (name, class) in [("classless", Value::Null), ("node", "io.cilium/node".into())] {
        let change = |service: &mut Value| {
            service["spec"]["loadBalancerClass"] = class;
            service["metadata"]["annotations"][MATCH] = "pool=edge".into();
        };
        cluster.service(name, change).await;
        let ingress =
            json!([{ "ip": "203.0.113.9" }, { "hostname": "lb.example.com" }, { "ip": "192.0.2.1" }]);
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        let kind = Service::kind();
        cluster.cluster.patch_status(&kind, "default", name, status).await;
    }

    let running = cluster.operator(&["--default-lb-service-ipam=nodeipam"]).await;

    cluster.shows("node", "").await;
    cluster.shows("classless", "203.0.113.9 ?").await;
    settle().await;
    cluster.shows("classless", "203.0.113.9 ?").await;

    cluster.annotate("classless", "").await;
    cluster.shows("classless", "192.0.2.1").await;
    cluster.delete(&Node::kind(), "", "n1").await;
    cluster.shows("classless", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn excluded_nodes_are_left_out_at_once() {
    let cluster = Cluster::new();
    for (name, addresses) in [("n1", N1), ("n2", N2), ("n3", N3)] {
        cluster.node(name, addresses).await;
    }
    cluster.service("web", |_| {}).await;
    let running = cluster.operator(&[]).await;
    cluster.shows("web", "192.0.2.1 192.0.2.2 192.0.2.3").await;

    let label = |value: Value| {
        let name = "node.kubernetes.io/exclude-from-external-load-balancers";
        json!({ "metadata": { "labels": { name: value } } })
    };
    cluster.patch_node("n1", label("".into())).await;
    cluster.shows("web", "192.0.2.2 192.0.2.3").await;
    let taint = json!({ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" });
    cluster
        .patch_node("n2", json!({ "spec": { "taints": [taint] } }))
        .await;
    cluster.shows("web", "192.0.2.3").await;
    let kept = json!({ "metadata": { "finalizers": ["example.com/kept"] } });
    cluster.patch_node("n3", kept).await;
    cluster.delete(&Node::kind(), "", "n3").await;
    cluster.shows("web", "").await;

    cluster.patch_node("n1", label(Value::Null)).await;
    cluster.shows("web", "192.0.2.1").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_selects_nodes() {
    let cluster = Cluster::new();
    cluster.node("n1", N1).await;
    cluster.node("n2", N2).await;
    let label = json!({ "metadata": { "labels": { "edge": "yes" } } });
    cluster.patch_node("n2", label).await;
    cluster.service("web", |_| {}).await;
    cluster.annotate("web", "edge in (yes, true)").await;
    let running = cluster.operator(&[]).await;
    cluster.shows("web", "192.0.2.2").await;

    cluster.annotate("web", "edge in yes").await;
    settle().await;
    assert_eq!(cluster.shown("web").await, "192.0.2.2", "stays");
    let text = health(&running);
    let expected = "1 of 1 services without their addresses: `default/web`: annotation `io.cilium.nodeipam/match-node-labels` is not a selector of labels";
    assert!(text.starts_with(expected), "{text}");

    cluster.annotate("web", "edge!=yes").await;
    cluster.shows("web", "192.0.2.1").await;
    settle().await;
    assert_eq!(health(&running), "1 services: ");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_local_policy_selects_nodes_with_ready_endpoints() {
    let cluster = Cluster::new();
    for (name, addresses) in [("n1", N1), ("n2", N2), ("n3", N3)] {
        cluster.node(name, addresses).await;
    }
    let local = |object: &mut Value| object["spec"]["externalTrafficPolicy"] = "Local".into();
    cluster.service("web", local).await;
    let running = cluster.operator(&[]).await;
    settle().await;
    assert_eq!(cluster.shown("web").await, "");

    let endpoint = |node: &str, address: &str, conditions: Value| json!({ "addresses": [address], "nodeName": node, "conditions": conditions });
    let slice = json!({
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [],
        "endpoints": [
            endpoint("n1", "10.1.0.1", json!({ "ready": true })),
            endpoint("n2", "10.1.0.2", json!({ "ready": false })),
            endpoint("n3", "10.1.0.3", json!({})),
        ],
    });
    let kind = EndpointSlice::kind();
    cluster.create(&kind, "default", slice).await;
    cluster.shows("web", "192.0.2.1 192.0.2.3").await;

    let moved = json!({ "endpoints": [endpoint("n2", "10.1.0.2", json!({ "ready": true }))] });
    cluster.cluster.patch(&kind, "default", "web-1", moved).await;
    cluster.shows("web", "192.0.2.2").await;
    cluster.delete(&kind, "default", "web-1").await;
    cluster.shows("web", "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn services_of_others_are_not_written() {
    let cluster = Cluster::new();
    cluster.node("n1", N1).await;
    let class = |class: Value| move |object: &mut Value| object["spec"]["loadBalancerClass"] = class;
    cluster.service("none", class(Value::Null)).await;
    cluster
        .service("bgp", class("io.cilium/bgp-control-plane".into()))
        .await;
    let running = cluster.operator(&[]).await;
    settle().await;
    assert_eq!(cluster.client.count(Verb::Update), 0);
    hive::testing::stop(running).await;

    let running = cluster.operator(&["--default-lb-service-ipam=nodeipam"]).await;
    cluster.shows("none", "192.0.2.1").await;
    settle().await;
    assert_eq!(cluster.shown("bgp").await, "");
    hive::testing::stop(running).await;

    cluster.client.forget();
    let running = cluster.operator(&["--enable-node-ipam=false"]).await;
    settle().await;
    assert_eq!(cluster.client.requests(), []);
    hive::testing::stop(running).await;
}

/// Series of the queue as Prometheus reads them.
fn queue(running: &Running) -> String {
    let metrics = running.get::<Arc<WorkqueueMetrics>>().unwrap();
    exposition(&Registry::new(metrics.metrics(), &[]).unwrap())
}

#[tokio::test(start_paused = true)]
async fn writes_are_retried() {
    let cluster = Cluster::new();
    cluster.node("n1", N1).await;
    cluster.service("a", |_| {}).await;
    cluster.service("b", |_| {}).await;
    cluster.client.fail_times(2, Verb::Update, Fault::conflict());
    let refuses_a = |verb, name: &str| verb == Verb::Update && name == "a";
    cluster
        .client
        .inject(move |request| refuses_a(request.verb, &request.name).then(Fault::forbidden));

    let running = cluster.operator(&[]).await;

    cluster.shows("b", "192.0.2.1").await;
    settle().await;
    let expected = "1 of 2 services without their addresses: `default/a`: Forbidden";
    assert_eq!(health(&running), expected);
    let (series, text) = ("{queue_name=\"service-nodeipam\"}", queue(&running));
    let retries = format!("cilium_workqueue_retries_total{series} ");
    assert!(
        text.contains(&retries) && !text.contains(&format!("{retries}0\n")),
        "{text}"
    );
    let depth = format!("cilium_workqueue_depth{series} 1\n");
    assert!(text.contains(&depth), "service `a` waits\n{text}");
    cluster.client.heal();
    cluster.shows("a", "192.0.2.1").await;

    let writes = |verb| verb == Verb::Update || verb == Verb::Get;
    cluster
        .client
        .inject(move |request| writes(request.verb).then_some(Fault::Unreachable));
    cluster.node("n2", N2).await;
    settle().await;
    assert!(health(&running).starts_with("2 of 2"), "{}", health(&running));
    cluster.client.heal();
    cluster.shows("a", "192.0.2.1 192.0.2.2").await;
    cluster.shows("b", "192.0.2.1 192.0.2.2").await;
    settle().await;
    assert_eq!(health(&running), "2 services: ");
    hive::testing::stop(running).await;
}
