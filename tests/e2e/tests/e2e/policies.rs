// SPDX-License-Identifier: Apache-2.0

//! Network policies of a cluster at the packets of its pods.

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, TestLab, lab_options};
use skep_lab::session::{CallMode, at, client_pod, echo_pod};

/// The first address of a pod, once it has one.
async fn address(lab: &TestLab, node: &str, count: usize, pod: &str) -> String {
    let endpoints = lab.endpoints(node, count).await;
    let is_of = |endpoint: &&Value| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == pod;
    let endpoint = endpoints
        .iter()
        .find(is_of)
        .unwrap_or_else(|| panic!("no endpoint of {pod}"));
    endpoint["status"]["networking"]["addressing"][0]["ipv4"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn reaches(lab: &TestLab, from: &str, to: &str, mode: CallMode) {
    lab.call_until(from, to, mode, 2, |outcome| outcome.failed == 0)
        .await;
}

async fn is_denied(lab: &TestLab, from: &str, to: &str, mode: CallMode) {
    lab.call_until(from, to, mode, 2, |outcome| outcome.failed == 2)
        .await;
}

fn cilium_policy(name: &str, app: &str, rules: Value) -> Value {
    let mut object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"endpointSelector": {"matchLabels": {"app": app}}},
    });
    if let (Some(spec), Value::Object(rules)) = (object["spec"].as_object_mut(), rules) {
        spec.extend(rules);
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_decide_about_the_packets_of_pods() {
    let lab = TestLab::up_with("policies", lab_options(2, &[AT_PACKETS], None)).await;
    let mut client = client_pod("client", "c1-n1");
    client["metadata"]["labels"] = json!({"app": "client"});
    lab.create_all([
        client,
        echo_pod("near", "near", "c1-n1"),
        echo_pod("far", "far", "c1-n2"),
    ])
    .await;
    let near = at(&address(&lab, "c1-n1", 2, "near").await, 8080);
    let far = at(&address(&lab, "c1-n2", 1, "far").await, 8080);
    for to in [&near, &far] {
        reaches(&lab, "default/client", to, CallMode::TCP).await;
    }

    let deny = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": "deny"},
        "spec": {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["near", "far"]}]}, "policyTypes": ["Ingress"]},
    });
    lab.create_all([deny.clone()]).await;
    for to in [&near, &far] {
        is_denied(&lab, "default/client", to, CallMode::TCP).await;
    }
    // The node may reach its own pods.
    reaches(&lab, "c1-n1", &near, CallMode::TCP).await;

    let peers = json!([{"matchLabels": {"app": "client"}}]);
    let port = json!([{"ports": [{"port": "8080", "protocol": "TCP"}]}]);
    let rules = json!({"ingress": [{"fromEndpoints": peers, "toPorts": port}]});
    let allow = [
        cilium_policy("near", "near", rules.clone()),
        cilium_policy("far", "far", rules),
    ];
    lab.create_all(allow).await;
    for to in [&near, &far] {
        reaches(&lab, "default/client", to, CallMode::TCP).await;
        is_denied(&lab, "default/client", to, CallMode::UDP).await;
    }
    is_denied(&lab, "default/far", &near, CallMode::TCP).await;

    let peers = json!([{"matchLabels": {"app": "far"}}]);
    let egress = cilium_policy("egress", "client", json!({"egress": [{"toEndpoints": peers}]}));
    lab.create_all([egress.clone()]).await;
    is_denied(&lab, "default/client", &near, CallMode::TCP).await;
    reaches(&lab, "default/client", &far, CallMode::TCP).await;
    // Without its agent, and with a new one.
    lab.restart_agent("c1-n1").await;
    is_denied(&lab, "default/client", &near, CallMode::TCP).await;
    reaches(&lab, "default/client", &far, CallMode::TCP).await;

    assert!(lab.session.delete(&egress).await.is_ok());
    reaches(&lab, "default/client", &near, CallMode::TCP).await;
    assert!(lab.session.delete(&deny).await.is_ok());
    is_denied(&lab, "default/far", &near, CallMode::TCP).await;

    // By hand, until the agent compares the map with the policy.
    let id_of = |endpoints: &[Value], pod: &str| {
        let is_of = |endpoint: &&Value| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == pod;
        let found = endpoints.iter().find(is_of).cloned().unwrap_or_default();
        (
            found["id"].to_string(),
            found["status"]["identity"]["id"].to_string(),
        )
    };
    let (endpoint, _) = id_of(&lab.endpoints("c1-n1", 2).await, "near");
    let (_, identity) = id_of(&lab.endpoints("c1-n2", 1).await, "far");
    let bpf = |verb: &'static str, rest: &'static [&'static str]| {
        let (lab, endpoint, identity) = (&lab, &endpoint, &identity);
        async move {
            let fixed = [
                "skep",
                "bpf",
                "policy",
                verb,
                endpoint.as_str(),
                "ingress",
                identity.as_str(),
            ];
            lab.run("c1-n1", &[fixed.as_slice(), rest].concat()).await
        }
    };
    bpf("add", &["8080/tcp"]).await;
    reaches(&lab, "default/far", &near, CallMode::TCP).await;
    is_denied(&lab, "default/far", &near, CallMode::UDP).await;
    for program in [
        ["skep", "bpf", "policy", "get", endpoint.as_str(), "--numeric"].as_slice(),
        &["skep", "bpf", "policy", "list", "--numeric"],
    ] {
        let shown = lab.run("c1-n1", program).await;
        let words = |line: &str| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        let row = format!("Allow Ingress {identity} 8080/TCP");
        assert!(shown.lines().any(|line| words(line) == row), "{shown}");
    }
    bpf("delete", &["8080/tcp"]).await;
    is_denied(&lab, "default/far", &near, CallMode::TCP).await;
    // The host endpoint is among those that it waits for.
    lab.run("c1-n1", &["skep", "policy", "wait", "1", "--max-wait-time", "60"])
        .await;
}
