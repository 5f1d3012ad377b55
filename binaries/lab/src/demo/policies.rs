// SPDX-License-Identifier: Apache-2.0

//! Network policies: default deny, allow by label, namespace, network and DNS name, of nodes; which rule decided, and its verdicts.

use std::process::Stdio;

use serde_json::{Value, json};
use skep_k8s_client::{Subresource, WriteOptions};
use skep_k8s_types::Kind;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{AnyError, Check, PATIENCE, headline, pods::world_server};
use crate::{
    command,
    plan::{BEYOND_NETWORK, OUTSIDE},
    session::{CallMode, Session, at, client_pod, echo_pod},
};

const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
const PORT: u64 = 8080;
const CLUSTERWIDE: Kind = Kind::new(
    "cilium.io",
    "v2",
    "CiliumClusterwideNetworkPolicy",
    "ciliumclusterwidenetworkpolicies",
    false,
);
/// Lines of `skep monitor` that are shown.
const VERDICTS: usize = 4;

pub(super) async fn show(name: &str) -> Result<Vec<Check>, AnyError> {
    let mut checks = Vec::new();
    let lab = Session::open(name, "c1")?;

    headline("Starting a server and its clients, in two namespaces");
    lab.create(json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "team", "labels": {"team": "blue"}}}))
        .await?;
    lab.create(echo_pod("shop", "shop", NODES[0])).await?;
    for (namespace, pod, node) in [
        ("default", "friend", NODES[0]),
        ("default", "stranger", NODES[1]),
        ("team", "friend", NODES[1]),
    ] {
        let mut object = client_pod(pod, node);
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["labels"] = json!({"role": pod});
        lab.create(object).await?;
    }
    let to = at(&address(&lab, "shop").await?, PORT);
    let steps = Steps { lab: &lab, to: &to };
    let clients = ["default/friend", "default/stranger", "team/friend"];
    checks.push(steps.check("without a policy", clients, [true; 3]).await);

    headline("Default deny");
    let deny = policy(
        "deny",
        json!({"podSelector": {"matchLabels": {"app": "shop"}}, "policyTypes": ["Ingress"]}),
    );
    lab.create(deny).await?;
    checks.push(steps.check("default deny", clients, [false; 3]).await);

    headline("Allow by label, then by namespace");
    lab.create(allow(
        "by-label",
        json!([{"podSelector": {"matchLabels": {"role": "friend"}}}]),
    ))
    .await?;
    checks.push(
        steps
            .check("pods with a label", clients, [true, false, false])
            .await,
    );
    lab.create(allow(
        "by-namespace",
        json!([{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]),
    ))
    .await?;
    checks.push(
        steps
            .check("pods of a namespace", clients, [true, false, true])
            .await,
    );

    let (mut server, world) = world_server(name)?;
    headline("Allow by CIDR: egress of a pod to nowhere but one network");
    let network = format!("{}/24", BEYOND_NETWORK[0].1);
    let egress = json!({"podSelector": {"matchLabels": {"role": "friend"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": network}}]}]});
    let egress = policy("egress", egress);
    lab.create(egress.clone()).await?;
    checks.push(
        steps
            .check("egress to another network alone", clients, [false, false, true])
            .await,
    );
    let to_world = Steps {
        lab: &lab,
        to: &world,
    };
    checks.push(
        to_world
            .check("egress to that network", ["default/friend"], [true])
            .await,
    );
    lab.delete(&egress).await?;
    checks.push(
        steps
            .check("egress allowed again", clients, [true, false, true])
            .await,
    );
    checks.extend(by_name(name, &to_world).await?);
    server.kill().await?;

    let port = format!("{PORT}/TCP");
    let explain = [
        "skep",
        "policy",
        "explain",
        "default/stranger",
        "default/shop",
        &port,
    ];
    headline(&explain.join(" "));
    let text = lab.run(NODES[0], &explain).await?;
    for line in text.lines() {
        println!("  {line}");
    }
    checks.push(Check {
        what: "`skep policy explain` answers".into(),
        found: text.lines().next().unwrap_or_default().to_owned(),
        is_good: !text.is_empty(),
    });
    checks.push(verdicts(name, &lab, &to).await?);

    headline("A policy of a node: no client outside of the cluster may reach it");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODES[0]}});
    let label = json!({"metadata": {"labels": {"role": "guarded"}}});
    lab.merge(&node, Subresource::None, label).await?;
    let guard = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "guard"},
        "spec": {"nodeSelector": {"matchLabels": {"role": "guarded"}},
            "ingress": [{"fromEntities": ["cluster", "kube-apiserver"]}]},
    });
    let outside = super::NODE_ADDRESSES[0];
    // The port of health probes between nodes.
    let url = format!("http://{outside}:4240/");
    let probe = ["curl", "-s", "-o", "/dev/null", "-m", "2", &url];
    let reaches = |place: &'static str| async move { lab_run(name, place, &probe).await };
    let before = reaches(OUTSIDE).await;
    lab.client()
        .create(&CLUSTERWIDE, "", guard, &WriteOptions::default())
        .await?;
    let denied = lab
        .wait("the node is guarded", || async { !reaches(OUTSIDE).await })
        .await;
    let inside = reaches(NODES[1]).await;
    println!(
        "  {url}: from outside {before} before, {} after; from another node {inside}",
        denied.is_err()
    );
    checks.push(Check {
        what: "a policy of a node denies callers from outside".into(),
        found: format!(
            "before {before}, after {}, from another node {inside}",
            denied.is_err()
        ),
        is_good: before && denied.is_ok() && inside,
    });
    Ok(checks)
}

async fn lab_run(name: &str, place: &str, program: &[&str]) -> bool {
    let Ok(lab) = Session::open(name, "c1") else {
        return false;
    };
    lab.run(place, program).await.is_ok()
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": name}, "spec": spec})
}

/// Lets these peers call the server.
fn allow(name: &str, peers: Value) -> Value {
    policy(
        name,
        json!({"podSelector": {"matchLabels": {"app": "shop"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": peers, "ports": [{"protocol": "TCP", "port": PORT}]}]}),
    )
}

/// The address of a pod.
async fn address(lab: &Session, pod: &str) -> Result<String, AnyError> {
    let get = || async {
        let pod = lab.client().get(&Kind::POD, "default", pod).await.ok()?;
        let pod = pod.to_value().ok()?;
        pod["status"]["podIP"].as_str().map(str::to_owned)
    };
    let what = format!("pod {pod} has an address");
    lab.wait(&what, || async { get().await.is_some() }).await?;
    get().await.ok_or_else(|| format!("not any more: {what}").into())
}

struct Steps<'a> {
    lab: &'a Session,
    to: &'a str,
}

impl Steps<'_> {
    /// Waits until the clients reach the server as expected.
    async fn check<const N: usize>(&self, what: &str, clients: [&str; N], expected: [bool; N]) -> Check {
        let mut found = Vec::new();
        let mut is_good = true;
        for (client, expected) in clients.into_iter().zip(expected) {
            let reached = self
                .lab
                .wait(what, || async {
                    let outcome = self.lab.call(client, self.to, CallMode::TCP, 1).await;
                    outcome.is_ok_and(|outcome| (outcome.failed == 0) == expected)
                })
                .await;
            is_good &= reached.is_ok();
            found.push(format!(
                "{client} {}",
                if expected == reached.is_ok() {
                    "passes"
                } else {
                    "is dropped"
                }
            ));
        }
        println!("  {what}: {}", found.join(", "));
        Check {
            what: what.to_owned(),
            found: found.join(", "),
            is_good,
        }
    }
}

/// A pod that may reach what it has looked up under one name.
async fn by_name(name: &str, world: &Steps<'_>) -> Result<Vec<Check>, AnyError> {
    const CLIENT: &str = "default/stranger";
    headline("Allow by name: what the pod finds at its DNS server");
    let lab = world.lab;
    let mut pod = client_pod("dns", NODES[0]);
    pod["metadata"]["labels"] = json!({"app": "dns"});
    lab.create(pod).await?;
    let server = address(lab, "dns").await?;
    let address = BEYOND_NETWORK[0].1.to_string();
    let records =
        ["www.example.com", "www.example.net"].map(|name| format!("--host-record={name},{address}"));
    let options = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--pid-file=",
        "--no-resolv",
    ];
    let program = ["dnsmasq"].into_iter().chain(options).map(Into::into);
    let program = program.chain(records.map(Into::into)).collect();
    let mut dns = command::in_place(name, "default/dns", program)?;
    let mut dns = dns.stdin(Stdio::null()).kill_on_drop(true).spawn()?;
    let at = format!("@{server}");
    let look_up = |name: &'static str| {
        let program = [
            "dig",
            "+noall",
            "+comments",
            "+answer",
            "+tries=1",
            "+timeout=3",
            &at,
            name,
        ];
        async move { lab.run(CLIENT, &program).await.unwrap_or_default() }
    };
    let of_name = || async { look_up("www.example.com").await.contains(&address) };
    lab.wait("the DNS server answers", of_name).await?;
    let spec = json!({
        "endpointSelector": {"matchLabels": {"role": "stranger"}},
        "egress": [
            {"toEndpoints": [{"matchLabels": {"app": "dns"}}],
             "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": [{"matchPattern": "*.example.com"}]}}]},
            {"toFQDNs": [{"matchName": "www.example.com"}]},
        ],
    });
    let policy = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "default", "name": "by-name"}, "spec": spec});
    lab.create(policy.clone()).await?;
    let mut checks = vec![
        world
            .check("a name that was not looked up", [CLIENT], [false])
            .await,
    ];
    let refused = lab.wait("other names are refused", || async {
        look_up("www.example.net").await.contains("status: REFUSED")
    });
    let is_refused = refused.await.is_ok();
    println!(
        "  www.example.net is {}",
        if is_refused { "refused" } else { "answered" }
    );
    checks.push(Check {
        what: "DNS of other names is refused".into(),
        found: is_refused.to_string(),
        is_good: is_refused,
    });
    let answer = look_up("www.example.com").await;
    let answer = answer
        .lines()
        .find(|line| line.contains(&address))
        .unwrap_or_default();
    println!("  {answer}");
    checks.push(world.check("a name that was looked up", [CLIENT], [true]).await);
    let program = ["skep", "fqdn", "cache", "list"];
    headline(&program.join(" "));
    print!("{}", lab.run(NODES[1], &program).await?);
    lab.delete(&policy).await?;
    dns.kill().await?;
    Ok(checks)
}

/// `skep monitor` on the node of the server, while a stranger calls.
async fn verdicts(name: &str, lab: &Session, to: &str) -> Result<Check, AnyError> {
    let program = ["skep", "monitor", "--type", "policy-verdict"];
    headline(&program.join(" "));
    let mut command = command::in_place(name, NODES[0], program.map(Into::into).to_vec())?;
    let mut monitor = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(monitor.stdout.take().ok_or("the monitor has no output")?).lines();
    let mut shown = 0;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while shown < VERDICTS && tokio::time::Instant::now() < deadline {
        // The verdicts of calls before the monitor listens are lost.
        for client in ["default/friend", "default/stranger"] {
            lab.call(client, to, CallMode::TCP, 1).await?;
        }
        while shown < VERDICTS
            && let Ok(line) =
                tokio::time::timeout(std::time::Duration::from_millis(100), lines.next_line()).await
            && let Some(line) = line?
        {
            if line.contains("action") {
                println!("  {line}");
                shown += 1;
            }
        }
    }
    monitor.kill().await?;
    Ok(Check {
        what: "`skep monitor` shows verdicts".into(),
        found: format!("{shown} lines"),
        is_good: shown == VERDICTS,
    })
}
