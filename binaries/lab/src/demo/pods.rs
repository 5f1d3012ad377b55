// SPDX-License-Identifier: Apache-2.0

//! Many pods on two nodes: the CNI plugin connects them, the agent restarts, a node goes.

use std::{ffi::OsString, process::Stdio, time::Duration};

use serde_json::json;
use skep_k8s_client::{DeleteOptions, ListOptions};
use skep_k8s_types::{Kind, Resource, slim};
use tokio::{process::Child, time::Instant};

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
    checks.extend(remove_node(&lab, name.ends_with("-tunnel")).await?);
    Ok(checks)
}

/// Takes a node out of the cluster: the other one keeps nothing of it. Without a tunnel the routes to its pods are the lab's.
async fn remove_node(lab: &Session, is_tunnelled: bool) -> Result<Vec<Check>, AnyError> {
    let [stays, goes] = NODES;
    headline(&format!("Removing node {goes} from the cluster"));
    let kind: Kind = slim::CiliumNode::kind();
    let node = lab.client().get(&kind, "", goes).await?.to_value()?;
    let networks = node["spec"]["ipam"]["podCIDRs"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let networks: Vec<String> = networks
        .iter()
        .filter_map(|network| Some(network.as_str()?.split('/').next()?.to_owned()))
        .collect();
    let addresses = node["spec"]["addresses"].as_array().cloned().unwrap_or_default();
    let internal = addresses.iter().filter(|address| address["type"] == "InternalIP");
    let internal: Vec<String> = internal
        .filter_map(|address| Some(address["ip"].as_str()?.to_owned()))
        .collect();
    let mut looks = Vec::new();
    for (what, program, known_by) in LEFT_OF_NODE {
        let words = match known_by {
            Left::Name => vec![goes.to_owned()],
            Left::Networks if !is_tunnelled => continue,
            Left::Networks => networks.clone(),
            Left::Addresses => internal.clone(),
        };
        let before = count(&lab.run(stays, program).await?, &words);
        looks.push((what, program, words, before));
    }
    let pods: Vec<usize> = (1..PODS).filter(|number| NODES[number % 2] == goes).collect();
    for number in &pods {
        lab.delete(&echo_pod(&format!("web-{number}"), "shop", goes))
            .await?;
    }
    lab.wait("the pods of the node are gone", || async {
        running(lab)
            .await
            .is_ok_and(|left| left.len() == PODS - pods.len())
    })
    .await?;
    // The machine is off: its agent would publish it again.
    let agent = lab.state()?.agents.get(goes).copied().unwrap_or_default();
    let process = nix::unistd::Pid::from_raw(i32::try_from(agent)?);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGSTOP)?;
    let kinds: [Kind; 2] = [slim::Node::kind(), slim::CiliumNode::kind()];
    for kind in kinds {
        // The CiliumNode may have gone with its owner, the Node. What is left of either is checked.
        let _ = lab
            .client()
            .delete(&kind, "", goes, &DeleteOptions::default())
            .await;
    }
    let mut checks = Vec::new();
    for (what, program, words, before) in looks {
        let is_gone = || async {
            let text = lab.run(stays, program).await;
            text.is_ok_and(|text| count(&text, &words) == 0)
        };
        let is_gone = lab.wait(what, is_gone).await.is_ok();
        println!(
            "  {what}: {before} before, {} now",
            if is_gone { "none" } else { "some" }
        );
        checks.push(Check {
            what: format!("node removed: its {what} are gone"),
            found: format!("{before} before"),
            is_good: is_gone,
        });
    }
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGCONT)?;
    Ok(checks)
}

/// How many of the words are in a text.
fn count(text: &str, words: &[String]) -> usize {
    words.iter().filter(|word| text.contains(word.as_str())).count()
}

/// By which words a node is known to another one.
enum Left {
    Name,
    /// Of its pods.
    Networks,
    Addresses,
}

/// What another node knows of a node, and what shows it.
const LEFT_OF_NODE: [(&str, &[&str], Left); 4] = [
    (
        "entries in the list of nodes",
        &["skep", "node", "list"],
        Left::Name,
    ),
    (
        "routes and tunnel",
        &["skep", "shell", "db/show", "routes"],
        Left::Networks,
    ),
    (
        "ipcache entries",
        &["skep", "bpf", "ipcache", "list"],
        Left::Addresses,
    ),
    ("health targets", &["skep", "health", "status"], Left::Name),
];

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
    let (mut server, to) = world_server(name)?;
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

/// Starts a server behind the router. Returns its address, too.
pub(super) fn world_server(name: &str) -> Result<(Child, String), AnyError> {
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
    server
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    let (_, address, _) = BEYOND_NETWORK[0];
    Ok((server.spawn()?, at(&address.to_string(), WORLD_PORT.into())))
}
