// SPDX-License-Identifier: Apache-2.0

//! `install`, `upgrade`, `uninstall`.

use std::{error::Error, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    access::{Access, text},
    chart::{self, Chart, Helm, HelmError},
    detect::{self, Flavour},
    failure, status,
};

/// Chart and values.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ChartOptions {
    /// Version of the chart; default: the carried one.
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// Folder of another chart.
    #[arg(long)]
    pub(crate) chart_directory: Option<PathBuf>,
    /// Repository of charts: an HTTP address with chart `skep`, or `oci://…`.
    #[arg(long)]
    pub(crate) repository: Option<String>,
    /// Print the versions that are carried.
    #[arg(long)]
    pub(crate) list_versions: bool,
    /// Revisions that Helm keeps.
    #[arg(long, default_value_t = 10)]
    pub(crate) history_max: u32,
    /// Files of values.
    #[arg(short = 'f', long, visible_alias = "helm-values", value_name = "FILE")]
    pub(crate) values: Vec<String>,
    /// Values, `path=value`.
    #[arg(long, visible_alias = "helm-set", value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,
    /// Values that are texts, `path=value`.
    #[arg(long, visible_alias = "helm-set-string", value_name = "PATH=VALUE")]
    pub(crate) set_string: Vec<String>,
    /// Values from files, `path=file`.
    #[arg(long, visible_alias = "helm-set-file", value_name = "PATH=FILE")]
    pub(crate) set_file: Vec<String>,
    /// Print the manifests, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the values that differ from the chart's, change nothing.
    #[arg(long)]
    pub(crate) dry_run_helm_values: bool,
    /// Wait until the installation is healthy.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time to wait for.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    pub(crate) wait_duration: Duration,
}

/// How pods reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DatapathMode {
    /// VXLAN.
    Tunnel,
    /// Routes of the network.
    Native,
    /// Interfaces of EC2.
    AwsEni,
    /// Routes of GKE.
    Gke,
    /// Chained with Azure's plugin.
    Azure,
    /// AKS without a plugin.
    AksByocni,
}

/// Options of `install`.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstallOptions {
    #[command(flatten)]
    chart: ChartOptions,
    /// How pods reach each other; default: by the kind of the cluster.
    #[arg(long)]
    datapath_mode: Option<DatapathMode>,
    /// Leave nodes alone that have label `cilium.io/no-schedule=true`.
    #[arg(long)]
    nodes_without_cilium: bool,
}

/// Options of `upgrade`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpgradeOptions {
    #[command(flatten)]
    chart: ChartOptions,
    /// Start from the defaults of the chart.
    #[arg(long, conflicts_with = "reuse_values")]
    reset_values: bool,
    /// Keep all values of the release: new defaults are missed.
    #[arg(long)]
    reuse_values: bool,
    /// Keep the values that were set, over the new defaults; the default.
    #[arg(long)]
    reset_then_reuse_values: bool,
    /// Restart agents and operators.
    #[arg(short, long)]
    restart: bool,
}

/// Options of `uninstall`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UninstallOptions {
    /// Wait until pods of the installation are gone.
    #[arg(long)]
    wait: bool,
    /// Time to wait for.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    timeout: Duration,
    /// Namespace of the connectivity test, deleted before.
    #[arg(long, default_value = "cilium-test-1")]
    test_namespace: String,
}

impl ChartOptions {
    fn is_quiet(&self) -> bool {
        self.dry_run || self.dry_run_helm_values
    }

    /// A line about progress, unless the output is a manifest.
    fn say(&self, line: &str) {
        if !self.is_quiet() {
            println!("{line}");
        }
    }

    /// Whether the command line sets a value.
    fn sets(&self, path: &str) -> bool {
        let given = [&self.set, &self.set_string, &self.set_file];
        given
            .into_iter()
            .flatten()
            .flat_map(|one| one.split(','))
            .any(|one| {
                one.split_once('=')
                    .is_some_and(|(key, _)| key == path || path.starts_with(&format!("{key}.")))
            })
    }

    /// Options of Helm; those given come last, and win.
    fn words(&self, values: &[(String, Value)]) -> Vec<String> {
        let mut words = Vec::new();
        for (path, value) in values.iter().filter(|(path, _)| !self.sets(path)) {
            words.extend(chart::set(path, value));
        }
        for (option, given) in [
            ("--values", &self.values),
            ("--set", &self.set),
            ("--set-string", &self.set_string),
            ("--set-file", &self.set_file),
        ] {
            words.extend(given.iter().flat_map(|one| [option.to_owned(), one.clone()]));
        }
        words
    }

    /// The chart, and its words on Helm's command line.
    fn source(&self) -> Result<(Option<Chart>, Vec<String>), HelmError> {
        if let Some(repository) = &self.repository {
            let mut words = match repository.starts_with("oci://") {
                true => vec![repository.clone()],
                false => vec!["skep".to_owned(), "--repo".to_owned(), repository.clone()],
            };
            if let Some(version) = &self.version {
                words.extend(["--version".to_owned(), version.clone()]);
            }
            return Ok((None, words));
        }
        let wanted = self
            .version
            .as_deref()
            .map(|version| version.trim_start_matches('v'));
        match wanted {
            Some(wanted) if wanted != chart::VERSION && self.chart_directory.is_none() => {
                return Err(HelmError::Version {
                    wanted: wanted.to_owned(),
                });
            }
            _ => {}
        }
        let chart = Chart::open(self.chart_directory.as_deref())?;
        let words = vec![chart.path.display().to_string()];
        Ok((Some(chart), words))
    }
}

/// Values of all files, merged: what the user says about a path.
fn of_files(options: &ChartOptions) -> Result<Value, Box<dyn Error>> {
    let mut merged = json!({});
    for file in &options.values {
        if file.contains("://") {
            // Helm reads it.
            continue;
        }
        let text = std::fs::read_to_string(file).map_err(|error| failure(format!("{file}: {error}")))?;
        let value: Value =
            serde_norway::from_str(&text).map_err(|error| failure(format!("{file}: {error}")))?;
        merge(&mut merged, value);
    }
    Ok(merged)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Values that the cluster implies, without those that the user gives.
async fn implied(
    access: &Access,
    options: &InstallOptions,
    flavour: Flavour,
) -> Result<Vec<(String, Value)>, Box<dyn Error>> {
    let chart = &options.chart;
    let files = of_files(chart)?;
    let is_given = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        chart.sets(path) || files.pointer(&pointer).is_some_and(|value| !value.is_null())
    };
    let mut values: Vec<(&str, Value)> = flavour.values();
    let found = detect::cluster_name(&access.cluster);
    if is_given("cluster.name") {
        chart.say("ℹ️  Using the cluster name of the values");
    } else if !found.is_empty() {
        chart.say(&format!("🔮 Auto-detected cluster name: {found}"));
        values.push(("cluster.name", json!(found)));
    }
    let mode = options.datapath_mode.unwrap_or(match flavour {
        Flavour::Gke => DatapathMode::Gke,
        _ => DatapathMode::Tunnel,
    });
    if let Some(mode) = options.datapath_mode.and_then(|mode| mode.to_possible_value()) {
        chart.say(&format!("ℹ️  Custom datapath mode: {}", mode.get_name()));
    }
    match mode {
        DatapathMode::Tunnel => {
            values.push(("routingMode", json!("tunnel")));
            values.push(("tunnelProtocol", json!("vxlan")));
        }
        DatapathMode::Native => values.push(("routingMode", json!("native"))),
        DatapathMode::Gke => {}
        DatapathMode::AksByocni => values.push(("aksbyocni.enabled", json!(true))),
        DatapathMode::AwsEni | DatapathMode::Azure => {
            return Err(failure(
                "addresses of cloud interfaces are not supported: use the tunnel, native routing, or chain with the cloud's plugin \
                 (cni.chainingMode)",
            ));
        }
    }
    if flavour != Flavour::K3s && !is_given("kubeProxyReplacement") {
        if detect::has_kube_proxy(access).await? {
            chart.say("🔮 Auto-detected kube-proxy has been installed");
        } else {
            chart.say("🔮 Auto-detected kube-proxy has not been installed");
            chart.say("ℹ️  Skep will fully replace all functionalities of kube-proxy");
            values.push(("kubeProxyReplacement", json!("true")));
            if let Some((host, port)) = detect::api_server(access).await? {
                values.push(("k8sServiceHost", json!(host)));
                values.push(("k8sServicePort", json!(port)));
            }
        }
    }
    if options.nodes_without_cilium {
        let affinity = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": "cilium.io/no-schedule", "operator": "NotIn", "values": ["true"] }],
        }] } });
        values.push(("affinity.nodeAffinity", affinity.clone()));
        values.push(("operator.affinity.nodeAffinity", affinity));
    }
    // Masquerading is in eBPF only.
    values.push(("bpf.masquerade", json!(true)));
    let values = values.into_iter().filter(|(path, _)| !is_given(path));
    Ok(values.map(|(path, value)| (path.to_owned(), value)).collect())
}

/// Values as one document.
fn document(values: &[(String, Value)]) -> Value {
    let mut all = json!({});
    for (path, value) in values {
        let nested = path
            .rsplit('.')
            .fold(value.clone(), |inner, key| json!({ key: inner }));
        merge(&mut all, nested);
    }
    all
}

/// `install`.
pub(crate) async fn install(access: &Access, options: &InstallOptions) -> Result<(), Box<dyn Error>> {
    let chart = &options.chart;
    if chart.list_versions {
        println!("v{} (default)", chart::VERSION);
        return Ok(());
    }
    let flavour = Flavour::of(access).await?;
    if flavour != Flavour::Unknown {
        chart.say(&format!("🔮 Auto-detected Kubernetes kind: {}", flavour.name()));
    }
    let version = chart.version.as_deref().unwrap_or(chart::VERSION);
    chart.say(&format!("ℹ️  Using Skep version {version}"));
    let (_folder, source) = chart.source()?;
    let values = implied(access, options, flavour).await?;
    if chart.dry_run_helm_values {
        let mut all = document(&values);
        merge(&mut all, of_files(chart)?);
        print!("{}", serde_norway::to_string(&all)?);
        for set in chart.set.iter().chain(&chart.set_string) {
            println!("# --set {set}");
        }
        return Ok(());
    }
    let release = access.release();
    if chart.dry_run {
        let words = [
            vec!["template".to_owned(), release.to_owned()],
            source,
            chart.words(&values),
        ]
        .concat();
        print!("{}", Helm::new(access).run(&words)?);
        return Ok(());
    }
    let namespace = access.namespace();
    println!(
        "🚀 Creating Helm release {release} in namespace {namespace}: agents on all nodes, operator, ConfigMap cilium-config"
    );
    for (path, value) in &values {
        println!("   {path}={value}");
    }
    let words = [
        vec!["install".to_owned(), release.to_owned()],
        source,
        vec!["--create-namespace".to_owned()],
        chart.words(&values),
    ]
    .concat();
    let done = Helm::new(access).run(&words);
    let notes = done.map_err(|error| failure(format!("Unable to install Skep: {error}")))?;
    warnings(&notes);
    finish(access, chart).await
}

/// Lines of the notes that warn.
fn warnings(notes: &str) {
    let from = notes.lines().skip_while(|line| !line.starts_with("WARNINGS"));
    for line in from.take_while(|line| !line.is_empty()) {
        println!("⚠️  {}", line.trim());
    }
}

async fn finish(access: &Access, options: &ChartOptions) -> Result<(), Box<dyn Error>> {
    if !options.wait {
        return Ok(());
    }
    let wanted = status::StatusOptions::waiting(options.wait_duration);
    match status::run(access, &wanted).await? {
        true => Ok(()),
        false => Err(failure("Unable to install Skep: it is not healthy")),
    }
}

/// `upgrade`.
pub(crate) async fn upgrade(access: &Access, options: &UpgradeOptions) -> Result<(), Box<dyn Error>> {
    let chart = &options.chart;
    if chart.list_versions {
        println!("v{} (default)", chart::VERSION);
        return Ok(());
    }
    let helm = Helm::new(access);
    let release = access.release();
    let before = helm.chart()?;
    if before.is_empty() {
        return Err(failure(format!(
            "Unable to upgrade: there is no Helm release {release} in namespace {}; `skep install` creates it",
            access.namespace()
        )));
    }
    let (_folder, source) = chart.source()?;
    let reuse = match (options.reset_values, options.reuse_values) {
        (true, _) => "--reset-values",
        (_, true) => "--reuse-values",
        _ => "--reset-then-reuse-values",
    };
    if chart.dry_run_helm_values {
        let mut all = match options.reset_values {
            true => json!({}),
            false => helm.values()?,
        };
        merge(&mut all, of_files(chart)?);
        print!("{}", serde_norway::to_string(&all)?);
        return Ok(());
    }
    let mut words = [
        vec!["upgrade".to_owned(), release.to_owned()],
        source,
        chart.words(&[]),
    ]
    .concat();
    words.extend([
        reuse.to_owned(),
        "--history-max".to_owned(),
        chart.history_max.to_string(),
    ]);
    if chart.dry_run {
        words.push("--dry-run=server".to_owned());
        print!("{}", helm.run(&words)?);
        return Ok(());
    }
    println!(
        "🚀 Upgrading Helm release {release} from {before} to version {}, with {}",
        chart::VERSION,
        &reuse[2..]
    );
    let done = helm.run(&words);
    let notes = done.map_err(|error| failure(format!("Unable to upgrade Skep: {error}")))?;
    warnings(&notes);
    if options.restart {
        restart(access).await?;
    } else {
        println!("⚠️  You maybe need to restart pods of Skep for changes of the ConfigMap to take effect");
    }
    finish(access, chart).await
}

/// Deletes the pods of agents and operators: their controllers create new ones.
pub(crate) async fn restart(access: &Access) -> Result<(), Box<dyn Error>> {
    for labels in ["k8s-app=cilium", "name=cilium-operator"] {
        let pods = access.pods(access.namespace(), labels).await?;
        println!("♻️  Restarting {} pods with label {labels}", pods.len());
        for pod in pods {
            let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
            access.delete(&path).await?;
        }
    }
    Ok(())
}

/// `uninstall`.
pub(crate) async fn uninstall(access: &Access, options: &UninstallOptions) -> Result<(), Box<dyn Error>> {
    let helm = Helm::new(access);
    let release = access.release();
    let before = helm.chart()?;
    if before.is_empty() {
        println!(
            "ℹ️  There is no Helm release {release} in namespace {}",
            access.namespace()
        );
    }
    println!(
        "⌛ Uninstalling Skep: namespace {}, Helm release {release}, annotations of nodes; custom resources, Secret cilium-ca of a job and state of nodes stay",
        options.test_namespace
    );
    access
        .delete(&format!("/api/v1/namespaces/{}", options.test_namespace))
        .await?;
    if !before.is_empty() {
        let mut words = vec!["uninstall".to_owned(), release.to_owned()];
        if options.wait {
            words.extend([
                "--wait".to_owned(),
                "--timeout".to_owned(),
                format!("{}s", options.timeout.as_secs()),
            ]);
        }
        helm.run(&words)
            .map_err(|error| failure(format!("Unable to uninstall Skep: {error}")))?;
    }
    for node in access.list("/api/v1/nodes").await? {
        let annotations = node["metadata"]["annotations"].as_object();
        let ours: serde_json::Map<String, Value> = annotations
            .into_iter()
            .flatten()
            .filter(|(key, _)| {
                let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                domain.ends_with("cilium.io") || domain.starts_with("io.cilium.")
            })
            .map(|(key, _)| (key.clone(), Value::Null))
            .collect();
        if !ours.is_empty() {
            let path = format!("/api/v1/nodes/{}", text(&node, "/metadata/name"));
            access
                .merge(&path, &json!({ "metadata": { "annotations": ours } }))
                .await?;
        }
    }
    if options.wait {
        let deadline = tokio::time::Instant::now() + options.timeout;
        while !access.agents().await?.is_empty() {
            if tokio::time::Instant::now() > deadline {
                return Err(failure("timeout while waiting for pods of agents to end"));
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    println!("✅ Skep was uninstalled");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_values_win() {
        let options = ChartOptions {
            set: vec!["ipam.mode=kubernetes,cluster.name=east".to_owned()],
            ..ChartOptions::default()
        };
        let values = [
            ("ipam.mode".to_owned(), json!("cluster-pool")),
            ("operator.replicas".to_owned(), json!(1)),
        ];

        let words = options.words(&values);

        assert_eq!(
            words,
            [
                "--set-json",
                "operator.replicas=1",
                "--set",
                "ipam.mode=kubernetes,cluster.name=east"
            ]
        );
        assert_eq!(
            document(&values),
            json!({ "ipam": { "mode": "cluster-pool" }, "operator": { "replicas": 1 } })
        );
    }
}
