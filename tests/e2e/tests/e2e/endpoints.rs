// SPDX-License-Identifier: Apache-2.0

//! Pods as endpoints of the agents: what they send and receive passes the packet programs, on one node and between two.

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, TestLab, lab_options};
use skep_lab::{
    echo::Transport,
    session::{CallMode, at, client_pod, cluster_ips, echo_pod},
};

async fn managed(test: &str, nodes: u8, config: &[&str]) -> TestLab {
    TestLab::up_with(test, lab_options(nodes, config, None)).await
}

/// Addresses of a pod among the endpoints of its node.
fn addresses(endpoints: &[Value], pod: &str) -> [String; 2] {
    let is_of = |endpoint: &&Value| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == pod;
    let Some(endpoint) = endpoints.iter().find(is_of) else {
        panic!("no endpoint of pod {pod}: {endpoints:?}");
    };
    let addressing = &endpoint["status"]["networking"]["addressing"][0];
    ["ipv4", "ipv6"].map(|family| addressing[family].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_and_their_services_through_the_programs() {
    let lab = managed("endpoints", 2, &[AT_PACKETS]).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("near", "near", "c1-n1"),
        echo_pod("far", "far", "c1-n2"),
        echo_pod("shop-0", "shop", "c1-n1"),
    ])
    .await;
    let here = lab.endpoints("c1-n1", 3).await;
    let there = lab.endpoints("c1-n2", 1).await;
    let shop = lab.create_shop(json!({})).await;

    for (pod, endpoints) in [("near", &here), ("far", &there)] {
        for address in addresses(endpoints, pod) {
            for mode in [CallMode::TCP, CallMode::UDP] {
                let to = at(&address, 8080);
                lab.call_until("default/client", &to, mode, 5, |outcome| outcome.failed == 0)
                    .await;
            }
        }
    }
    for address in cluster_ips(&shop) {
        // From another pod of the node, from another node, and from the backend itself.
        for from in ["default/client", "default/far", "default/shop-0"] {
            for mode in [CallMode::TCP, CallMode::UDP] {
                // A pod sees itself as fe80::1, and a UDP server answers that from an address of the link.
                let is_own = from == "default/shop-0" && address.contains(':');
                if is_own && mode.transport == Transport::Udp {
                    continue;
                }
                let to = at(&address, 80);
                lab.call_until(from, &to, mode, 5, |outcome| outcome.failed == 0)
                    .await;
            }
        }
    }

    let counted = lab
        .session
        .run("c1-n1", &["skep", "bpf", "endpoint", "list"])
        .await;
    let counted = counted.unwrap_or_default();
    for address in addresses(&here, "near") {
        assert!(counted.contains(&address), "{address}: {counted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_survive_their_agent_and_go_with_their_pods() {
    let lab = managed("ep-restart", 1, &[]).await;
    lab.create_all([client_pod("client", "c1-n1"), echo_pod("near", "near", "c1-n1")])
        .await;
    let before = lab.endpoints("c1-n1", 2).await;
    let [ipv4, _] = addresses(&before, "near");
    let to = at(&ipv4, 8080);
    lab.call_until("default/client", &to, CallMode::TCP, 5, |outcome| {
        outcome.failed == 0
    })
    .await;
    let calls = lab.session.keep_calling(
        "default/client",
        &to,
        CallMode::TCP,
        std::time::Duration::from_secs(4),
    );

    let Ok(state) = lab.session.state() else {
        panic!("the lab is gone");
    };
    let agent = state.agents["c1-n1"].to_string();
    let killed = lab.session.run("c1-n1", &["kill", "-KILL", &agent]).await;
    assert!(killed.is_ok(), "{killed:?}");

    let outcome = match calls {
        Ok(calls) => skep_lab::session::finish(calls).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(outcome) => assert_eq!(outcome.failed, 0, "{outcome}"),
        Err(error) => panic!("{error}"),
    }
    let after = lab.endpoints("c1-n1", 2).await;
    let ids = |endpoints: &[Value]| {
        endpoints
            .iter()
            .map(|endpoint| endpoint["id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&after), ids(&before));

    let near = echo_pod("near", "near", "c1-n1");
    let deleted = lab.session.delete(&near).await;
    assert!(deleted.is_ok(), "{deleted:?}");
    let left = lab.endpoints("c1-n1", 1).await;
    assert_ne!(addresses(&left, "client")[0], ipv4);
}
