// SPDX-License-Identifier: Apache-2.0

//! Routes between nodes that the agents make themselves (`auto-direct-node-routes`): the lab makes none.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::json;
use skep_e2e::{AT_PACKETS, TestLab, lab_options};
use skep_lab::{
    lab_options::{LabOptions, RoutingMode},
    session::{CallMode, at, client_pod, cluster_ips, echo_pod},
};

/// Networks with routes that an agent made: `10.1.2.0/24 172.30.1.2`.
async fn routed(lab: &TestLab, node: &str) -> Vec<String> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let list = lab
            .run(node, &["ip", family, "route", "show", "proto", "207"])
            .await;
        found.extend(list.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let via = words.iter().position(|word| *word == "via")?;
            Some(format!("{} {}", words.first()?, words.get(via + 1)?))
        }));
    }
    found
}

fn to_node(index: u8) -> Vec<String> {
    vec![
        format!("10.1.{index}.0/24 172.30.1.{index}"),
        format!("fd00:10:1:{index}::/64 fd00:30:0:1::{index}"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_route_pods_of_other_nodes() {
    let lab_options = LabOptions {
        routing_mode: RoutingMode::Direct,
        ..lab_options(3, &[AT_PACKETS], None)
    };
    let lab = TestLab::up_with("direct-routes", lab_options).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("shop-0", "shop", "c1-n2"),
        echo_pod("shop-1", "shop", "c1-n3"),
    ])
    .await;
    let shop = lab.create_shop(json!({})).await;

    let both = [to_node(2), to_node(3)].concat();
    lab.wait("the nodes are routed", || async {
        let found = routed(&lab, "c1-n1").await;
        found.len() == both.len() && both.iter().all(|route| found.contains(route))
    })
    .await;
    for ip in cluster_ips(&shop) {
        for mode in [CallMode::TCP, CallMode::UDP] {
            let both_answer =
                |outcome: &skep_lab::echo::Outcome| outcome.failed == 0 && outcome.servers.len() == 2;
            lab.call_until("default/client", &at(&ip, 80), mode, 20, both_answer)
                .await;
        }
    }

    // A node that is gone while the agent is away.
    let before = lab.agent("c1-n1");
    lab.configure("c1-n1", "direct-routing-skip-unreachable", "true");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c1-n3"}});
    lab.session.delete(&node).await.unwrap();
    lab.run("c1-n1", &["kill", "-KILL", &before.to_string()]).await;
    lab.wait_agent("c1-n1", before).await;
    let rest = to_node(2);
    lab.wait("the route is gone", || async {
        routed(&lab, "c1-n1").await == rest
    })
    .await;
    let health = lab.run("c1-n1", &["skep", "status", "--verbose"]).await;
    assert!(
        health.contains("2 networks of pods are routed to their nodes"),
        "{health}"
    );
}
