// SPDX-License-Identifier: Apache-2.0

//! Policies of nodes, audit mode, verdicts in the monitor.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Place, TestLab, beyond_address, lab_options};
use skep_k8s_client::{Subresource, WriteOptions};
use skep_k8s_types::Kind;
use skep_lab::{
    plan::{BEYOND, OUTSIDE},
    session::client_pod,
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

const ANSWER: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(40);
pub(crate) const KIND: Kind = Kind::new(
    "cilium.io",
    "v2",
    "CiliumClusterwideNetworkPolicy",
    "ciliumclusterwidenetworkpolicies",
    false,
);

/// A listener on a port of a node. Connections are accepted by the kernel.
fn listen(place: Place, port: u16) -> std::net::TcpListener {
    let bound = place.inside(async move || TcpListener::bind(("0.0.0.0", port)).await?.into_std());
    bound.unwrap()
}

fn connects(from: Place, to: SocketAddr) -> bool {
    let call = from.inside(async move || {
        let connected = timeout(ANSWER, TcpStream::connect(to)).await;
        Ok(connected.is_ok_and(|done| done.is_ok()))
    });
    call.unwrap()
}

#[track_caller]
fn expect(wanted: bool, from: Place, to: SocketAddr, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while connects(from, to) != wanted {
        assert!(Instant::now() < deadline, "{what}: {to}, wanted {wanted}");
        // No accept call: the queue of the listener holds some hundred connections.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The policy of the nodes with label `role=guarded`: all of the cluster's own traffic, and one port for everybody.
pub(crate) fn guard(direction: &str, rules: Value) -> Value {
    let mut spec = json!({"nodeSelector": {"matchLabels": {"role": "guarded"}}});
    spec[direction] = rules;
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": format!("guard-{}", direction.to_lowercase())}, "spec": spec,
    })
}

async fn node_address(lab: &TestLab, name: &str) -> IpAddr {
    let node = lab.session.client().get(&Kind::NODE, "", name).await.unwrap();
    let node = node.to_value().unwrap();
    let addresses = node["status"]["addresses"].as_array().unwrap().clone();
    let internal = addresses
        .iter()
        .find(|address| address["type"] == "InternalIP")
        .unwrap();
    internal["address"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_nodes_decide_about_their_packets() {
    let config = [AT_PACKETS, "enable-host-firewall=true"];
    let lab = TestLab::up_with("host-policies", lab_options(2, &config, None)).await;
    lab.create_all([client_pod("client", "c1-n1")]).await;
    lab.endpoints("c1-n1", 1).await;
    let node = node_address(&lab, "c1-n1").await;
    let (place, other, outside) = (lab.place("c1-n1"), lab.place("c1-n2"), lab.place(OUTSIDE));
    let pod = lab.place("default/client");
    let _listeners = [8022, 8023].map(|port| listen(place, port));
    let _away = [9443, 9444].map(|port| listen(lab.place(BEYOND), port));
    let to = |port| SocketAddr::new(node, port);
    for from in [outside, other, pod] {
        expect(true, from, to(8023), "without a policy");
    }
    let label = json!({"metadata": {"labels": {"role": "guarded"}}});
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c1-n1"}});
    lab.session
        .merge(&object, Subresource::None, label)
        .await
        .unwrap();

    let client = lab.session.client();
    let options = WriteOptions::default();
    let port = json!([{"ports": [{"port": "8022", "protocol": "TCP"}]}]);
    let ingress = guard(
        "ingress",
        json!([{"fromEntities": ["remote-node", "health", "kube-apiserver"]}, {"fromEntities": ["all"], "toPorts": port}]),
    );
    client.create(&KIND, "", ingress.clone(), &options).await.unwrap();

    expect(false, outside, to(8023), "denied from outside");
    expect(true, outside, to(8022), "an allowed port");
    expect(true, other, to(8023), "from another node");
    expect(false, pod, to(8023), "denied from a pod");
    expect(true, pod, to(8022), "an allowed port, from a pod");
    // The agent goes on: it has the API server's answers.
    lab.restart_agent("c1-n1").await;
    expect(false, outside, to(8023), "denied after a restart");
    expect(true, outside, to(8022), "an allowed port after a restart");

    let listed = lab
        .run("c1-n1", &["skep", "endpoint", "list", "-o", "json"])
        .await;
    let endpoints: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let host = endpoints
        .iter()
        .find(|endpoint| endpoint["status"]["identity"]["id"] == 1)
        .unwrap();
    let policy = &host["status"]["policy"]["realized"]["policy-enabled"];
    assert_eq!(policy, "ingress", "{host}");
    let id = host["id"].to_string();

    // Audited, everything passes, and events say what would not.
    lab.run(
        "c1-n1",
        &["skep", "endpoint", "config", &id, "PolicyAuditMode=Enabled"],
    )
    .await;
    expect(true, outside, to(8023), "audited");
    lab.run(
        "c1-n1",
        &["skep", "endpoint", "config", &id, "PolicyAuditMode=Disabled"],
    )
    .await;
    expect(false, outside, to(8023), "not audited any more");

    let away = |port| SocketAddr::new(beyond_address(true), port);
    expect(true, place, away(9444), "egress without a policy");
    let port = json!([{"ports": [{"port": "9443", "protocol": "TCP"}]}]);
    let egress = guard(
        "egress",
        json!([{"toEntities": ["remote-node", "health", "kube-apiserver", "cluster"]}, {"toEntities": ["world"], "toPorts": port}]),
    );
    client.create(&KIND, "", egress, &options).await.unwrap();
    expect(false, place, away(9444), "egress denied");
    expect(true, place, away(9443), "an allowed port of the world");
    expect(true, outside, to(8022), "replies pass");

    let delete = skep_k8s_client::DeleteOptions::default();
    for name in ["guard-ingress", "guard-egress"] {
        client.delete(&KIND, "", name, &delete).await.unwrap();
    }
    expect(true, outside, to(8023), "without policies again");
    expect(true, place, away(9444), "egress without policies again");
}
