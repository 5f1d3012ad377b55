// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, TestLab};
use skep_k8s_types::Kind;
use skep_lab::{
    echo::Outcome,
    session::{CallMode, at, client_pod, echo_pod, finish},
};

const NODE: &str = "c1-n1";
const PORT: u16 = 8080;

fn only(name: &str) -> impl Fn(&Outcome) -> bool {
    move |outcome| outcome.failed == 0 && outcome.servers.keys().eq([name])
}

/// Sends what is for an address to the cache of the node, but for what the cache itself sends.
fn policy(name: &str, address: &str) -> Value {
    let port = json!([{"port": PORT.to_string(), "protocol": "TCP"}]);
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "redirectFrontend": {"addressMatcher": {"ip": address, "toPorts": port}},
            "redirectBackend": {"localEndpointSelector": {"matchLabels": {"app": "cache"}}, "toPorts": port},
            "skipRedirectFromBackend": true,
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leaves_the_traffic_of_its_backend_alone() {
    leaves_its_backend_alone("redirects", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leaves_the_packets_of_its_backend_alone() {
    leaves_its_backend_alone("redirects-tc", &[AT_PACKETS]).await;
}

async fn leaves_its_backend_alone(test: &str, settings: &[&str]) {
    let mut settings = settings.to_vec();
    settings.push("enable-local-redirect-policy=true");
    let lab = TestLab::up(test, 2, &settings).await;
    lab.create_all([
        echo_pod("web", "web", "c1-n2"),
        echo_pod("cache", "cache", NODE),
        client_pod("client", NODE),
    ])
    .await;
    let web = async || {
        let pod = lab.session.client().get(&Kind::POD, "default", "web").await;
        pod.unwrap().to_value().unwrap()
    };
    lab.wait("web has addresses", || async {
        web().await["status"]["podIPs"].is_array()
    })
    .await;
    let web = web().await;
    let addresses = web["status"]["podIPs"].as_array().unwrap().iter();
    let addresses: Vec<&str> = addresses.map(|one| one["ip"].as_str().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{web}");
    let targets: Vec<String> = addresses.iter().map(|ip| at(ip, PORT.into())).collect();
    let call_until = async |from: &str, name: &str| {
        for to in &targets {
            lab.call_until(from, to, CallMode::TCP, 5, only(name)).await;
        }
    };
    call_until("default/client", "web").await;

    let policies = [policy("web4", addresses[0]), policy("web6", addresses[1])];
    lab.create_all(policies.clone()).await;
    call_until("default/client", "cache").await;
    call_until("default/cache", "web").await;

    // Nor does a restart of the agent redirect it for a moment.
    let calls: Vec<_> = targets
        .iter()
        .map(|to| {
            let time = Duration::from_secs(8);
            lab.session
                .keep_calling("default/cache", to, CallMode::TCP, time)
                .unwrap()
        })
        .collect();
    lab.restart_agent(NODE).await;
    for calls in calls {
        let outcome = finish(calls).await.unwrap();
        assert!(outcome.answered > 100 && only("web")(&outcome), "{outcome}");
    }

    for policy in &policies {
        lab.session.delete(policy).await.unwrap();
    }
    call_until("default/client", "web").await;
}
