// SPDX-License-Identifier: Apache-2.0

//! Objects of the node, in an API server in memory.
//!
//! `testdata/cilium-nodes.json`: CiliumNodes of Cilium's agents, recorded in several configurations.

use std::{sync::Arc, time::Duration};

use hive::{Hive, Running, Settings};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skep_k8s_crds::{definitions, register_all};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::{
    Resource,
    slim::{CiliumNode, Node},
};
use skep_node_local::LocalNodeStore;
use tokio::time::Instant;

use super::*;

struct Bench {
    cluster: TestCluster,
    name: String,
    running: Running,
}

async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let kinds = [definitions::cilium_node(), definitions::cilium_pod_ip_pool()];
    register_all(&**cluster.client(), &kinds).await.unwrap();
    cluster
}

impl Bench {
    async fn start(cluster: TestCluster, name: &str, flags: &[String]) -> Self {
        let (client, node) = (cluster.client().clone(), name.to_owned());
        let fakes = Cell::module("fakes", "What stands for the rest of the agent")
            .provide(move || -> Arc<dyn Client> { client.clone() })
            .provide(move || NodeName::new(&node));
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_node_local::cells::local_node(),
            skep_node_local::cells::local_node_sync(),
            skep_k8s_reflectors::tables::cell(),
            skep_endpoint_ipam::cell(),
            skep_endpoint_ipam::sources::cell(),
            skep_endpoint_ipam::sources::infrastructure::cell(),
            cell(),
            fakes,
        ];
        let hive = Hive::new(cells).root::<Ipam>().root::<LocalNodeStore>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags)).await;
        Self {
            cluster,
            name: name.to_owned(),
            running,
        }
    }

    fn ipam(&self) -> Ipam {
        self.running.get().unwrap()
    }

    async fn cilium_node(&self) -> Value {
        self.cluster.get(&CiliumNode::kind(), "", &self.name).await
    }

    async fn node(&self) -> Value {
        self.cluster.get(&Node::kind(), "", &self.name).await
    }

    /// Waits until the CiliumNode is as `check` demands.
    async fn until(&self, check: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let found = self.cilium_node().await;
            if check(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "{found:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[derive(Deserialize)]
struct Recorded {
    name: String,
    flags: Vec<String>,
    bindings: Map<String, Value>,
    cilium_node: Value,
}

fn recorded() -> Vec<Recorded> {
    serde_json::from_str(include_str!("../../testdata/cilium-nodes.json")).unwrap()
}

fn fill(text: &str, bindings: &Map<String, Value>) -> String {
    let replace = |text: String, (name, value): (&String, &Value)| {
        text.replace(&format!("${{{name}}}"), value.as_str().unwrap_or_default())
    };
    bindings.iter().fold(text.to_owned(), replace)
}

/// The Node that a recorded CiliumNode is of.
fn node_of(recorded: &Value, name: &str, cidrs: &[&str], annotations: &Value) -> (Value, Value) {
    let addresses = recorded["spec"]["addresses"].as_array().unwrap().iter();
    let reachable = addresses.filter(|address| address["type"] != "CiliumInternalIP");
    let mut addresses: Vec<Value> = reachable
        .map(|address| json!({ "type": address["type"], "address": address["ip"] }))
        .collect();
    addresses.insert(1, json!({ "type": "Hostname", "address": name }));
    // The first one counts.
    addresses.push(json!({ "type": "InternalIP", "address": "192.0.2.99" }));
    let object = json!({
        "metadata": { "name": name, "labels": recorded["metadata"]["labels"], "annotations": annotations },
        "spec": { "podCIDR": cidrs[0], "podCIDRs": cidrs },
    });
    (object, json!({ "addresses": addresses }))
}

#[tokio::test(start_paused = true)]
async fn cilium_nodes_are_those_of_ciliums_agents() {
    for run in recorded() {
        let text = fill(&run.cilium_node.to_string(), &run.bindings);
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        let name = expected["metadata"]["ownerReferences"][0]["name"]
            .as_str()
            .unwrap();
        let name = name.to_owned();
        let annotates = run.flags.iter().any(|flag| flag == "--annotate-k8s-node");
        let mut annotations = match annotates {
            true => json!({}),
            false => expected["metadata"]["annotations"].clone(),
        };
        if annotations.is_null() {
            annotations = json!({});
        }
        annotations["kubectl.kubernetes.io/last-applied-configuration"] = json!("{}");
        let cidrs = match name.as_str() {
            "n2" => ["10.2.0.0/29", "fd00:10:2::/125"],
            _ => ["10.1.0.0/24", "fd00:10:1::/64"],
        };
        let cluster = cluster().await;
        let (node, status) = node_of(&expected, &name, &cidrs, &annotations);
        cluster.create(&Node::kind(), node).await;
        cluster.patch_status(&Node::kind(), "", &name, status).await;
        // Of the previous run, which had the same addresses.
        let spec = &expected["spec"];
        let mut ipam = spec["ipam"].clone();
        if run.flags[0] != "--ipam=cluster-pool" {
            ipam.as_object_mut().unwrap().remove("podCIDRs");
        }
        let previous = json!({
            "metadata": { "name": name, "labels": { "old": "label" } },
            "spec": { "addresses": spec["addresses"], "health": spec["health"], "ipam": ipam },
        });
        cluster.create(&CiliumNode::kind(), previous).await;

        let bench = Bench::start(cluster, &name, &run.flags).await;
        bench.ipam().ready().await;
        bench.ipam().restore_finished();

        let node = bench.node().await;
        expected["metadata"]["ownerReferences"][0]["uid"] = node["metadata"]["uid"].clone();
        let local: LocalNodeStore = bench.running.get().unwrap();
        expected["spec"]["bootid"] = json!(local.get().unwrap().boot_id);
        let parts = |object: &Value| {
            let mut spec = object["spec"].clone();
            // Of another controller.
            spec["ipam"]["pools"] = json!(null);
            let metadata =
                ["annotations", "labels", "ownerReferences"].map(|part| object["metadata"][part].clone());
            (spec, metadata)
        };
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let found = bench.cilium_node().await;
            if parts(&found) == parts(&expected) {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{}: {found:#} is not {expected:#}",
                run.name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if annotates {
            let node = bench.node().await;
            for (key, value) in expected["metadata"]["annotations"].as_object().unwrap() {
                assert_eq!(node["metadata"]["annotations"][key], *value);
            }
        }
        hive::testing::stop(bench.running).await;
    }
}

async fn with_node() -> TestCluster {
    let cluster = cluster().await;
    let node = json!({
        "metadata": { "name": "n1", "labels": { "rack": "r1", "secret.example.org/x": "1" },
                      "annotations": { "cilium.io/a": "1", "a.b.cilium.io/b": "2", "evilcilium.io/c": "3", "x-y.cilium.io/d": "4" } },
        "spec": { "podCIDRs": ["10.1.0.0/24"] },
    });
    cluster.create(&Node::kind(), node).await;
    let addresses = json!({ "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] });
    cluster.patch_status(&Node::kind(), "", "n1", addresses).await;
    cluster
}

fn flags(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cilium_node_is_created_before_ipam_has_networks_and_follows_the_node() {
    let flags = flags(&["--exclude-node-label-patterns=^secret", "--enable-ipv6=false"]);
    let bench = Bench::start(with_node().await, "n1", &flags).await;

    let created = bench.until(|found| !found.is_null()).await;

    let expected = json!({
        "addresses": [{ "ip": "192.0.2.1", "type": "InternalIP" }],
        "alibaba-cloud": {}, "azure": {}, "bootid": created["spec"]["bootid"], "encryption": {}, "eni": {},
        "health": {}, "ingress": {}, "ipam": { "pools": {} },
    });
    assert_eq!(created["spec"], expected);
    assert_eq!(created["metadata"]["labels"], json!({ "rack": "r1" }));
    let annotations = json!({ "cilium.io/a": "1", "a.b.cilium.io/b": "2" });
    assert_eq!(created["metadata"]["annotations"], annotations);

    let cidrs = json!({ "spec": { "ipam": { "podCIDRs": ["10.7.0.0/24"] } } });
    bench.cluster.patch(&CiliumNode::kind(), "", "n1", cidrs).await;
    bench.ipam().ready().await;
    bench.ipam().restore_finished();
    let relabel = json!({ "metadata": { "labels": { "rack": "r2" } } });
    bench.cluster.patch(&Node::kind(), "", "n1", relabel).await;
    let follows = |found: &Value| {
        found["metadata"]["labels"]["rack"] == "r2" && found["spec"]["health"]["ipv4"].is_string()
    };
    let found = bench.until(follows).await;
    assert_eq!(found["spec"]["addresses"].as_array().unwrap().len(), 2);
    assert_eq!(found["spec"]["ipam"]["podCIDRs"], json!(["10.7.0.0/24"]));

    // Others delete it, or change it.
    bench.cluster.delete(&CiliumNode::kind(), "", "n1").await;
    bench.until(follows).await;
    let foreign = json!({ "spec": { "addresses": [] } });
    bench.cluster.patch(&CiliumNode::kind(), "", "n1", foreign).await;
    bench
        .until(|found| {
            found["spec"]["addresses"]
                .as_array()
                .is_some_and(|all| all.len() == 2)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cilium_node_is_not_created_if_that_is_off() {
    let flags = flags(&["--auto-create-cilium-node-resource=false", "--enable-ipv6=false"]);
    let bench = Bench::start(with_node().await, "n1", &flags).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(bench.cilium_node().await.is_null());

    let object = json!({ "metadata": { "name": "n1" }, "spec": {} });
    bench.cluster.create(&CiliumNode::kind(), object).await;

    bench
        .until(|found| found["metadata"]["labels"]["rack"] == "r1")
        .await;
}
