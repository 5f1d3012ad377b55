// SPDX-License-Identifier: Apache-2.0

//! Many pods on two nodes: the CNI plugin connects them, the agent restarts, a node goes.

use std::{ffi::OsString, process::Stdio, time::Duration};

use serde_json::json;
use skep_k8s_client::ListOptions;
use skep_k8s_types::{Kind, Resource, slim};
use tokio::time::Instant;

use super::{AnyError, Check, PATIENCE, UNDISTURBED, headline, uninterrupted};
use crate::{
    command,
    plan::{BEYOND, BEYOND_NETWORK},
    process::own_program,
    session::{CallMode, Session, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish},
};

const PODS: usize = 50;
const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
const CLIENT: &str = "default/client";
const WORLD_PORT: u16 = 8080;
const TRAFFIC: Duration = Duration::from_secs(4);

pub(super) async fn show(name: &str) -> Result<Vec<Check>, AnyError> {
    let mut checks = Vec::new();
    let lab = Session::open(name, "c1")?;

    headline(&format!("Starting {PODS} pods on two nodes by the CNI plugin"));
    let started = Instant::now();
    lab.create(client_pod("client", NODES[0])).await?;
    for number in 1..PODS {
        lab.create(echo_pod(&format!("web-{number}"), "shop", NODES[number % 2]))
            .await?;
    }
    let mut addresses = Vec::new();
    lab.wait("all pods run", || async {
        running(&lab).await.is_ok_and(|found| found.len() == PODS)
    })
    .await?;
    addresses.extend(running(&lab).await?);
    println!("  {PODS} pods run after {:.1} s", started.elapsed().as_secs_f64());
    let mut distinct = addresses.clone();
    distinct.sort();
    distinct.dedup();
    checks.push(Check {
        what: format!("{PODS} pods have addresses of their own"),
        found: format!("{} addresses", distinct.len()),
        is_good: distinct.len() == PODS,
    });

    headline("Calling pods of both nodes, their service, and the world");
    let mut failed = 0;
    for address in addresses.iter().filter(|address| !address.is_empty()).take(20) {
        let outcome = lab.call(CLIENT, &at(address, 8080), CallMode::TCP, 1).await?;
        failed += outcome.failed;
    }
    // The client serves nothing.
    checks.push(Check {
        what: "pod to pod, on the node and between nodes".into(),
        found: format!("{failed} of 20 calls failed"),
        is_good: failed <= 1,
    });
    let service = lab.create(dual_stack_service("shop", &json!({}))).await?;
    let first = cluster_ips(&service).into_iter().next();
    let to = at(&first.ok_or("the service has no cluster IP")?, 80);
    lab.wait("the service answers", || async {
        let outcome = lab.call(CLIENT, &to, CallMode::TCP, 20).await;
        outcome.is_ok_and(|outcome| outcome.failed == 0)
    })
    .await?;
    let outcome = lab.call(CLIENT, &to, CallMode::TCP, 60).await?;
    checks.push(Check {
        what: "pod to service".into(),
        found: format!("{} backends, {} failed", outcome.servers.len(), outcome.failed),
        is_good: outcome.failed == 0 && outcome.servers.len() > 10,
    });
    checks.push(world(name, &lab).await?);

    headline("Restarting the agent during traffic");
    let traffic = lab.keep_calling(CLIENT, &to, CallMode::TCP, TRAFFIC)?;
    tokio::time::sleep(UNDISTURBED).await;
    let agent = lab.state()?.agents.get(NODES[0]).copied().unwrap_or_default();
    let process = nix::unistd::Pid::from_raw(i32::try_from(agent)?);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM)?;
    let outcome = finish(traffic).await?;
    println!("  {outcome}");
    checks.push(uninterrupted(
        "the agent of 25 pods restarts during traffic",
        &outcome,
    ));

    for program in [["skep", "endpoint", "list"].as_slice(), &["skep", "node", "list"]] {
        let text = program.join(" ");
        headline(&text);
        let program = program.iter().map(OsString::from).collect();
        let status = command::exec(name, NODES[0], program).await?;
        checks.push(Check {
            what: format!("`{text}` answers"),
            found: status.to_string(),
            is_good: status.success(),
        });
    }
    Ok(checks)
}

/// IPv4 addresses of the pods that run.
async fn running(lab: &Session) -> Result<Vec<String>, AnyError> {
    let kind: Kind = slim::Pod::kind();
    let pods = lab.client().list(&kind, "", &ListOptions::default()).await?;
    let pods = pods.items.iter().filter_map(|pod| pod.to_value().ok());
    let running = pods.filter(|pod| pod["status"]["phase"] == "Running");
    Ok(running
        .filter_map(|pod| Some(pod["status"]["podIP"].as_str()?.to_owned()))
        .collect())
}

/// A server behind the router of the nodes, which has no routes to pods.
async fn world(name: &str, lab: &Session) -> Result<Check, AnyError> {
    let port = WORLD_PORT.to_string();
    let program = [
        own_program(),
        "echo".into(),
        "--name".into(),
        "world".into(),
        "--tcp".into(),
        port.into(),
    ];
    let mut server = command::in_place(name, BEYOND, program.to_vec())?;
    let mut server = server.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let (_, address, _) = BEYOND_NETWORK[0];
    let to = at(&address.to_string(), WORLD_PORT.into());
    let deadline = Instant::now() + PATIENCE;
    let mut outcome = lab.call(CLIENT, &to, CallMode::TCP, 5).await?;
    while outcome.failed > 0 && Instant::now() < deadline {
        outcome = lab.call(CLIENT, &to, CallMode::TCP, 5).await?;
    }
    server.kill().await?;
    println!("  {outcome}");
    Ok(Check {
        what: "pod to the world, by masquerade".into(),
        found: format!("{} answered, {} failed", outcome.answered, outcome.failed),
        is_good: outcome.failed == 0,
    })
}
