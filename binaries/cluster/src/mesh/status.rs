// SPDX-License-Identifier: Apache-2.0

//! `clustermesh status`: the connections of all nodes.

use std::{collections::BTreeMap, error::Error, time::Duration};

use serde_json::{Value, json};

use crate::{
    access::{Access, number, text},
    failure,
};

/// Connections of a remote cluster.
#[derive(Debug, Default, serde::Serialize)]
struct Cluster {
    /// Nodes that are connected.
    connected: usize,
    /// Nodes that know the cluster.
    configured: usize,
    /// Nodes, endpoints and services of the cluster as the first node knows them.
    summary: String,
    /// By node.
    errors: BTreeMap<String, String>,
}

#[derive(Debug, Default, serde::Serialize)]
struct Status {
    service: Value,
    kvstoremesh: bool,
    ready: i64,
    replicas: i64,
    nodes: usize,
    nodes_connected: usize,
    /// Fewest, all, and most connected clusters of a node.
    spread: (usize, usize, usize),
    clusters: BTreeMap<String, Cluster>,
    errors: Vec<String>,
}

impl Status {
    fn is_connected(&self) -> bool {
        self.errors.is_empty() && self.nodes > 0 && self.nodes == self.nodes_connected && self.ready > 0
    }
}

pub(super) async fn run(
    access: &Access,
    wait: bool,
    limit: Duration,
    is_json: bool,
) -> Result<(), Box<dyn Error>> {
    let begun = tokio::time::Instant::now();
    let mut status = collect(access).await?;
    let mut said = String::new();
    while wait && !status.is_connected() {
        let what = match () {
            () if status.service.is_null() => {
                "access information: Service clustermesh-apiserver is missing".to_owned()
            }
            () if status.ready == 0 => "deployment clustermesh-apiserver to become ready".to_owned(),
            () => format!(
                "clusters to be connected: {} nodes are not ready",
                status.nodes - status.nodes_connected
            ),
        };
        let seconds = begun.elapsed().as_secs();
        if begun.elapsed() > limit {
            print(&status);
            return Err(failure(format!("timeout while waiting for {what}")));
        }
        if said != what {
            eprintln!("⌛ Waiting ({seconds}s) for {what}");
        }
        said = what;
        tokio::time::sleep(Duration::from_secs(2)).await;
        status = collect(access).await?;
    }
    match is_json {
        true => println!("{}", serde_json::to_string_pretty(&status)?),
        false => print(&status),
    }
    match status.errors.is_empty() && status.clusters.values().all(|one| one.errors.is_empty()) {
        true => Ok(()),
        false => Err(failure("remote clusters are not connected")),
    }
}

async fn collect(access: &Access) -> Result<Status, Box<dyn Error>> {
    let service = access.get(&access.core("services/clustermesh-apiserver")).await?;
    let deployment = access
        .get(&access.apps("deployments/clustermesh-apiserver"))
        .await?;
    let deployment = deployment.unwrap_or_default();
    let containers = deployment.pointer("/spec/template/spec/containers");
    let containers = containers
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let mut status = Status {
        service: service
            .map(|service| json!({ "type": text(&service, "/spec/type"), "ports": service["spec"]["ports"] }))
            .unwrap_or_default(),
        kvstoremesh: containers.iter().any(|one| text(one, "/name") == "kvstoremesh"),
        ready: number(&deployment, "/status/readyReplicas"),
        replicas: number(&deployment, "/spec/replicas"),
        spread: (usize::MAX, 0, 0),
        ..Status::default()
    };
    for agent in access.agents().await? {
        status.nodes += 1;
        let answer = match access.agent_json(&agent, &["status"]).await {
            Ok(answer) => answer,
            Err(error) => {
                status.errors.push(format!("node {}: {error}", agent.node));
                continue;
            }
        };
        let clusters = answer["cluster-mesh"]["clusters"].as_array();
        let (mut ready, mut all) = (0, 0);
        for remote in clusters.into_iter().flatten() {
            let entry = status
                .clusters
                .entry(text(remote, "/name").to_owned())
                .or_default();
            all += 1;
            entry.configured += 1;
            if remote["ready"] == true {
                ready += 1;
                entry.connected += 1;
            } else {
                let reason = text(remote, "/status").to_owned();
                entry.errors.insert(agent.node.clone(), reason);
            }
            if entry.summary.is_empty() {
                entry.summary = format!(
                    "{} nodes, {} endpoints, {} identities, {} services",
                    number(remote, "/num-nodes"),
                    number(remote, "/num-endpoints"),
                    number(remote, "/num-identities"),
                    number(remote, "/num-shared-services")
                );
            }
        }
        status.nodes_connected += usize::from(ready == all);
        let (least, sum, most) = status.spread;
        status.spread = (least.min(ready), sum + ready, most.max(ready));
    }
    status.spread.0 = status.spread.0.min(status.spread.2);
    Ok(status)
}

fn print(status: &Status) {
    match status.service.is_null() {
        true => println!("⚠️  Service \"clustermesh-apiserver\" is missing: other clusters cannot connect"),
        false => println!(
            "✅ Service \"clustermesh-apiserver\" of type \"{}\" found",
            text(&status.service, "/type")
        ),
    }
    if status.replicas > 0 {
        let mark = if status.ready == status.replicas {
            "✅"
        } else {
            "⚠️ "
        };
        println!(
            "{mark} Deployment clustermesh-apiserver: {} of {} replicas are ready",
            status.ready, status.replicas
        );
    }
    println!(
        "ℹ️  KVStoreMesh is {}",
        if status.kvstoremesh { "enabled" } else { "disabled" }
    );
    println!();
    let (least, sum, most) = status.spread;
    #[expect(clippy::cast_precision_loss, reason = "an average of small counts")]
    let average = sum as f64 / status.nodes.max(1) as f64;
    let spread = format!("[min:{least} / avg:{average:.1} / max:{most}]");
    match status.nodes - status.nodes_connected {
        0 => println!(
            "✅ All {} nodes are connected to all clusters {spread}",
            status.nodes
        ),
        missing => println!(
            "⚠️  {missing}/{} nodes are not connected to all clusters {spread}",
            status.nodes
        ),
    }
    println!();
    match status.clusters.is_empty() {
        true => println!("🔌 No cluster connected"),
        false => println!("🔌 Cluster Connections:"),
    }
    for (name, cluster) in &status.clusters {
        println!(
            "  - {name}: {}/{} connected, {}",
            cluster.connected, cluster.configured, cluster.summary
        );
    }
    println!();
    let of_clusters = status.clusters.iter().flat_map(|(name, cluster)| {
        let errors = cluster.errors.iter();
        errors.map(move |(node, reason)| format!("{name} is not connected on node {node}: {reason}"))
    });
    let errors: Vec<String> = status.errors.iter().cloned().chain(of_clusters).collect();
    if !errors.is_empty() {
        println!("❌ {} Errors:", errors.len());
        errors.iter().for_each(|error| println!("  ❌ {error}"));
        println!("  💡 Run 'skep troubleshoot clustermesh' in an agent to find the cause");
    }
}
