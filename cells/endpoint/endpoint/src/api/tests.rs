// SPDX-License-Identifier: Apache-2.0

//! Requests over the agent's socket.

mod pods;
mod recorded;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use skep_base_limiter::LimiterMetrics;
use skep_base_metrics::{MetricSet as _, Registry, exposition};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::tests::hive::Bench;

async fn start() -> Bench {
    start_with(&[]).await
}

async fn start_with(limits: &[(&str, &str)]) -> Bench {
    let limits = limits
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let config = super::Config {
        api_rate_limit: limits.collect(),
    };
    let bench = Bench::start(vec![
        skep_base_api::cell(),
        skep_base_limiter::cell(),
        super::cell().config_value(config),
        skep_identity_cache::cell(),
        skep_identity_cache::api::cell(),
    ])
    .await;
    bench.plug(7);
    bench.plug(8);
    bench.hooks.load();
    bench
}

/// Status and body of an answer.
async fn ask(bench: &Bench, method: &str, path: &str, body: Value) -> (u16, Value) {
    let mut stream = UnixStream::connect(bench.folder().join("agent.sock"))
        .await
        .unwrap();
    let body = match body {
        Value::Null => String::new(),
        Value::String(raw) => raw,
        other => other.to_string(),
    };
    let request = format!(
        "{method} /v1/{path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// As a CNI plugin sends it.
fn request(number: u8) -> Value {
    json!({
        "container-id": format!("container{number}"), "container-interface-name": "eth0",
        "container-netns-path": "/var/run/netns/cni-1a2b",
        "interface-name": format!("lxc{number}"), "interface-index": 100 + u32::from(number),
        "mac": "6a:0b:00:11:22:33", "host-mac": "f2:33:00:11:22:33",
        "addressing": {"ipv4": format!("10.0.1.{number}"), "ipv4-pool-name": "default", "ipv6": format!("fd00::{number}")},
        "k8s-namespace": "shop", "k8s-pod-name": format!("cart-{number}"), "k8s-uid": "2b9e", "labels": ["k8s:app=cart"],
        "state": "waiting-for-identity", "datapath-configuration": {}, "properties": {}, "netns-cookie": "4211",
        "sync-build-endpoint": true,
    })
}

#[tokio::test]
async fn an_endpoint_is_created_shown_and_deleted() {
    let bench = start().await;

    let (status, made) = ask(&bench, "PUT", "endpoint/cilium-local:0", request(7)).await;

    let id = made["id"].as_u64().unwrap();
    assert_eq!(status, 201);
    let options = json!({"label-configuration": {}, "options": {
        "Debug": "Disabled", "DebugLB": "Disabled", "DebugPolicy": "Disabled", "DropNotification": "Enabled",
        "MonitorAggregationLevel": "None", "PolicyAuditMode": "Disabled", "PolicyVerdictNotification": "Enabled",
        "SourceIPVerification": "Enabled", "TraceNotification": "Enabled"}});
    let policy = json!({"id": 5, "build": 1, "policy-revision": 1, "policy-enabled": "none",
        "allowed-egress-identities": [0], "allowed-ingress-identities": [0],
        "denied-egress-identities": null, "denied-ingress-identities": null, "l4": {"egress": [], "ingress": []}});
    let expected = json!({"id": id, "spec": options, "status": {
        "state": "ready", "realized": options, "log": made["status"]["log"], "controllers": made["status"]["controllers"],
        "external-identifiers": {
            "cni-attachment-id": "container7:eth0", "container-id": "container7", "k8s-namespace": "shop",
            "k8s-pod-name": "cart-7", "pod-name": "shop/cart-7"},
        "identity": {"id": 5, "labels": ["reserved:init"]},
        "labels": {"realized": {}, "security-relevant": ["k8s:app=cart"]},
        "networking": {
            "addressing": [{"ipv4": "10.0.1.7", "ipv4-pool-name": "default", "ipv6": "fd00::7"}], "container-interface-name": "eth0",
            "host-mac": "f2:33:00:11:22:33", "interface-index": 107, "interface-name": "lxc7", "mac": "6a:0b:00:11:22:33"},
        "health": {"bpf": "OK", "policy": "OK", "connected": true, "overallHealth": "OK"},
        "policy": {"proxy-statistics": [], "spec": policy, "realized": policy},
    }});
    assert_eq!(made, expected);
    for name in [
        id.to_string().as_str(),
        "pod-name:shop%2Fcart-7",
        "ipv4:10.0.1.7",
        "container-id:container7",
    ] {
        assert_eq!(
            ask(&bench, "GET", &format!("endpoint/{name}"), Value::Null).await,
            (200, expected.clone())
        );
    }
    assert_eq!(
        ask(&bench, "GET", "endpoint", Value::Null).await,
        (200, json!([expected]))
    );
    let (_, health) = ask(&bench, "GET", &format!("endpoint/{id}/healthz"), Value::Null).await;
    assert_eq!(health["overallHealth"], "OK");
    let (_, labels) = ask(&bench, "GET", &format!("endpoint/{id}/labels"), Value::Null).await;
    assert_eq!(labels["status"]["security-relevant"], json!(["k8s:app=cart"]));

    assert_eq!(
        ask(&bench, "DELETE", &format!("endpoint/{id}"), Value::Null).await,
        (200, Value::Null)
    );
    assert!(bench.hooks.attached().is_empty());
    let (status, text) = ask(&bench, "DELETE", &format!("endpoint/{id}"), Value::Null).await;
    assert_eq!((status, text), (404, json!("endpoint not found")));
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn what_a_chaining_plugin_requests_of_the_datapath_is_done() {
    let bench = start().await;
    let mut chained = request(7);
    chained["datapath-configuration"] = json!({"require-arp-passthrough": true, "require-egress-prog": true, "external-ipam": true, "require-routing": false});

    let (status, made) = ask(&bench, "PUT", "endpoint/0", chained).await;
    let (_, other) = ask(&bench, "PUT", "endpoint/0", request(8)).await;

    assert_eq!(status, 201);
    let id = u16::try_from(made["id"].as_u64().unwrap()).unwrap();
    let attached = bench.hooks.attached_egress();
    assert_eq!(
        attached.into_iter().collect::<Vec<_>>(),
        [(id, "lxc7".to_owned())]
    );
    let endpoints = bench.endpoints();
    let row = endpoints.get(&endpoints.db().read(), id).unwrap();
    assert_eq!(row.spec.datapath.require_routing, Some(false));
    assert!(row.spec.datapath.external_ipam && row.spec.datapath.require_arp_passthrough);
    assert_ne!(other["id"], made["id"]);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn the_endpoints_of_a_container_are_deleted_together() {
    let bench = start().await;
    let mut second = request(8);
    second["container-id"] = "container7".into();
    second["container-interface-name"] = "eth1".into();
    for body in [request(7), second] {
        assert_eq!(ask(&bench, "PUT", "endpoint/0", body).await.0, 201);
    }

    let body = json!({"container-id": "container7"});
    assert_eq!(
        ask(&bench, "DELETE", "endpoint", body.clone()).await,
        (200, Value::Null)
    );

    assert_eq!(
        ask(&bench, "GET", "endpoint", Value::Null).await,
        (200, json!([]))
    );
    assert_eq!(ask(&bench, "DELETE", "endpoint", body).await.0, 404);
    let missing = json!("invalid container id");
    assert_eq!(ask(&bench, "DELETE", "endpoint", json!({})).await, (400, missing));
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn bad_requests_are_refused_by_name_and_change_nothing() {
    let bench = start().await;
    let with = |field: &str, value: Value| {
        let mut body = request(7);
        body[field] = value;
        body
    };

    for (path, body, text) in [
        (
            "0",
            with("id", json!(65535)),
            "65535 is no id of an endpoint: they are 1 to 65534",
        ),
        (
            "0",
            with("mac", json!("6a:0b")),
            "unable to parse endpoint parameters: address 6a:0b: invalid MAC address",
        ),
        (
            "0",
            with("addressing", json!({"ipv4": "fd00::1"})),
            "unable to parse endpoint parameters: invalid IPv4 address \"fd00::1\"",
        ),
        (
            "0",
            with("interface-name", json!("")),
            "an endpoint needs the name and the index of its interface on the node",
        ),
        (
            "0",
            with("labels", json!(["reserved:host"])),
            "not allowed to add reserved labels: [reserved:host]",
        ),
        (
            "0",
            with(
                "datapath-configuration",
                json!({"disable-sip-verification": true, "external-ipam": true}),
            ),
            "datapath-configuration: `disable-sip-verification` is not supported",
        ),
        (
            "0",
            with("properties", json!({"property-fake-endpoint": true})),
            "properties: `property-fake-endpoint` is not supported",
        ),
    ] {
        let answer = ask(&bench, "PUT", &format!("endpoint/{path}"), body).await;
        assert_eq!(answer, (400, json!(text)));
    }

    assert_eq!(
        ask(&bench, "GET", "endpoint", Value::Null).await,
        (200, json!([]))
    );
    assert_eq!(ask(&bench, "GET", "endpoint/docker:1", Value::Null).await.0, 400);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn an_endpoint_that_does_not_become_ready_is_deleted_again() {
    let bench = start().await;

    let (status, text) = ask(&bench, "PUT", "endpoint/0", request(9)).await;

    assert_eq!(status, 500);
    assert!(text.as_str().unwrap().ends_with("no interface lxc9"), "{text}");
    while ask(&bench, "GET", "endpoint", Value::Null).await.1 != json!([]) {
        tokio::task::yield_now().await;
    }
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn identities_are_listed_with_how_many_endpoints_have_them() {
    let bench = start().await;
    assert_eq!(
        ask(&bench, "GET", "identity/endpoints", Value::Null).await,
        (200, json!([]))
    );
    for number in [7, 8] {
        let (status, _) = ask(&bench, "PUT", "endpoint/cilium-local:0", request(number)).await;
        assert_eq!(status, 201);
    }
    let init = json!({"id": 5, "labels": ["reserved:init"]});

    assert_eq!(
        ask(&bench, "GET", "identity/endpoints", Value::Null).await,
        (200, json!([{"identity": init, "refCount": 2}]))
    );
    assert_eq!(
        ask(&bench, "GET", "identity/5", Value::Null).await,
        (200, init.clone())
    );
    assert_eq!(
        ask(&bench, "GET", "identity", json!(["reserved:init"])).await,
        (200, json!([init]))
    );
    let (status, all) = ask(&bench, "GET", "identity", Value::Null).await;
    assert_eq!((status, all.as_array().map(Vec::len)), (200, Some(10)));
    for (path, body, expected) in [
        ("identity/999", Value::Null, 404),
        ("identity/cart", Value::Null, 400),
        ("identity", json!(["k8s:app=cart"]), 404),
    ] {
        assert_eq!(ask(&bench, "GET", path, body).await.0, expected, "{path}");
    }
    let (status, _) = ask(&bench, "GET", "identity", json!({"labels": 1})).await;
    assert_eq!(status, 400);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn an_endpoint_moves_to_another_interface_and_address() {
    let bench = start().await;
    let (_, made) = ask(&bench, "PUT", "endpoint/0", request(7)).await;
    let (_, other) = ask(&bench, "PUT", "endpoint/0", request(8)).await;
    let id = u16::try_from(made["id"].as_u64().unwrap()).unwrap();
    let path = format!("endpoint/{id}");
    bench.plug(9);
    let change = |number: u8| {
        json!({"state": "ready", "interface-name": format!("lxc{number}"), "interface-index": 100 + u32::from(number),
            "addressing": {"ipv4": format!("10.0.1.{number}")}})
    };

    let (status, text) = ask(&bench, "PATCH", &path, change(8)).await;
    assert_eq!((status, text), (400, json!("IP ipv4:10.0.1.8 is already in use")));
    assert_eq!(ask(&bench, "PATCH", &path, change(9)).await, (200, Value::Null));

    assert_eq!(bench.hooks.attached()[&id], "lxc9");
    let addresses: Vec<String> = bench.lxc().into_iter().map(|(address, ..)| address).collect();
    assert_eq!(addresses, ["10.0.1.8", "10.0.1.9", "fd00::7", "fd00::8"]);
    let (_, shown) = ask(&bench, "GET", &path, Value::Null).await;
    assert_eq!(shown["status"]["networking"]["interface-name"], "lxc9");
    assert_eq!(
        shown["status"]["networking"]["mac"],
        made["status"]["networking"]["mac"]
    );
    assert_eq!(other["status"]["state"], "ready");
    assert_eq!(ask(&bench, "PATCH", "endpoint/4711", change(9)).await.0, 404);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn too_many_requests_are_refused_by_the_name_of_their_limiter() {
    let once = "rate-limit:1/h,rate-burst:1,skip-initial:0,max-wait-duration:20ms,auto-adjust:false";
    let bench = start_with(&[
        ("endpoint-create", &once.replace("rate-burst:1", "rate-burst:2")),
        ("endpoint-get", once),
        ("endpoint-list", once),
        ("endpoint-delete", once),
    ])
    .await;
    let refused = |limiter: &str| {
        let text = format!("limiter `{limiter}`: not admitted within 20ms (max-wait-duration)");
        (429, json!(text))
    };
    let (status, made) = ask(&bench, "PUT", "endpoint/0", request(7)).await;
    assert_eq!(status, 201);
    let (status, other) = ask(&bench, "PUT", "endpoint/0", request(8)).await;
    assert_eq!(status, 201);
    let (seven, eight) = (
        format!("endpoint/{}", made["id"]),
        format!("endpoint/{}", other["id"]),
    );

    assert_eq!(
        ask(&bench, "PUT", "endpoint/0", request(9)).await,
        refused("endpoint-create")
    );
    assert_eq!(ask(&bench, "GET", &seven, Value::Null).await.0, 200);
    for path in [
        seven.clone(),
        format!("{seven}/healthz"),
        format!("{seven}/labels"),
    ] {
        assert_eq!(
            ask(&bench, "GET", &path, Value::Null).await,
            refused("endpoint-get")
        );
    }
    assert_eq!(ask(&bench, "GET", "endpoint", Value::Null).await.0, 200);
    assert_eq!(
        ask(&bench, "GET", "endpoint", Value::Null).await,
        refused("endpoint-list")
    );

    // What does not exist waits for nothing, and takes no token.
    for _ in 0..3 {
        assert_eq!(ask(&bench, "DELETE", "endpoint/4711", Value::Null).await.0, 404);
    }
    assert_eq!(ask(&bench, "DELETE", &seven, Value::Null).await.0, 200);
    assert_eq!(ask(&bench, "DELETE", &seven, Value::Null).await.0, 404);
    assert_eq!(
        ask(&bench, "DELETE", &eight, Value::Null).await,
        refused("endpoint-delete")
    );
    let body = json!({"container-id": "container8"});
    assert_eq!(
        ask(&bench, "DELETE", "endpoint", body).await,
        refused("endpoint-delete")
    );
    assert_eq!(bench.endpoints().table().len(&bench.endpoints().db().read()), 1);

    let metrics: Arc<LimiterMetrics> = bench.running.get().unwrap();
    let shown = exposition(&Registry::new(metrics.metrics(), &[]).unwrap());
    for line in [
        "{api_call=\"endpoint-create\",outcome=\"success\"} 2",
        "{api_call=\"endpoint-create\",outcome=\"fail\"} 1",
        "{api_call=\"endpoint-get\",outcome=\"fail\"} 3",
        "{api_call=\"endpoint-delete\",outcome=\"success\"} 1",
    ] {
        assert!(
            shown.contains(&format!("cilium_api_limiter_processed_requests_total{line}\n")),
            "{shown}"
        );
    }
    hive::testing::stop(bench.running).await;
}

/// With Cilium's defaults, which allow one endpoint in two seconds: they adjust to what is much faster than estimated.
#[tokio::test]
async fn many_endpoints_are_created_with_the_defaults() {
    let bench = start().await;
    let started = std::time::Instant::now();

    for number in 10..60 {
        bench.plug(number);
        let (status, answer) = ask(&bench, "PUT", "endpoint/0", request(number)).await;
        assert_eq!(status, 201, "{answer}");
    }

    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_waits_no_more() {
    let bench = start_with(&[("endpoint-list", "rate-limit:1/3s,rate-burst:1,auto-adjust:false")]).await;
    let started = std::time::Instant::now();
    assert_eq!(ask(&bench, "GET", "endpoint", Value::Null).await.0, 200);

    // The first in line, which would take the next token.
    let first = ask(&bench, "GET", "endpoint", Value::Null);
    let waits = tokio::time::timeout(Duration::from_millis(500), first).await;
    assert!(waits.is_err(), "there is no token");
    assert_eq!(ask(&bench, "GET", "endpoint", Value::Null).await.0, 200);

    let took = started.elapsed();
    assert!(
        took < Duration::from_millis(5500),
        "{took:?}: the second token was waited for"
    );
    hive::testing::stop(bench.running).await;
}
