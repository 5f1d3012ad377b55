// SPDX-License-Identifier: Apache-2.0

//! Several clusters as one: a global service.

use std::{ffi::OsString, time::Duration};

use serde_json::{Value, json};
use skep_k8s_client::Subresource;
use skep_k8s_types::{Kind, Resource, slim};

use super::{AnyError, Check, UNDISTURBED, by_server, headline, uninterrupted};
use crate::{
    command,
    echo::Outcome,
    mesh::Mesh,
    session::{
        CallMode, Session, SessionError, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish,
    },
};

/// Pod of the first cluster that all calls come from.
const CLIENT: &str = "default/client";
/// How long traffic flows while something is disturbed.
const TRAFFIC: Duration = Duration::from_secs(8);

pub(super) async fn show(name: &str) -> Result<Vec<Check>, AnyError> {
    let mut checks = Vec::new();
    let mesh = command::mesh(name)?;
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|cluster| Session::open(name, cluster));
    let (c1, c2, c3) = (c1?, c2?, c3?);

    headline("Deploying a global service in two clusters, with a backend in each");
    c1.create(client_pod("client", "c1-n1")).await?;
    c1.create(echo_pod("web-c1", "shop", "c1-n1")).await?;
    c2.create(echo_pod("web-c2", "shop", "c2-n1")).await?;
    let service = c1.create(global_service()).await?;
    c2.create(global_service()).await?;
    let addresses = cluster_ips(&service);
    println!("  service shop of c1: {}", addresses.join(" and "));
    for address in &addresses {
        let to = at(address, 80);
        let what = format!("global service {to}: backends of both clusters");
        checks.push(answered(&c1, &to, &["web-c1", "web-c2"], what).await?);
    }
    let first = addresses.first().ok_or("the service has no cluster IP")?;
    let to = at(first, 80);

    headline("Taking its backend in c1 away during traffic");
    let traffic = c1.keep_calling(CLIENT, &to, CallMode::TCP, TRAFFIC)?;
    tokio::time::sleep(UNDISTURBED).await;
    c1.delete(&echo_pod("web-c1", "shop", "c1-n1")).await?;
    checks.push(answered(&c1, &to, &["web-c2"], "no backend in c1: c2 answers".into()).await?);
    let outcome = finish(traffic).await?;
    println!("  {}", found(&outcome));
    checks.push(uninterrupted("the last backend in c1 is taken away", &outcome));

    headline("Preferring the backends of one side");
    c1.create(echo_pod("web-c1-again", "shop", "c1-n1")).await?;
    for (affinity, servers) in [
        (json!("local"), ["web-c1-again"].as_slice()),
        (json!("remote"), &["web-c2"]),
        (Value::Null, &["web-c1-again", "web-c2"]),
    ] {
        let change = json!({"metadata": {"annotations": {"service.cilium.io/affinity": affinity}}});
        c1.merge(&service, Subresource::None, change).await?;
        let what = match affinity.as_str() {
            Some(affinity) => format!("affinity {affinity}"),
            None => "without affinity".to_owned(),
        };
        checks.push(answered(&c1, &to, servers, what).await?);
    }

    checks.extend(remote_state(&c1, &c2).await?);
    checks.extend(without_etcd(&c1, &mesh, &to).await?);
    checks.extend(join_and_leave(&c1, &c3, &mesh, &to).await?);

    headline("skep clustermesh status");
    let program = ["skep", "clustermesh", "status"].map(OsString::from).into();
    let status = command::exec(name, "c1-n1", program).await?;
    checks.push(Check {
        what: "`skep clustermesh status` answers".into(),
        found: status.to_string(),
        is_good: status.success(),
    });
    Ok(checks)
}

/// Nodes, identities and addresses of the other cluster.
async fn remote_state(c1: &Session, c2: &Session) -> Result<Vec<Check>, AnyError> {
    headline("Nodes, identities and addresses of c2, as c1 knows them");
    let kind: Kind = slim::Pod::kind();
    let pod = c2.client().get(&kind, "default", "web-c2").await?.to_value()?;
    let address = pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let mut checks = Vec::new();
    for (what, program, word) in [
        ("node c2/c2-n1", ["skep", "node", "list"].as_slice(), "c2/c2-n1"),
        (
            "an identity of a pod of c2",
            &["skep", "identity", "list"],
            "k8s:io.cilium.k8s.policy.cluster=c2",
        ),
        ("the address of pod web-c2", &["skep", "ip", "list"], &address),
    ] {
        let waited = c1
            .wait(what, || async {
                c1.run("c1-n1", program)
                    .await
                    .is_ok_and(|text| text.contains(word))
            })
            .await;
        let text = c1.run("c1-n1", program).await?;
        let line = text
            .lines()
            .find(|line| line.contains(word))
            .unwrap_or_default()
            .trim();
        println!("  {}: {line}", program.join(" "));
        checks.push(Check {
            what: format!("c1 knows {what}"),
            found: line.split_whitespace().collect::<Vec<_>>().join(" "),
            is_good: waited.is_ok() && !word.is_empty(),
        });
    }
    Ok(checks)
}

async fn without_etcd(c1: &Session, mesh: &Mesh, to: &str) -> Result<Vec<Check>, AnyError> {
    headline("Killing etcd of c2 during traffic");
    let traffic = c1.keep_calling(CLIENT, to, CallMode::TCP, TRAFFIC)?;
    tokio::time::sleep(UNDISTURBED).await;
    mesh.stop_etcd("c2")?;
    let mut checks = vec![said(c1, "c2: not-ready", "the status says that c2 cannot be read").await];
    let outcome = finish(traffic).await?;
    println!("  {}", found(&outcome));
    checks.push(Check {
        what: "calls while etcd of c2 is down".into(),
        is_good: outcome.failed == 0 && outcome.servers.contains_key("web-c2"),
        found: found(&outcome),
    });
    mesh.restart_etcd("c2")?;
    checks.push(said(c1, "c2: ready", "the status says that c2 is back").await);
    Ok(checks)
}

async fn join_and_leave(c1: &Session, c3: &Session, mesh: &Mesh, to: &str) -> Result<Vec<Check>, AnyError> {
    headline("A third cluster joins and leaves during traffic");
    c3.create(echo_pod("web-c3", "shop", "c3-n1")).await?;
    c3.create(global_service()).await?;
    let traffic = c1.keep_calling(CLIENT, to, CallMode::TCP, TRAFFIC)?;
    tokio::time::sleep(UNDISTURBED).await;
    mesh.join("c3")?;
    let three = ["web-c1-again", "web-c2", "web-c3"];
    let joined = answered(c1, to, &three, "c3 joined: three clusters answer".into()).await?;
    mesh.leave("c3")?;
    let left = answered(c1, to, &three[..2], "c3 left: two clusters answer".into()).await?;
    let outcome = finish(traffic).await?;
    println!("  {}", found(&outcome));
    let during = uninterrupted("a third cluster joins and leaves", &outcome);
    Ok(vec![joined, left, during])
}

/// Waits until calls are answered by these servers and no others.
async fn answered(lab: &Session, to: &str, servers: &[&str], what: String) -> Result<Check, AnyError> {
    let is_answered = lab.wait(&what, || async {
        let outcome = lab.call(CLIENT, to, CallMode::TCP, 40).await;
        outcome.is_ok_and(|outcome| outcome.failed == 0 && outcome.servers.keys().eq(servers))
    });
    let in_time = match is_answered.await {
        Ok(()) => true,
        Err(SessionError::Late { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    let outcome = lab.call(CLIENT, to, CallMode::TCP, 60).await?;
    println!("  {what}: {}", by_server(&outcome));
    Ok(Check {
        what,
        is_good: in_time && outcome.failed == 0 && outcome.servers.keys().eq(servers),
        found: found(&outcome),
    })
}

fn found(outcome: &Outcome) -> String {
    format!("{}, {} failed", by_server(outcome), outcome.failed)
}

/// Waits until `skep clustermesh status` contains a text.
async fn said(lab: &Session, text: &str, what: &str) -> Check {
    let status = || lab.run("c1-n1", &["skep", "clustermesh", "status"]);
    let wait = lab.wait(what, || async {
        status().await.is_ok_and(|status| status.contains(text))
    });
    let found = wait.await;
    let status = status().await.unwrap_or_else(|error| error.to_string());
    let lines: Vec<&str> = status.lines().filter(|line| line.contains("c2:")).collect();
    println!("  {}", lines.join(" ").trim());
    Check {
        what: what.to_owned(),
        found: lines.join(", ").trim().to_owned(),
        is_good: found.is_ok(),
    }
}

fn global_service() -> Value {
    let mut service = dual_stack_service("shop", &json!({}));
    service["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
    service
}
