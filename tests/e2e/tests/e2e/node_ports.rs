// SPDX-License-Identifier: Apache-2.0

//! Node ports, from a client outside of the nodes: what it sends passes the packet programs at their interfaces.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_lab::{
    plan::{self, OUTSIDE},
    session::{CallMode, at, echo_pod, finish, node_port},
};

const NODE_1: &str = "172.30.1.1";
const NODES: [&str; 4] = [NODE_1, "172.30.1.2", "fd00:30:0:1::1", "fd00:30:0:1::2"];

/// A lab of two nodes with a pod of the service `shop` on each, or only on the second.
async fn lab(test: &str, config: &[&str], pods: &[(&str, &str)]) -> (TestLab, Arc<Value>) {
    let lab = TestLab::up_with(test, lab_options(2, config, None)).await;
    lab.create_all(pods.iter().map(|(name, node)| echo_pod(name, "shop", node)))
        .await;
    let service = lab.create_shop(json!({"type": "NodePort"})).await;
    (lab, service)
}

/// Kills the agent of a node; the lab starts it again.
async fn kill_agent(lab: &TestLab, node: &str) {
    let Ok(state) = lab.session.state() else {
        panic!("the lab is gone");
    };
    let agent = state.agents[node].to_string();
    let killed = lab.session.run(node, &["kill", "-KILL", &agent]).await;
    assert!(killed.is_ok(), "{killed:?}");
}

/// Waits until the agent of a node says this of its programs.
async fn attached(lab: &TestLab, node: &str, text: &str) {
    let waited = lab.session.wait(text, || async {
        let status = lab.session.run(node, &["skep", "status", "--verbose"]).await;
        status.is_ok_and(|status| status.contains(text))
    });
    if let Err(error) = waited.await {
        let status = lab.session.run(node, &["skep", "status", "--verbose"]).await;
        panic!("{error}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_outside_reach_backends_on_any_node_by_any_node() {
    let pods = [("web-0", "c1-n1"), ("web-1", "c1-n2")];
    let (lab, service) = lab("node-ports", &[], &pods).await;

    for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
        for node in NODES {
            let to = at(node, node_port(&service, protocol));
            lab.call_until(OUTSIDE, &to, mode, 20, |outcome| {
                outcome.failed == 0 && outcome.servers.len() == 2
            })
            .await;
        }
    }
    let status = lab
        .session
        .run("c1-n1", &["skep", "status"])
        .await
        .unwrap_or_default();
    assert!(
        status.contains("Attach Mode:") && status.contains("(Direct Routing)"),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_from_outside_fails_while_agents_are_killed_and_settings_change() {
    // One backend on the node that is asked, one on the other.
    let pods = [("web-0", "c1-n1"), ("web-1", "c1-n2")];
    let (lab, service) = lab("ports-kill", &[], &pods).await;
    let to = at(NODE_1, node_port(&service, "TCP"));
    lab.call_until(OUTSIDE, &to, CallMode::TCP, 20, |outcome| {
        outcome.failed == 0 && outcome.servers.len() == 2
    })
    .await;
    attached(&lab, "c1-n1", "attached by tcx links").await;
    let started = lab
        .session
        .keep_calling(OUTSIDE, &to, CallMode::TCP, Duration::from_secs(20));
    let Ok(calls) = started else {
        panic!("calls did not start");
    };

    for node in ["c1-n1", "c1-n2"] {
        kill_agent(&lab, node).await;
    }
    let config = plan::folder_of(lab.name()).join("config/c1-n1");
    for (key, value) in [("enable-tcx", "false"), ("bpf-lb-acceleration", "testing-only")] {
        let written = std::fs::write(config.join(key), value);
        assert!(written.is_ok(), "{key}: {written:?}");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    kill_agent(&lab, "c1-n1").await;
    attached(&lab, "c1-n1", "attached by filters").await;
    attached(&lab, "c1-n1", "XDP: eth0").await;
    let _ = std::fs::remove_file(config.join("enable-tcx"));
    kill_agent(&lab, "c1-n1").await;
    attached(&lab, "c1-n1", "attached by tcx links").await;

    match finish(calls).await {
        Ok(outcome) => {
            assert_eq!(outcome.failed, 0, "{outcome}");
            assert!(outcome.answered > 100, "{outcome}");
        }
        Err(error) => panic!("{error}"),
    }
}
