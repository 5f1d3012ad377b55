// SPDX-License-Identifier: Apache-2.0

//! `migrate`: another CNI plugin or kube-proxy is replaced node by node, by a CiliumNodeConfig.

use std::{collections::BTreeMap, error::Error, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    access::{Access, escaped, items, text},
    failure,
};

/// `migrate`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Print what a migration does here, step by step. Changes nothing.
    Plan {
        /// Plan for kube-proxy instead of another CNI plugin.
        #[arg(long)]
        kube_proxy: bool,
    },
    /// Switch one node to Skep's CNI configuration.
    Node(NodeOptions),
    /// Switch one node from kube-proxy.
    KubeProxy(NodeOptions),
    /// Print which nodes are switched.
    Status {
        /// Output format: text or json.
        #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
        output: String,
    },
    /// Switch one node, or all, back.
    Undo(UndoOptions),
}

/// Options of `node` and `kube-proxy`.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeOptions {
    /// The node.
    name: String,
    /// Neither cordon nor evict pods.
    #[arg(long)]
    no_drain: bool,
    /// Print what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Time for each step.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    timeout: Duration,
}

/// Options of `undo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UndoOptions {
    /// The node.
    #[arg(required_unless_present = "all")]
    name: Option<String>,
    /// All nodes, and the CiliumNodeConfigs.
    #[arg(long)]
    all: bool,
    /// Time for each step.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    timeout: Duration,
}

/// What a node is switched to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Cni,
    KubeProxy,
}

impl Step {
    const ALL: [Self; 2] = [Self::Cni, Self::KubeProxy];

    fn label(self) -> &'static str {
        match self {
            Self::Cni => "io.cilium.migration/cilium-default",
            Self::KubeProxy => "io.cilium.migration/kube-proxy-replacement",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Self::Cni => "cilium-default",
            Self::KubeProxy => "kube-proxy-replacement",
        }
    }

    /// The CiliumNodeConfig.
    fn object(self, namespace: &str) -> Value {
        let defaults = match self {
            Self::Cni => json!({
                "write-cni-conf-when-ready": "/host/etc/cni/net.d/05-cilium.conflist",
                "custom-cni-conf": "false",
                "cni-chaining-mode": "none",
                "cni-exclusive": "true",
            }),
            Self::KubeProxy => json!({
                "kube-proxy-replacement": "true",
                "kube-proxy-replacement-healthz-bind-address": "0.0.0.0:10256",
            }),
        };
        json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumNodeConfig",
            "metadata": { "namespace": namespace, "name": self.config() },
            "spec": {
                "nodeSelector": { "matchLabels": { self.label(): "true" } },
                "defaults": defaults,
            },
        })
    }
}

fn is_switched(node: &Value, step: Step) -> bool {
    node["metadata"]["labels"][step.label()] == "true"
}

fn configs(access: &Access) -> String {
    format!(
        "/apis/cilium.io/v2/namespaces/{}/ciliumnodeconfigs",
        access.namespace()
    )
}

/// Runs `migrate`.
pub(crate) async fn run(access: &Access, command: &MigrateCommand) -> Result<(), Box<dyn Error>> {
    match command {
        MigrateCommand::Plan { kube_proxy } => {
            let step = if *kube_proxy { Step::KubeProxy } else { Step::Cni };
            plan(access, step).await
        }
        MigrateCommand::Node(options) => switch(access, options, Step::Cni).await,
        MigrateCommand::KubeProxy(options) => switch(access, options, Step::KubeProxy).await,
        MigrateCommand::Status { output } => status(access, output == "json").await,
        MigrateCommand::Undo(options) => undo(access, options).await,
    }
}

/// What the settings lack for a migration, each with the value to set.
fn lacking(settings: &crate::access::Settings, step: Step) -> Vec<String> {
    let mut lacking = Vec::new();
    let mut wants = |key: &str, value: &str, path: &str| {
        if settings.text(key) != value {
            lacking.push(format!("{path}={value} ({key} is `{}`)", settings.text(key)));
        }
    };
    match step {
        Step::Cni => {
            wants("custom-cni-conf", "true", "cni.customConf");
            wants("enable-policy", "never", "policyEnforcementMode");
            wants("enable-host-legacy-routing", "true", "bpf.hostLegacyRouting");
            if settings.text("cni-uninstall") == "true" {
                wants("cni-uninstall", "false", "cni.uninstall");
            }
        }
        Step::KubeProxy => wants("kube-proxy-replacement", "false", "kubeProxyReplacement"),
    }
    lacking
}

async fn plan(access: &Access, step: Step) -> Result<(), Box<dyn Error>> {
    let nodes = access.list("/api/v1/nodes").await?;
    let settings = access.settings().await?;
    println!("Migration of {} nodes in cluster {}", nodes.len(), access.cluster);
    let sets = access.list("/apis/apps/v1/daemonsets").await?;
    let names: Vec<&str> = sets.iter().map(|set| text(set, "/metadata/name")).collect();
    println!("  DaemonSets: {}", names.join(", "));
    println!();
    let prepare = match (settings.0.is_null(), step) {
        (true, Step::Cni) => {
            "skep install --set cni.customConf=true,cni.uninstall=false,policyEnforcementMode=never,\
            bpf.hostLegacyRouting=true,operator.unmanagedPodWatcher.restart=false,tunnelPort=8473 \
            --set ipam.operator.clusterPoolIPv4PodCIDRList='{A NETWORK THAT THE PRESENT PLUGIN DOES NOT USE}'"
                .to_owned()
        }
        (true, Step::KubeProxy) => "skep install --set kubeProxyReplacement=false".to_owned(),
        (false, _) => match lacking(&settings, step) {
            lacking if lacking.is_empty() => {
                "done: the installation has the values for a migration".to_owned()
            }
            lacking => format!("skep upgrade with {}", lacking.join(", ")),
        },
    };
    println!("1. Prepare: {prepare}");
    let (command, what) = match step {
        Step::Cni => (
            "node",
            "evicts its pods, labels it, restarts its agent, which writes the CNI configuration",
        ),
        Step::KubeProxy => (
            "kube-proxy",
            "labels it, restarts its agent, which replaces kube-proxy; kube-proxy of the node ends when the agent is ready",
        ),
    };
    println!("2. For each node: {what}");
    for node in &nodes {
        let name = text(node, "/metadata/name");
        let done = if is_switched(node, step) { "   # done" } else { "" };
        println!("     skep migrate {command} {name}{done}");
    }
    match step {
        Step::Cni => {
            println!("   Reboot a node, or delete its remaining pods, where the old plugin keeps state.");
            println!(
                "3. skep upgrade --set cni.customConf=false,policyEnforcementMode=default,bpf.hostLegacyRouting=false,operator.unmanagedPodWatcher.restart=true"
            );
            println!(
                "4. skep migrate undo --all, which keeps what the values now say; then remove the old plugin and its rules."
            );
        }
        Step::KubeProxy => {
            println!("3. skep upgrade --set kubeProxyReplacement=true,k8sServiceHost=…,k8sServicePort=…");
            println!(
                "4. Delete DaemonSet kube-proxy and its rules (`kube-proxy --cleanup`); skep migrate undo --all."
            );
        }
    }
    println!("Back, at any time: skep migrate undo NODE");
    Ok(())
}

async fn switch(access: &Access, options: &NodeOptions, step: Step) -> Result<(), Box<dyn Error>> {
    let path = format!("/api/v1/nodes/{}", options.name);
    let found = access.get(&path).await?;
    let node = found.ok_or_else(|| failure(format!("there is no node {}", options.name)))?;
    let settings = access.settings().await?;
    if settings.0.is_null() {
        return Err(failure("Skep is not installed: `skep migrate plan` says how"));
    }
    let lacking = lacking(&settings, step);
    if !lacking.is_empty() {
        return Err(failure(format!(
            "the installation lacks values for a migration: {}",
            lacking.join(", ")
        )));
    }
    let drains = step == Step::Cni && !options.no_drain;
    println!(
        "✨ Node {}: CiliumNodeConfig {}/{}{}, label {}=true, a new pod of the agent",
        options.name,
        access.namespace(),
        step.config(),
        if drains {
            ", cordoned, its pods evicted"
        } else {
            ""
        },
        step.label()
    );
    if options.dry_run {
        return Ok(());
    }
    access
        .apply(&configs(access), &step.object(access.namespace()))
        .await?;
    if step == Step::KubeProxy {
        exclude_kube_proxy(access).await?;
    }
    let was_cordoned = node["spec"]["unschedulable"] == true;
    if drains {
        cordon(access, &path, true).await?;
        drain(access, &options.name, options.timeout).await?;
    }
    access
        .merge(
            &path,
            &json!({ "metadata": { "labels": { step.label(): "true" } } }),
        )
        .await?;
    restart_agent(access, &options.name, options.timeout).await?;
    if drains && !was_cordoned {
        cordon(access, &path, false).await?;
    }
    println!(
        "✅ Node {} is switched; `skep migrate undo {0}` switches it back",
        options.name
    );
    Ok(())
}

async fn cordon(access: &Access, path: &str, is_on: bool) -> Result<(), Box<dyn Error>> {
    println!("⌛ {} the node", if is_on { "Cordoning" } else { "Uncordoning" });
    access
        .merge(
            path,
            &json!({ "spec": { "unschedulable": is_on.then_some(true) } }),
        )
        .await?;
    Ok(())
}

/// Whether a pod is to be evicted: pods of DaemonSets, of files and of the host's network stay.
fn is_evicted(pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let is_of_set = owners
        .into_iter()
        .flatten()
        .any(|owner| text(owner, "/kind") == "DaemonSet");
    let is_static = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
    let is_over = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    !is_of_set && !is_static && !is_over && pod["spec"]["hostNetwork"] != true
}

async fn pods_of(access: &Access, node: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let path = format!(
        "/api/v1/pods?fieldSelector={}",
        escaped(&format!("spec.nodeName={node}"))
    );
    Ok(access.list(&path).await?)
}

async fn drain(access: &Access, node: &str, timeout: Duration) -> Result<(), Box<dyn Error>> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let left: Vec<Value> = pods_of(access, node)
            .await?
            .into_iter()
            .filter(is_evicted)
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let name = |pod: &Value| {
            format!(
                "{}/{}",
                text(pod, "/metadata/namespace"),
                text(pod, "/metadata/name")
            )
        };
        if tokio::time::Instant::now() > deadline {
            let names: Vec<String> = left.iter().map(name).collect();
            return Err(failure(format!(
                "pods of node {node} are not evicted in time: {}; the node stays cordoned",
                names.join(", ")
            )));
        }
        println!("⌛ Evicting {} pods of node {node}", left.len());
        for pod in left
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        {
            let (namespace, pod) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": { "namespace": namespace, "name": pod },
            });
            let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
            // A disruption budget refuses for now: the next round asks again.
            if let Err(error) = access.create(&path, &eviction).await {
                println!("   {namespace}/{pod}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

async fn restart_agent(access: &Access, node: &str, timeout: Duration) -> Result<(), Box<dyn Error>> {
    let of_node = |pods: Vec<crate::access::Pod>| {
        pods.into_iter()
            .filter(|pod| pod.node == node)
            .collect::<Vec<_>>()
    };
    let before = of_node(access.agents().await?);
    println!("♻️  Restarting the agent of node {node}");
    for pod in &before {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        access.delete(&path).await?;
    }
    let uid = |pod: &crate::access::Pod| text(&pod.object, "/metadata/uid").to_owned();
    let old: Vec<String> = before.iter().map(uid).collect();
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let now = of_node(access.agents().await?);
        if now.iter().any(|pod| pod.is_ready() && !old.contains(&uid(pod))) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(failure(format!(
                "the new agent of node {node} is not ready in time: look at its logs; `skep migrate undo {node}` switches back"
            )));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Keeps kube-proxy off nodes that are switched.
async fn exclude_kube_proxy(access: &Access) -> Result<(), Box<dyn Error>> {
    let expression = json!({ "key": Step::KubeProxy.label(), "operator": "NotIn", "values": ["true"] });
    for set in kube_proxies(access).await? {
        let pointer = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let mut terms = set
            .pointer(pointer)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        if terms.is_empty() {
            terms.push(json!({}));
        }
        let mut changed = false;
        for term in &mut terms {
            let mut expressions = term["matchExpressions"].as_array().cloned().unwrap_or_default();
            if !expressions.contains(&expression) {
                expressions.push(expression.clone());
                term["matchExpressions"] = expressions.into();
                changed = true;
            }
        }
        if changed {
            patch_terms(access, &set, terms).await?;
        }
    }
    Ok(())
}

async fn include_kube_proxy(access: &Access) -> Result<(), Box<dyn Error>> {
    for set in kube_proxies(access).await? {
        let pointer = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let Some(terms) = set.pointer(pointer).and_then(Value::as_array) else {
            continue;
        };
        let mut terms = terms.clone();
        for term in &mut terms {
            if let Some(expressions) = term["matchExpressions"].as_array_mut() {
                expressions.retain(|one| text(one, "/key") != Step::KubeProxy.label());
            }
        }
        terms.retain(|term| {
            term["matchExpressions"]
                .as_array()
                .is_none_or(|all| !all.is_empty())
        });
        patch_terms(access, &set, terms).await?;
    }
    Ok(())
}

async fn kube_proxies(access: &Access) -> Result<Vec<Value>, Box<dyn Error>> {
    let sets = access.list("/apis/apps/v1/daemonsets").await?;
    let is_proxy = |set: &Value| text(set, "/metadata/name").contains("kube-proxy");
    Ok(sets.into_iter().filter(is_proxy).collect())
}

async fn patch_terms(access: &Access, set: &Value, terms: Vec<Value>) -> Result<(), Box<dyn Error>> {
    let (namespace, name) = (text(set, "/metadata/namespace"), text(set, "/metadata/name"));
    println!(
        "✨ DaemonSet {namespace}/{name}: nodes with label {} are left alone",
        Step::KubeProxy.label()
    );
    // A term list may not be empty.
    let required = match terms.is_empty() {
        true => Value::Null,
        false => json!({ "nodeSelectorTerms": terms }),
    };
    let patch = json!({ "spec": { "template": { "spec": { "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
    } } } } } });
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    access.merge(&path, &patch).await?;
    Ok(())
}

async fn status(access: &Access, is_json: bool) -> Result<(), Box<dyn Error>> {
    let nodes = access.list("/api/v1/nodes").await?;
    let agents = access.agents().await?;
    let found = access.get(&configs(access)).await?.unwrap_or_default();
    let names: Vec<&str> = items(&found)
        .iter()
        .map(|one| text(one, "/metadata/name"))
        .collect();
    let endpoints = access.list("/apis/cilium.io/v2/ciliumendpoints").await?;
    let mut managed: BTreeMap<(String, String), ()> = BTreeMap::new();
    for one in &endpoints {
        let key = (
            text(one, "/metadata/namespace").to_owned(),
            text(one, "/metadata/name").to_owned(),
        );
        managed.insert(key, ());
    }
    let mut rows = Vec::new();
    for node in &nodes {
        let name = text(node, "/metadata/name");
        let agent = agents.iter().find(|agent| agent.node == name);
        let pods: Vec<Value> = pods_of(access, name)
            .await?
            .into_iter()
            .filter(|pod| pod["spec"]["hostNetwork"] != true)
            .collect();
        let ours = pods.iter().filter(|pod| {
            let key = (
                text(pod, "/metadata/namespace").to_owned(),
                text(pod, "/metadata/name").to_owned(),
            );
            managed.contains_key(&key)
        });
        rows.push(json!({
            "node": name,
            "cni": is_switched(node, Step::Cni),
            "kubeProxy": is_switched(node, Step::KubeProxy),
            "agentReady": agent.is_some_and(crate::access::Pod::is_ready),
            "pods": pods.len(),
            "managedPods": ours.count(),
        }));
    }
    if is_json {
        let all = json!({ "nodes": rows, "ciliumNodeConfigs": names });
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    println!(
        "CiliumNodeConfigs: {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    );
    println!(
        "{:30} {:10} {:12} {:8} PODS WITH AN ENDPOINT",
        "NODE", "CNI", "KUBE-PROXY", "AGENT"
    );
    let word = |is: &Value, yes: &'static str, no: &'static str| if *is == true { yes } else { no };
    for row in rows {
        println!(
            "{:30} {:10} {:12} {:8} {}/{}",
            text(&row, "/node"),
            word(&row["cni"], "switched", "-"),
            word(&row["kubeProxy"], "replaced", "-"),
            word(&row["agentReady"], "ready", "not ready"),
            row["managedPods"],
            row["pods"]
        );
    }
    Ok(())
}

async fn undo(access: &Access, options: &UndoOptions) -> Result<(), Box<dyn Error>> {
    let nodes = access.list("/api/v1/nodes").await?;
    let wanted = nodes.iter().filter(|node| match &options.name {
        Some(name) => text(node, "/metadata/name") == name,
        None => Step::ALL.iter().any(|step| is_switched(node, *step)),
    });
    let wanted: Vec<&Value> = wanted.collect();
    if let (Some(name), true) = (&options.name, wanted.is_empty()) {
        return Err(failure(format!("there is no node {name}")));
    }
    for node in wanted {
        let name = text(node, "/metadata/name");
        println!("✨ Node {name}: labels of the migration are removed, a new pod of the agent");
        let labels: serde_json::Map<String, Value> = Step::ALL
            .iter()
            .map(|step| (step.label().to_owned(), Value::Null))
            .collect();
        let path = format!("/api/v1/nodes/{name}");
        access
            .merge(&path, &json!({ "metadata": { "labels": labels } }))
            .await?;
        restart_agent(access, name, options.timeout).await?;
    }
    if options.all {
        for step in Step::ALL {
            if access
                .delete(&format!("{}/{}", configs(access), step.config()))
                .await?
            {
                println!("🧹 Removed CiliumNodeConfig {}", step.config());
            }
        }
        include_kube_proxy(access).await?;
    }
    println!("✅ Undone. Pods that started meanwhile keep their network until they are restarted");
    Ok(())
}
