// SPDX-License-Identifier: Apache-2.0

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{path::Path, sync::Arc, time::Duration};

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_ipcache::Source;
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::LocalNodeStore;
use skep_node_manager::{Node, NodeKey, NodeManager};
use statedb::Db;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{metrics::Reachability, round::PathKind, *};

const HOST: &str = "127.0.0.1";

fn node(name: &str, source: Source, address: &str, health: &[&str]) -> Node {
    let mut node = Node::new(NodeKey::new("", name), source);
    node.addresses = vec![
        (NodeAddressType::InternalIp, address.parse().unwrap()),
        (NodeAddressType::CiliumInternalIp, "127.0.0.77".parse().unwrap()),
    ];
    node.health = health.iter().map(|address| address.parse().unwrap()).collect();
    node
}

async fn start(folder: &Path, flags: &[&str]) -> Running {
    let manager = Cell::module("nodes", "Nodes")
        .provide(|db: Db| NodeManager::with_table(&db))
        .provide(|| NodeName::new("n1"));
    let cells = [
        statedb::cell(),
        skep_base_settings::cell(),
        skep_base_api::cell(),
        skep_node_local::cells::local_node(),
        manager,
        cell(),
    ];
    let hive = Hive::new(cells)
        .root::<NodeManager>()
        .root::<Arc<Prober>>()
        .root::<LocalNodeStore>();
    let socket = format!("--socket-path={}", folder.join("cilium.sock").display());
    let own = [
        &socket,
        "--agent-health-port=0",
        "--connectivity-probe-frequency-ratio=0",
    ];
    let args = own.into_iter().chain(flags.iter().copied()).map(str::to_owned);
    hive::testing::start_with(hive, Settings::new().args(args)).await
}

async fn ask(folder: &Path, request: &str) -> (u16, Value) {
    let socket = folder.join("health.sock");
    let connect = || async { tokio::net::UnixStream::connect(&socket).await.ok() };
    let mut stream = loop {
        match connect().await {
            Some(stream) => break stream,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(body).unwrap_or_default())
}

/// Waits until every address has been probed.
async fn probed(folder: &Path, paths: usize) -> Value {
    loop {
        let (_, status) = ask(folder, "GET /v1beta/status").await;
        if status.to_string().matches("lastProbed").count() >= paths * 2 {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((HOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A node that answers at its address and at that of its endpoint, and one of which neither answers HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_answer_are_healthy_and_others_have_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let running = start(
        folder.path(),
        &[&format!("--cluster-health-port={port}"), "--enable-ipv6=false"],
    )
    .await;
    let local: LocalNodeStore = running.get().unwrap();
    local
        .update(|node| node.addresses = vec![(NodeAddressType::InternalIp, HOST.parse().unwrap())])
        .unwrap();
    let manager: NodeManager = running.get().unwrap();
    let mut txn = manager.write();
    for node in [
        node("n1", Source::Local, HOST, &[]),
        node("n2", Source::CustomResource, "127.0.0.2", &[]),
    ] {
        manager.upsert(&mut txn, node).unwrap();
    }
    txn.commit();

    let status = loop {
        let status = probed(folder.path(), 2).await;
        // The first probe may come before the responder.
        if !status["nodes"][0]["host"]["primary-address"]["http"]["latency"].is_null() {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };

    assert_eq!(status["local"], json!({"name": "n1"}));
    // 10 s × ln(1 + 2).
    assert_eq!(status["probeInterval"], "10.986122886s");
    let names: Vec<_> = status["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["name"])
        .collect();
    assert_eq!(names, ["n1", "n2"]);
    let of = |at: usize| &status["nodes"][at]["host"]["primary-address"];
    let healthy = &of(0)["http"];
    assert_eq!(of(0)["ip"], HOST);
    assert!(healthy["latency"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(healthy.get("status"), None);
    assert!(status["nodes"][0].get("health-endpoint").is_none());
    let refused = format!(
        "Get \"http://127.0.0.2:{port}/hello\": dial tcp 127.0.0.2:{port}: connect: connection refused"
    );
    assert_eq!(of(1)["http"]["status"], refused);
    assert_eq!(of(1)["http"].get("latency"), None);

    // It leaves.
    let mut txn = manager.write();
    manager
        .delete(&mut txn, &NodeKey::new("", "n2"), Source::CustomResource)
        .unwrap();
    txn.commit();
    while ask(folder.path(), "GET /v1beta/status").await.1["nodes"]
        .as_array()
        .unwrap()
        .len()
        > 1
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    hive::testing::stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_that_of_ciliums_health_server() {
    let folder = tempfile::tempdir().unwrap();
    let port = format!("--cluster-health-port={}", free_port());
    let running = start(folder.path(), &[&port]).await;

    let (code, health) = ask(folder.path(), "GET /v1beta/healthz").await;
    assert_eq!(code, 200);
    let cluster = json!({"ciliumHealth": {"state": "Ok"}, "nodes": null, "self": "n1"});
    assert_eq!(health["cilium"]["cluster"], cluster, "{health}");
    assert!(health["uptime"].as_str().unwrap().ends_with('s'));
    let load = health["system-load"]["last15min"].as_str().unwrap();
    assert!(load.parse::<f64>().is_ok(), "{load}");
    assert_eq!(ask(folder.path(), "PUT /v1beta/status/probe").await.0, 200);
    for (request, code, message) in [
        (
            "GET /v1beta/status/probe",
            405,
            "method GET is not allowed, but [PUT] are",
        ),
        (
            "POST /v1beta/status",
            405,
            "method POST is not allowed, but [GET] are",
        ),
        ("GET /v1beta/nothing", 404, "path /v1beta/nothing was not found"),
        ("GET /v1/healthz", 404, "path /v1/healthz was not found"),
    ] {
        let answer = ask(folder.path(), request).await;
        assert_eq!(answer, (code, json!({"code": code, "message": message})));
    }
    hive::testing::stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_probed_when_it_is_off() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path(), &["--enable-health-checking=false"]).await;

    let prober: Arc<Prober> = running.get().unwrap();

    assert_eq!(prober.status().nodes, []);
    assert!(!folder.path().join("health.sock").exists());
    hive::testing::stop(running).await;
}

#[test]
fn rounds_are_as_long_as_ciliums() {
    let text = |ratio, addresses| skep_duration::format_duration(round::interval(ratio, addresses));

    assert_eq!(text(0.0, 8), "21.972245773s");
    assert_eq!(text(0.5, 4), "1m36.566274746s");
    assert_eq!(text(0.5, 0), "0s");
}

#[test]
fn metrics_count_other_nodes() {
    use skep_base_metrics::MetricSet as _;

    let target = |name: &str, is_local| round::Target {
        name: name.to_owned(),
        is_local,
        node: vec![HOST.parse().unwrap()],
        endpoint: Vec::new(),
    };
    let targets = [target("n1", true), target("n2", false), target("n3", false)];
    let metrics = HealthMetrics::default();

    metrics.count(&targets, |target, kind| match (target.name.as_str(), kind) {
        (_, PathKind::Endpoint) => None,
        ("n2", _) => Some(Reachability::Unreachable),
        _ => Some(Reachability::Reachable),
    });
    metrics.probed(PathKind::Node, "icmp", true, None);

    let mut found = Vec::new();
    for metric in metrics.metrics() {
        metric
            .visit(&mut |labels, value| found.push(format!("{} {labels:?} {value:?}", metric.opts().name())));
    }
    let all = found.join("\n");
    for part in ["unreachable_nodes", "node_health_connectivity_latency_seconds"] {
        assert!(all.contains(part), "{all}");
    }
    let unreachable: Vec<_> = found
        .iter()
        .filter(|line| line.contains("connectivity_status") && line.ends_with("Number(1.0)"))
        .collect();
    assert_eq!(unreachable.len(), 2, "one reachable, one unreachable: {all}");
}
