// SPDX-License-Identifier: Apache-2.0

//! `preflight`: whether Skep can be installed, by what the API server knows and by checks on each node.

use std::{collections::BTreeMap, error::Error, time::Duration};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    access::{Access, Pod, items, text},
    chain,
    chart::{self, Chart, Helm},
    failure,
};

/// Oldest kernel.
const KERNEL: (u32, u32) = (5, 15);
/// Oldest Kubernetes.
const KUBERNETES: (u32, u32) = (1, 21);
/// DaemonSets of other CNI plugins.
const PLUGINS: [(&str, &str); 9] = [
    (
        "aws-node",
        "AWS VPC CNI: chain with it (cni.chainingMode=aws-cni), or remove it",
    ),
    (
        "azure-cni",
        "Azure CNI: chain with it (cni.chainingMode=generic-veth), or remove it",
    ),
    (
        "calico-node",
        "Calico: remove it, or chain with it (cni.chainingMode=generic-veth, enableIdentityMark=false)",
    ),
    ("canal", "Canal: remove it"),
    (
        "kindnet",
        "kindnet: create the cluster with networking.disableDefaultCNI",
    ),
    (
        "kube-flannel",
        "Flannel: remove it, or migrate node by node (`skep migrate plan`)",
    ),
    ("kube-router", "kube-router: remove it"),
    (
        "weave-net",
        "Weave: remove it, or chain with it (cni.chainingMode=generic-veth)",
    ),
    ("antrea-agent", "Antrea: remove it"),
];
/// Ports of the agent and of what runs beside it.
const PORTS: [(u64, &str); 5] = [
    (4240, "health of nodes"),
    (4244, "Hubble"),
    (9879, "health of the agent"),
    (9962, "metrics of the agent"),
    (9963, "metrics of the operator"),
];
/// Label of a definition with the version of its schema.
const SCHEMA: &str = "io.cilium.k8s.crd.schema.version";

/// Options of `preflight`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PreflightOptions {
    /// Run the checks on each node: in agents of Skep that run, else in pods that are installed for it and removed again.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    nodes: bool,
    /// Image of the agent, for these pods; default: that of the chart.
    #[arg(long)]
    agent_image: Option<String>,
    /// Time for these pods to start.
    #[arg(long, default_value = "3m", value_parser = skep_duration::parse_duration)]
    timeout: Duration,
    /// Output format: text or json.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Passed.
    Ok,
    /// Works, with less.
    Warning,
    /// Skep does not work so.
    Error,
}

/// A check and what it found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    /// Node; empty for the cluster.
    pub(crate) node: String,
    /// Name.
    pub(crate) name: String,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// What was found, and what to do.
    pub(crate) text: String,
}

#[derive(Default)]
struct Checks(Vec<Check>);

impl Checks {
    fn add(&mut self, node: &str, name: &str, outcome: Outcome, text: impl Into<String>) {
        self.0.push(Check {
            node: node.to_owned(),
            name: name.to_owned(),
            outcome,
            text: text.into(),
        });
    }
}

/// Runs `preflight`.
pub(crate) async fn run(access: &Access, options: &PreflightOptions) -> Result<(), Box<dyn Error>> {
    let mut checks = Checks::default();
    cluster(access, &mut checks).await?;
    if options.nodes {
        nodes(access, options, &mut checks).await?;
    }
    let checks = checks.0;
    match options.output.as_str() {
        "json" => println!("{}", serde_json::to_string_pretty(&checks)?),
        _ => print!("{}", report(&checks)),
    }
    let errors = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Error)
        .count();
    match errors {
        0 => Ok(()),
        errors => Err(failure(format!("{errors} checks failed"))),
    }
}

fn report(checks: &[Check]) -> String {
    let mut out = String::new();
    let mut by_node: BTreeMap<&str, Vec<&Check>> = BTreeMap::new();
    for check in checks {
        by_node.entry(&check.node).or_default().push(check);
    }
    for (node, checks) in by_node {
        out.push_str(&match node {
            "" => "Cluster\n".to_owned(),
            node => format!("Node {node}\n"),
        });
        for check in checks {
            let mark = match check.outcome {
                Outcome::Ok => "✅",
                Outcome::Warning => "⚠️ ",
                Outcome::Error => "❌",
            };
            out.push_str(&format!("  {mark} {:20} {}\n", check.name, check.text));
        }
    }
    out
}

/// `1.2` of `1.2.3-text`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text
        .trim_start_matches('v')
        .split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

async fn cluster(access: &Access, checks: &mut Checks) -> Result<(), Box<dyn Error>> {
    let server = access.get("/version").await?.unwrap_or_default();
    let found = text(&server, "/gitVersion");
    let outcome = match version(found) {
        Some(version) if version >= KUBERNETES => Outcome::Ok,
        _ => Outcome::Error,
    };
    checks.add(
        "",
        "kubernetes",
        outcome,
        format!("{found}, at least {}.{} is needed", KUBERNETES.0, KUBERNETES.1),
    );

    let nodes = access.list("/api/v1/nodes").await?;
    for node in &nodes {
        let name = text(node, "/metadata/name");
        let kernel = text(node, "/status/nodeInfo/kernelVersion");
        let outcome = match version(kernel) {
            Some(version) if version >= KERNEL => Outcome::Ok,
            None => Outcome::Warning,
            Some(_) => Outcome::Error,
        };
        checks.add(
            name,
            "kernel",
            outcome,
            format!("{kernel}, at least {}.{} is needed", KERNEL.0, KERNEL.1),
        );
        let system = text(node, "/status/nodeInfo/operatingSystem");
        if !matches!(system, "linux" | "") {
            checks.add(
                name,
                "operating-system",
                Outcome::Error,
                format!("{system}: use --nodes-without-cilium for such nodes"),
            );
        }
    }
    let sets = access.list("/apis/apps/v1/daemonsets").await?;
    plugins(&sets, checks);
    ports(access, checks).await?;
    networks(&nodes, checks);
    definitions(access, checks).await?;
    let release = Helm::new(access).chart();
    match release {
        Ok(chart) if chart.is_empty() => checks.add("", "release", Outcome::Ok, "not installed"),
        Ok(chart) => checks.add(
            "",
            "release",
            Outcome::Ok,
            format!("{chart} is installed: use `skep upgrade`"),
        ),
        Err(error) => checks.add("", "release", Outcome::Warning, chain(&error)),
    }
    Ok(())
}

fn plugins(sets: &[Value], checks: &mut Checks) {
    let mut found = false;
    for set in sets {
        let name = text(set, "/metadata/name");
        if let Some((_, what)) = PLUGINS.iter().find(|(plugin, _)| name.starts_with(plugin)) {
            found = true;
            checks.add("", "cni-plugin", Outcome::Warning, *what);
        }
        if name.contains("kube-proxy") {
            checks.add(
                "",
                "kube-proxy",
                Outcome::Ok,
                "runs: set kubeProxyReplacement=true to replace it (`skep migrate kube-proxy`)",
            );
        }
        let namespace = text(set, "/metadata/namespace");
        if name == "cilium" {
            let images = set.pointer("/spec/template/spec/containers/0/image");
            let image = images.and_then(Value::as_str).unwrap_or_default();
            let what = match image.contains("skep") {
                true => format!("agents run in namespace {namespace}"),
                false => format!(
                    "Cilium runs in namespace {namespace} ({image}): `skep upgrade` takes over its release"
                ),
            };
            checks.add("", "agents", Outcome::Ok, what);
        }
    }
    if !found {
        checks.add(
            "",
            "cni-plugin",
            Outcome::Ok,
            "no DaemonSet of another CNI plugin",
        );
    }
}

async fn ports(access: &Access, checks: &mut Checks) -> Result<(), Box<dyn Error>> {
    let mut taken = 0;
    for pod in access.list("/api/v1/pods").await? {
        if text(&pod, "/metadata/labels/app.kubernetes.io~1part-of") == "cilium" {
            continue;
        }
        let on_host = pod["spec"]["hostNetwork"] == true;
        let containers = pod["spec"]["containers"].as_array();
        let all = containers
            .into_iter()
            .flatten()
            .flat_map(|one| one["ports"].as_array())
            .flatten();
        for port in all {
            let field = if on_host { "containerPort" } else { "hostPort" };
            let number = port[field].as_u64().unwrap_or_default();
            if let Some((_, what)) = PORTS.iter().find(|(port, _)| *port == number) {
                taken += 1;
                let owner = format!(
                    "{}/{}",
                    text(&pod, "/metadata/namespace"),
                    text(&pod, "/metadata/name")
                );
                let found = format!("port {number} ({what}) is that of pod {owner}");
                checks.add(text(&pod, "/spec/nodeName"), "ports", Outcome::Error, found);
            }
        }
    }
    if taken == 0 {
        checks.add("", "ports", Outcome::Ok, "no pod declares a port of the agent");
    }
    Ok(())
}

/// Pod CIDRs of nodes must not overlap with addresses of nodes.
fn networks(nodes: &[Value], checks: &mut Checks) {
    let internal = |node: &Value| {
        let all = node["status"]["addresses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.iter().any(|one| text(one, "/type") == "InternalIP")
    };
    for node in nodes.iter().filter(|node| !internal(node)) {
        checks.add(
            text(node, "/metadata/name"),
            "address",
            Outcome::Error,
            "the Node has no InternalIP",
        );
    }
}

async fn definitions(access: &Access, checks: &mut Checks) -> Result<(), Box<dyn Error>> {
    let list = access
        .get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .await?;
    let list = list.unwrap_or_default();
    let ours: Vec<&Value> = items(&list)
        .iter()
        .filter(|one| text(one, "/spec/group") == "cilium.io")
        .collect();
    if ours.is_empty() {
        checks.add("", "crds", Outcome::Ok, "not there: the operator creates them");
        return Ok(());
    }
    let versions: BTreeMap<&str, usize> = ours.iter().fold(BTreeMap::new(), |mut counts, one| {
        let label = one["metadata"]["labels"][SCHEMA].as_str().unwrap_or("unknown");
        *counts.entry(label).or_default() += 1;
        counts
    });
    let text: Vec<String> = versions
        .iter()
        .map(|(version, count)| format!("{count} of version {version}"))
        .collect();
    let not_established = ours.iter().filter(|one| {
        let conditions = one["status"]["conditions"].as_array();
        !conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    });
    let (outcome, more) = match not_established.count() {
        0 => (Outcome::Ok, String::new()),
        count => (Outcome::Error, format!(", {count} are not established")),
    };
    let text = format!("{}{more}; the operator updates older ones", text.join(", "));
    checks.add("", "crds", outcome, text);
    Ok(())
}

async fn nodes(
    access: &Access,
    options: &PreflightOptions,
    checks: &mut Checks,
) -> Result<(), Box<dyn Error>> {
    let agents: Vec<Pod> = access.agents().await?.into_iter().filter(Pod::is_ours).collect();
    if !agents.is_empty() {
        for agent in &agents {
            node(access, agent, "cilium-agent", checks).await;
        }
        return Ok(());
    }
    const RELEASE: &str = "skep-preflight";
    eprintln!("✨ Installing Helm release {RELEASE}: a pod on each node that checks it, removed afterwards");
    let chart = Chart::open(None)?;
    let mut words: Vec<String> = vec![
        "install".to_owned(),
        RELEASE.to_owned(),
        chart.path.display().to_string(),
    ];
    for (path, value) in [
        ("preflight.enabled", json!(true)),
        ("preflight.validateCNPs", json!(false)),
        ("agent", json!(false)),
        ("operator.enabled", json!(false)),
        (
            "preflight.extraVolumes",
            json!([{ "name": "etc-cni-netd", "hostPath": { "path": "/etc/cni/net.d", "type": "DirectoryOrCreate" } }]),
        ),
        (
            "preflight.extraVolumeMounts",
            json!([{ "name": "etc-cni-netd", "mountPath": "/host/etc/cni/net.d", "readOnly": true }]),
        ),
    ] {
        words.extend(chart::set(path, &value));
    }
    if let Some(image) = &options.agent_image {
        words.extend(chart::set("preflight.image.override", &json!(image)));
    }
    // The DaemonSet of the chart wants to be beside agents: here there are none.
    words.extend(chart::set("preflight.affinity", &json!({ "podAffinity": null })));
    let helm = Helm::new(access);
    helm.run(&words)?;
    let checked = checked_pods(access, options, checks).await;
    eprintln!("🧹 Removing Helm release {RELEASE}");
    helm.run(&["uninstall".to_owned(), RELEASE.to_owned()])?;
    checked
}

async fn checked_pods(
    access: &Access,
    options: &PreflightOptions,
    checks: &mut Checks,
) -> Result<(), Box<dyn Error>> {
    let deadline = tokio::time::Instant::now() + options.timeout;
    loop {
        let pods = access
            .pods(access.namespace(), "k8s-app=cilium-pre-flight-check")
            .await?;
        let running = pods.iter().filter(|pod| pod.phase() == "Running").count();
        if running > 0 && running == pods.len() {
            for pod in &pods {
                node(access, pod, "cilium-pre-flight-check", checks).await;
            }
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            for pod in pods.iter().filter(|pod| pod.phase() != "Running") {
                checks.add(
                    &pod.node,
                    "pod",
                    Outcome::Error,
                    format!("pod {} is {}", pod.name, pod.phase()),
                );
            }
            if pods.is_empty() {
                checks.add(
                    "",
                    "pods",
                    Outcome::Error,
                    "no pod of the DaemonSet cilium-pre-flight-check was created",
                );
            }
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs the checks of one node in a pod there.
async fn node(access: &Access, pod: &Pod, container: &str, checks: &mut Checks) {
    let command = ["skep", "preflight", "node", "-o", "json"];
    let output = access
        .exec(pod, container, &command, Duration::from_secs(60))
        .await;
    let found = match output {
        Ok(output) => serde_json::from_str::<Vec<Value>>(&output.text())
            .map_err(|_| format!("exit code {}: {}", output.code, output.reason())),
        Err(error) => Err(chain(&error)),
    };
    match found {
        Ok(found) => {
            // The Node says which kernel it has.
            for one in found.into_iter().filter(|one| text(one, "/name") != "kernel") {
                let outcome = match text(&one, "/outcome") {
                    "ok" => Outcome::Ok,
                    "warning" => Outcome::Warning,
                    _ => Outcome::Error,
                };
                checks.add(&pod.node, text(&one, "/name"), outcome, text(&one, "/text"));
            }
        }
        Err(error) => checks.add(
            &pod.node,
            "checks",
            Outcome::Error,
            format!("pod {}: {error}", pod.name),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(version("6.12.95+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("v1.33.1"), Some((1, 33)));
        assert_eq!(version("text"), None);
    }
}
