// SPDX-License-Identifier: Apache-2.0

//! The agent's life, and the tools that look into it.

use serde_json::{Value, json};
use skep_e2e::TestLab;
use skep_lab::session::{CallMode, at, client_pod, cluster_ips, echo_pod, node_port};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_comes_back_with_the_same_ids_and_no_failed_call() {
    let lab = TestLab::up("killed", 1, &[]).await;
    lab.create_all([
        echo_pod("web-0", "shop", "c1-n1"),
        echo_pod("web-1", "shop", "c1-n1"),
        client_pod("client", "c1-n1"),
    ])
    .await;
    let service = lab.create_shop(json!({"type": "NodePort"})).await;
    // A pod whose agent is killed while it makes the endpoint starts again.
    lab.endpoints("c1-n1", 3).await;
    let to = at(&cluster_ips(&service)[0], 80);
    lab.call_until("default/client", &to, CallMode::TCP, 20, |outcome| {
        outcome.failed == 0 && outcome.servers.len() == 2
    })
    .await;
    let ids = || async {
        lab.session
            .run("c1-n1", &["skep", "bpf", "lb", "list"])
            .await
            .unwrap()
    };
    // Addresses of the node that come up after the first look are seen up to a second later.
    let port = node_port(&service, "UDP");
    let on_the_node = ["172.30.1.1", "[fd00:30:0:1::1]"].map(|address| format!("{address}:{port}/UDP"));
    lab.session
        .wait("node ports are on the addresses of the node", || async {
            let list = ids().await;
            on_the_node.iter().all(|address| list.contains(address.as_str()))
        })
        .await
        .unwrap();
    let before = ids().await;
    let state = lab.session.state().unwrap();
    let (agent, node) = (state.agents["c1-n1"], state.nodes["c1-n1"]);

    let flow = std::time::Duration::from_secs(6);
    let ways = [CallMode::TCP, CallMode::TCP.kept(), CallMode::UDP.kept()];
    let calls: Vec<_> = ways
        .into_iter()
        .map(|mode| {
            lab.session
                .keep_calling("default/client", &to, mode, flow)
                .unwrap()
        })
        .collect();
    lab.session
        .run("c1-n1", &["kill", "-KILL", &agent.to_string()])
        .await
        .unwrap();
    lab.session
        .wait("the agent is back", || async {
            let pid = lab.session.state().unwrap().agents["c1-n1"];
            pid != agent && skep_lab::agents::is_well(node).await
        })
        .await
        .unwrap();

    for calls in calls {
        let outcome = skep_lab::session::finish(calls).await.unwrap();
        assert_eq!(outcome.failed, 0, "{outcome}");
        assert!(outcome.answered > 100, "{outcome}");
    }
    assert_eq!(ids().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_status_services_maps_and_the_shell() {
    let lab = TestLab::up("command", 1, &[]).await;
    lab.create_all([echo_pod("web-0", "shop", "c1-n1"), client_pod("client", "c1-n1")])
        .await;
    let service = lab.create_shop(json!({})).await;
    let ip = cluster_ips(&service)[0].clone();
    lab.call_until("default/client", &at(&ip, 80), CallMode::TCP, 5, |outcome| {
        outcome.answered == 5
    })
    .await;
    let skep = async |words: &[&str]| {
        let program: Vec<&str> = std::iter::once("skep").chain(words.iter().copied()).collect();
        lab.session.run("c1-n1", &program).await.unwrap()
    };

    assert_eq!(skep(&["status", "--brief"]).await, "OK\n");
    let status: Value = serde_json::from_str(&skep(&["status", "-o", "json"]).await).unwrap();
    assert_eq!(status["kubernetes"]["state"], "Ok", "{status}");
    assert!(
        skep(&["status", "--verbose"])
            .await
            .contains("KubeProxyReplacement Details:")
    );
    assert!(skep(&["service", "list"]).await.contains(&format!("{ip}:80/TCP")));
    assert!(
        skep(&["bpf", "lb", "list"])
            .await
            .contains(&format!("{ip}:80/TCP (1)"))
    );
    assert!(
        skep(&["bpf", "lb", "list", "--backends"])
            .await
            .contains("TCP://10.")
    );
    assert!(skep(&["bpf", "lb", "list", "--revnat"]).await.contains(&ip));
    assert!(skep(&["bpf", "ipcache", "list"]).await.contains("identity=1 "));
    assert!(skep(&["map", "list"]).await.contains("cilium_lb4_services_v2"));
    assert!(
        skep(&["shell", "db/show", "frontends"])
            .await
            .contains("default/shop")
    );
    assert!(skep(&["hive"]).await.contains("loadbalancer-reconciler"));
    assert!(skep(&["metrics", "list"]).await.contains("Metric"));
    assert!(skep(&["config", "get", "IPAM"]).await.contains("kubernetes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_against_the_labs_api_server() {
    let lab = TestLab::up("kubectl", 1, &[]).await;
    let state = lab.session.state().unwrap();
    let config = state.kubeconfig("c1").unwrap();
    let Ok(output) = tokio::process::Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .await
    else {
        eprintln!("kubectl is not installed: nothing to check");
        return;
    };
    assert!(output.status.success());
    let kubectl = async |words: &[&str]| {
        let output = tokio::process::Command::new("kubectl")
            .env("KUBECONFIG", &config)
            .args(words)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{words:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };

    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/echo.yaml");
    kubectl(&["apply", "-f", example]).await;
    kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=20s"]).await;
    assert!(kubectl(&["get", "services"]).await.contains("NodePort"));
    assert!(kubectl(&["get", "endpointslices"]).await.contains("shop-"));
    assert!(
        kubectl(&["get", "nodes", "-o", "wide"])
            .await
            .contains("172.30.1.1")
    );
    kubectl(&["delete", "-f", example]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_redirect_policies_take_traffic_and_are_shown() {
    let lab = TestLab::up("lrp", 1, &["enable-local-redirect-policy=true"]).await;
    lab.create_all([
        echo_pod("proxy-0", "proxy", "c1-n1"),
        client_pod("client", "c1-n1"),
    ])
    .await;
    let kind = skep_k8s_types::Kind::new(
        "cilium.io",
        "v2",
        "CiliumLocalRedirectPolicy",
        "ciliumlocalredirectpolicies",
        true,
    );
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy",
        "metadata": {"namespace": "default", "name": "metadata"},
        "spec": {
            "redirectFrontend": {
                "addressMatcher": {"ip": "169.254.169.254", "toPorts": [{"port": "80", "protocol": "TCP"}]},
            },
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"app": "proxy"}},
                "toPorts": [{"port": "8080", "protocol": "TCP"}],
            },
        },
    });
    let options = skep_k8s_client::WriteOptions::default();
    lab.session
        .client()
        .create(&kind, "default", policy, &options)
        .await
        .unwrap();
    lab.call_until(
        "default/client",
        "169.254.169.254:80",
        CallMode::TCP,
        5,
        |outcome| outcome.failed == 0 && outcome.servers.contains_key("proxy-0"),
    )
    .await;

    let skep = async |words: &[&str]| lab.session.run("c1-n1", words).await.unwrap();
    let text = skep(&["skep", "lrp", "list"]).await;
    assert!(
        text.starts_with("LRP namespace   LRP name   FrontendType   Matching Service\n")
            && text.contains("169.254.169.254:80/TCP -> 10.1.1.")
            && text.contains(":8080(default/proxy-0), "),
        "{text}"
    );
    let all: Value = serde_json::from_str(&skep(&["skep", "lrp", "list", "-o", "json"]).await).unwrap();
    assert_eq!(all[0]["frontend-type"], "IP + port");
    assert_eq!(
        all[0]["frontend-mappings"][0]["backends"][0]["pod-id"],
        "default/proxy-0"
    );
}
