// SPDX-License-Identifier: Apache-2.0

//! Packets between pods and the network that pass the network stack of their node.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::json;
use skep_e2e::{AT_PACKETS, TestLab, lab_options};
use skep_k8s_types::Kind;
use skep_lab::{
    lab_options::{LabOptions, RoutingMode},
    session::{at, client_pod, echo_pod},
};

use crate::reach::{all_answer, all_reach};

const LEGACY: &str = "enable-host-legacy-routing=true";
/// Both addresses of the first node.
const ADDRESSES: [&str; 2] = ["172.30.1.1", "fd00:30:0:1::1"];

/// Addresses of a pod, once it has both.
async fn addresses(lab: &TestLab, name: &str) -> Vec<String> {
    let read = || async {
        let pod = lab
            .session
            .client()
            .get(&Kind::POD, "default", name)
            .await
            .unwrap();
        let value = pod.to_value().unwrap();
        let ips = value["status"]["podIPs"].as_array().into_iter().flatten();
        let texts = ips.filter_map(|ip| Some(ip["ip"].as_str()?.to_owned()));
        texts.collect::<Vec<String>>()
    };
    lab.wait("the pod has addresses", || async { read().await.len() == 2 })
        .await;
    read().await
}

/// Packets of both families that the kernel of a node has forwarded.
async fn forwarded(lab: &TestLab, node: &str) -> u64 {
    let text = lab.run(node, &["cat", "/proc/net/snmp", "/proc/net/snmp6"]).await;
    let mut of_v4 = text.lines().filter(|line| line.starts_with("Ip: "));
    let names = of_v4.next().unwrap().split_whitespace();
    let values = of_v4.next().unwrap().split_whitespace();
    let (_, v4) = names
        .zip(values)
        .find(|(name, _)| *name == "ForwDatagrams")
        .unwrap();
    let v6 = text
        .lines()
        .find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"))
        .unwrap();
    v4.parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
}

/// All reach each other, and the stack of the first node takes part in it as these settings say.
async fn is_connected(test: &str, routing_mode: RoutingMode, settings: &[&str], by_stack: bool) {
    let mut all = vec![AT_PACKETS];
    all.extend(settings);
    let lab_options = LabOptions {
        routing_mode,
        ..lab_options(2, &all, None)
    };
    let lab = TestLab::up_with(test, lab_options).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("near", "shop", "c1-n1"),
        echo_pod("far", "shop", "c1-n2"),
    ])
    .await;
    let shop = lab.create_shop(json!({"type": "NodePort"})).await;
    let (near, far) = (addresses(&lab, "near").await, addresses(&lab, "far").await);

    all_reach(&lab, &shop, &near, &far, &ADDRESSES).await;

    let before = forwarded(&lab, "c1-n1").await;
    let pod = match routing_mode {
        RoutingMode::Tunnel => &near,
        RoutingMode::Native | RoutingMode::Direct => &far,
    };
    for address in pod {
        all_answer(&lab, "default/client", &at(address, 8080)).await;
    }
    let count = forwarded(&lab, "c1-n1").await - before;
    // Ten connections, and ten datagrams and their answers, of each family.
    assert_eq!(count > 50, by_stack, "{count} packets");
    let status = lab.run("c1-n1", &["skep", "status"]).await;
    assert!(status.contains("Host: Legacy"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_the_network_reach_pods_by_the_stack_and_the_pair() {
    is_connected("legacy", RoutingMode::Native, &[LEGACY], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_reach_pods_by_the_stack_and_their_routes() {
    let settings = [LEGACY, "enable-endpoint-routes=true"];
    is_connected("legacy-routes", RoutingMode::Native, &settings, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_the_tunnel_pods_of_a_node_reach_each_other_by_their_routes() {
    let settings = [LEGACY, "enable-endpoint-routes=true"];
    is_connected("legacy-tun", RoutingMode::Tunnel, &settings, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_the_tunnel_programs_deliver_to_pods_without_routes() {
    is_connected("legacy-pair", RoutingMode::Tunnel, &[LEGACY], false).await;
}
