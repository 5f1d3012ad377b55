// SPDX-License-Identifier: Apache-2.0

//! Pods to which the kernel has routes of its own: what the node sends them passes `cil_to_container`, what comes from
//! pods, services and node ports is delivered as ever.

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, TestLab, lab_options};
use skep_lab::{
    lab_options::{LabOptions, RoutingMode},
    session::{CallMode, at, client_pod, echo_pod, finish},
};

use crate::reach::{all_answer, all_reach};

const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
const ADDRESSES: [&str; 4] = ["172.30.1.1", "172.30.1.2", "fd00:30:0:1::1", "fd00:30:0:1::2"];
const SETTING: &str = "enable-endpoint-routes";

struct Pod {
    interface: String,
    addresses: [String; 2],
}

impl Pod {
    fn of(endpoint: &Value) -> Self {
        let networking = &endpoint["status"]["networking"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let addresses = ["ipv4", "ipv6"].map(|family| text(&networking["addressing"][0][family]));
        Self {
            interface: text(&networking["interface-name"]),
            addresses,
        }
    }
}

fn pod(endpoints: &[Value], name: &str) -> Pod {
    let is_of = |endpoint: &&Value| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == name;
    let Some(endpoint) = endpoints.iter().find(is_of) else {
        panic!("no endpoint of {name}: {endpoints:?}");
    };
    Pod::of(endpoint)
}

/// Destination and interface of the routes of a node that lead to interfaces of pods and of the agent.
async fn routes(lab: &TestLab, node: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let text = lab
            .run(node, &["ip", family, "route", "show", "table", "main"])
            .await;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let to = words.next().unwrap_or_default().to_owned();
            let interface = words.skip_while(|word| *word != "dev").nth(1).unwrap_or_default();
            if (interface.starts_with("lxc") || interface == "cilium_host") && !to.starts_with("fe80") {
                found.push((to, interface.to_owned()));
            }
        }
    }
    found
}

/// Waits until the kernel has routes to all endpoints of a node, and none to its pod CIDR.
async fn routed(lab: &TestLab, node: &str, endpoints: &[Value]) {
    let pods: Vec<Pod> = endpoints.iter().map(Pod::of).collect();
    lab.wait("endpoints have routes", || async {
        let routes = routes(lab, node).await;
        let has = |pod: &Pod| {
            let mut addresses = pod.addresses.iter();
            addresses.all(|address| routes.contains(&(address.clone(), pod.interface.clone())))
        };
        pods.iter().all(has)
    })
    .await;
}

async fn up(test: &str, routing_mode: RoutingMode) -> TestLab {
    let setting = format!("{SETTING}=true");
    let lab_options = LabOptions {
        routing_mode,
        ..lab_options(2, &[AT_PACKETS, &setting], None)
    };
    let lab = TestLab::up_with(test, lab_options).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("near", "shop", "c1-n1"),
        echo_pod("far", "shop", "c1-n2"),
    ])
    .await;
    lab
}

async fn is_connected(test: &str, routing_mode: RoutingMode) {
    let lab = up(test, routing_mode).await;
    let (here, there) = (lab.endpoints("c1-n1", 2).await, lab.endpoints("c1-n2", 1).await);
    for (node, endpoints) in NODES.into_iter().zip([&here, &there]) {
        routed(&lab, node, endpoints).await;
    }
    let shop = lab.create_shop(json!({"type": "NodePort"})).await;
    let (near, far) = (pod(&here, "near"), pod(&there, "far"));

    all_reach(&lab, &shop, &near.addresses, &far.addresses, &ADDRESSES).await;

    // What the node sends to its pod takes the route, and the program there has tracked it.
    let flows = lab.run("c1-n1", &["skep", "bpf", "ct", "list", "global"]).await;
    let is_tracked = |address: &String| {
        let to = format!("-> {}", at(address, 8080));
        let from = if address.contains(':') {
            "[fd00:"
        } else {
            "172.30.1.1:"
        };
        let mut lines = flows.lines().filter(|line| line.contains(&to));
        lines.any(|line| line.contains("IN") && line.contains(from))
    };
    assert!(near.addresses.iter().all(is_tracked), "{flows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_nodes_and_clients_outside_reach_pods_with_routes() {
    is_connected("ep-routes", RoutingMode::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_behind_the_tunnel_are_reached_by_the_pair() {
    is_connected("ep-routes-tun", RoutingMode::Tunnel).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_outlive_the_agent_and_go_with_pods_and_with_the_setting() {
    let lab = up("ep-routes-life", RoutingMode::Native).await;
    let here = lab.endpoints("c1-n1", 2).await;
    routed(&lab, "c1-n1", &here).await;
    let near = pod(&here, "near");
    let to = at(&near.addresses[0], 8080);
    all_answer(&lab, "c1-n1", &to).await;

    let seconds = std::time::Duration::from_secs(4);
    let calls = lab.session.keep_calling("c1-n1", &to, CallMode::TCP, seconds);
    let Ok(calls) = calls else {
        panic!("no calls: {calls:?}");
    };
    lab.restart_agent("c1-n1").await;
    match finish(calls).await {
        Ok(outcome) => assert_eq!(outcome.failed, 0, "{outcome}"),
        Err(error) => panic!("{error}"),
    }
    let again = lab.endpoints("c1-n1", 2).await;
    routed(&lab, "c1-n1", &again).await;

    let deleted = lab.session.delete(&echo_pod("near", "shop", "c1-n1")).await;
    assert!(deleted.is_ok(), "{deleted:?}");
    lab.endpoints("c1-n1", 1).await;
    let left = routes(&lab, "c1-n1").await;
    let is_gone = |address: &String| left.iter().all(|(to, _)| to != address);
    assert!(near.addresses.iter().all(is_gone), "{left:?}");
    let has_cidr = |routes: &[(String, String)]| routes.iter().any(|(to, _)| to.contains('/'));
    assert!(!has_cidr(&left), "{left:?}");

    lab.configure("c1-n1", SETTING, "false");
    lab.restart_agent("c1-n1").await;
    lab.wait("the pod CIDR is routed, and no pod", || async {
        let routes = routes(&lab, "c1-n1").await;
        has_cidr(&routes) && !routes.iter().any(|(_, interface)| interface.starts_with("lxc"))
    })
    .await;
    lab.create_all([echo_pod("new", "shop", "c1-n1")]).await;
    let new = pod(&lab.endpoints("c1-n1", 2).await, "new");
    for address in &new.addresses {
        for from in ["c1-n1", "default/client"] {
            all_answer(&lab, from, &at(address, 8080)).await;
        }
    }
}
