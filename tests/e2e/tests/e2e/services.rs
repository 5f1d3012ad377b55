// SPDX-License-Identifier: Apache-2.0

//! Services, as processes of nodes and pods see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::json;
use skep_e2e::TestLab;
use skep_k8s_client::Subresource;
use skep_lab::session::{CallMode, at, client_pod, cluster_ips, echo_pod, node_port};

const NODE_1: &str = "172.30.1.1";
const NODE_2: &str = "172.30.1.2";

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_lab() {
    let lab = TestLab::up("services", 2, &[]).await;
    a_service_is_reachable_by_all_its_addresses_from_pods_and_nodes(&lab).await;
    lab.clear().await;
    backends_come_and_go_without_a_failed_call(&lab).await;
    lab.clear().await;
    a_service_without_backends_is_refused_at_once(&lab).await;
    lab.clear().await;
    affinity_keeps_a_client_with_its_backend(&lab).await;
    lab.clear().await;
    an_internal_policy_of_local_stays_on_the_node(&lab).await;
    lab.clear().await;
    a_host_port_is_reachable_on_its_node(&lab).await;
    lab.clear().await;
}

async fn a_service_is_reachable_by_all_its_addresses_from_pods_and_nodes(lab: &TestLab) {
    lab.create_all([
        echo_pod("web-0", "shop", "c1-n1"),
        echo_pod("web-1", "shop", "c1-n2"),
        client_pod("client", "c1-n2"),
    ])
    .await;
    let service = lab.create_shop(json!({"type": "LoadBalancer"})).await;
    let status =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10"}, {"ip": "2001:db8::10"}]}}});
    lab.session
        .merge(&service, Subresource::Status, status)
        .await
        .unwrap();

    let ips = cluster_ips(&service);
    assert_eq!(ips.len(), 2, "{service}");
    for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
        let node_port = node_port(&service, protocol);
        let targets = [
            at(&ips[0], 80),
            at(&ips[1], 80),
            at("192.0.2.10", 80),
            at("2001:db8::10", 80),
            at(NODE_1, node_port),
            at(NODE_2, node_port),
            at("fd00:30:0:1::1", node_port),
        ];
        for from in ["default/client", "c1-n1"] {
            for to in &targets {
                lab.call_until(from, to, mode, 20, |outcome| {
                    outcome.failed == 0 && outcome.servers.len() == 2
                })
                .await;
            }
        }
        lab.call_until("c1-n1", &at("127.0.0.1", node_port), mode, 20, |outcome| {
            outcome.failed == 0
        })
        .await;
    }
}

async fn backends_come_and_go_without_a_failed_call(lab: &TestLab) {
    lab.create_all([echo_pod("web-0", "shop", "c1-n1"), client_pod("client", "c1-n2")])
        .await;
    let service = lab.create_shop(json!({})).await;
    let to = at(&cluster_ips(&service)[0], 80);
    let only = |names: &'static [&'static str]| {
        move |outcome: &skep_lab::echo::Outcome| {
            outcome.failed == 0 && outcome.servers.keys().eq(names.iter())
        }
    };
    lab.call_until("default/client", &to, CallMode::TCP, 20, only(&["web-0"]))
        .await;

    let calls = lab
        .session
        .keep_calling(
            "default/client",
            &to,
            CallMode::TCP,
            std::time::Duration::from_secs(8),
        )
        .unwrap();
    lab.create_all([echo_pod("web-1", "shop", "c1-n2")]).await;
    lab.call_until(
        "default/client",
        &to,
        CallMode::TCP,
        20,
        only(&["web-0", "web-1"]),
    )
    .await;
    lab.session
        .delete(&echo_pod("web-0", "shop", "c1-n1"))
        .await
        .unwrap();
    lab.call_until("default/client", &to, CallMode::TCP, 20, only(&["web-1"]))
        .await;

    let outcome = skep_lab::session::finish(calls).await.unwrap();
    assert_eq!(outcome.failed, 0, "{outcome}");
    assert!(outcome.answered > 100, "{outcome}");
}

async fn a_service_without_backends_is_refused_at_once(lab: &TestLab) {
    lab.create_all([client_pod("client", "c1-n1")]).await;
    let service = lab.create_shop(json!({})).await;

    for ip in cluster_ips(&service) {
        lab.call_until("default/client", &at(&ip, 80), CallMode::TCP, 1, |outcome| {
            outcome
                .errors
                .keys()
                .any(|error| error.contains("No route to host"))
        })
        .await;
    }
}

async fn affinity_keeps_a_client_with_its_backend(lab: &TestLab) {
    lab.create_all(["web-0", "web-1", "web-2"].map(|name| echo_pod(name, "shop", "c1-n1")))
        .await;
    lab.create_all([client_pod("client", "c1-n1")]).await;
    let affinity = json!({"sessionAffinity": "ClientIP"});
    let sticky = lab.create_shop(affinity).await;
    let to = at(&cluster_ips(&sticky)[0], 80);
    lab.call_until("default/client", &to, CallMode::TCP, 1, |outcome| {
        outcome.failed == 0
    })
    .await;

    let outcome = lab
        .session
        .call("default/client", &to, CallMode::TCP, 60)
        .await
        .unwrap();

    assert_eq!((outcome.failed, outcome.servers.len()), (0, 1), "{outcome}");
    // Without affinity the same pods share the calls: the first result was no accident.
    lab.session
        .merge(
            &sticky,
            Subresource::None,
            json!({"spec": {"sessionAffinity": "None"}}),
        )
        .await
        .unwrap();
    lab.call_until("default/client", &to, CallMode::TCP, 60, |outcome| {
        outcome.servers.len() == 3
    })
    .await;
}

async fn an_internal_policy_of_local_stays_on_the_node(lab: &TestLab) {
    lab.create_all([
        echo_pod("web-0", "shop", "c1-n1"),
        client_pod("near", "c1-n1"),
        client_pod("far", "c1-n2"),
    ])
    .await;
    let service = lab.create_shop(json!({"internalTrafficPolicy": "Local"})).await;
    let to = at(&cluster_ips(&service)[0], 80);

    lab.call_until("default/near", &to, CallMode::TCP, 10, |outcome| {
        outcome.answered == 10
    })
    .await;
    lab.call_until("default/far", &to, CallMode::TCP, 1, |outcome| {
        outcome.failed == 1
    })
    .await;
}

async fn a_host_port_is_reachable_on_its_node(lab: &TestLab) {
    let mut pod = echo_pod("web-0", "shop", "c1-n1");
    pod["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(8081);
    lab.create_all([pod, client_pod("client", "c1-n1")]).await;

    for from in ["c1-n1", "default/client"] {
        lab.call_until(from, &at(NODE_1, 8081), CallMode::TCP, 5, |outcome| {
            outcome.answered == 5
        })
        .await;
    }
}
