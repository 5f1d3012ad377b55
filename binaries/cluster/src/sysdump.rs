// SPDX-License-Identifier: Apache-2.0

//! `sysdump`: an archive of what helps to find a fault in the cluster, without secrets.

use std::{error::Error, fs::File, path::PathBuf, time::Duration};

use clap::Args;
use flate2::{Compression, write::GzEncoder};
use futures::{StreamExt as _, stream};
use jiff::Zoned;
use serde_json::Value;
use tar::{Builder, Header};

use crate::{
    access::{Access, Pod, text},
    chain, failure,
};

/// Options of `sysdump`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SysdumpOptions {
    /// Name of the archive without `.tar.gz`; `<ts>` is the time.
    #[arg(long, default_value = "skep-sysdump-<ts>")]
    output_filename: String,
    /// Only objects and versions: no logs, no archives of agents.
    #[arg(long)]
    quick: bool,
    /// Nodes whose agents are asked; default: all.
    #[arg(long, value_delimiter = ',')]
    node_list: Vec<String>,
    /// Pods that are asked at a time.
    #[arg(long, default_value_t = 20)]
    worker_count: usize,
    /// Longest log of a container, in bytes.
    #[arg(long, default_value_t = 64 << 20)]
    logs_limit_bytes: u64,
    /// Oldest line of a log.
    #[arg(long, default_value = "8760h", value_parser = skep_duration::parse_duration)]
    logs_since_time: Duration,
}

/// File and path of lists; `{ns}` is the namespace of the installation.
const LISTS: [(&str, &str); 38] = [
    ("k8s-version", "/version"),
    ("k8s-nodes", "/api/v1/nodes"),
    ("k8s-namespaces", "/api/v1/namespaces"),
    ("k8s-pods", "/api/v1/pods"),
    ("k8s-events", "/api/v1/events"),
    ("k8s-services", "/api/v1/services"),
    ("k8s-endpoints", "/api/v1/endpoints"),
    ("k8s-endpointslices", "/apis/discovery.k8s.io/v1/endpointslices"),
    (
        "k8s-networkpolicies",
        "/apis/networking.k8s.io/v1/networkpolicies",
    ),
    ("k8s-leases", "/apis/coordination.k8s.io/v1/leases"),
    (
        "k8s-crds",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ),
    ("ciliumendpoints", "/apis/cilium.io/v2/ciliumendpoints"),
    (
        "ciliumendpointslices",
        "/apis/cilium.io/v2alpha1/ciliumendpointslices",
    ),
    ("ciliumidentities", "/apis/cilium.io/v2/ciliumidentities"),
    ("ciliumnodes", "/apis/cilium.io/v2/ciliumnodes"),
    ("ciliumnodeconfigs", "/apis/cilium.io/v2/ciliumnodeconfigs"),
    (
        "ciliumnetworkpolicies",
        "/apis/cilium.io/v2/ciliumnetworkpolicies",
    ),
    (
        "ciliumclusterwidenetworkpolicies",
        "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies",
    ),
    (
        "ciliumegressgatewaypolicies",
        "/apis/cilium.io/v2/ciliumegressgatewaypolicies",
    ),
    (
        "ciliumlocalredirectpolicies",
        "/apis/cilium.io/v2/ciliumlocalredirectpolicies",
    ),
    ("ciliumcidrgroups", "/apis/cilium.io/v2/ciliumcidrgroups"),
    (
        "ciliumloadbalancerippools",
        "/apis/cilium.io/v2/ciliumloadbalancerippools",
    ),
    ("ciliumpodippools", "/apis/cilium.io/v2alpha1/ciliumpodippools"),
    (
        "ciliuml2announcementpolicies",
        "/apis/cilium.io/v2alpha1/ciliuml2announcementpolicies",
    ),
    (
        "ciliumbgpclusterconfigs",
        "/apis/cilium.io/v2/ciliumbgpclusterconfigs",
    ),
    (
        "serviceexports",
        "/apis/multicluster.x-k8s.io/v1alpha1/serviceexports",
    ),
    (
        "serviceimports",
        "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports",
    ),
    (
        "cilium-configmap",
        "/api/v1/namespaces/{ns}/configmaps/cilium-config",
    ),
    (
        "cilium-daemonset",
        "/apis/apps/v1/namespaces/{ns}/daemonsets/cilium",
    ),
    (
        "cilium-operator-deployment",
        "/apis/apps/v1/namespaces/{ns}/deployments/cilium-operator",
    ),
    (
        "clustermesh-apiserver-deployment",
        "/apis/apps/v1/namespaces/{ns}/deployments/clustermesh-apiserver",
    ),
    (
        "hubble-relay-deployment",
        "/apis/apps/v1/namespaces/{ns}/deployments/hubble-relay",
    ),
    ("certgen-cronjobs", "/apis/batch/v1/namespaces/{ns}/cronjobs"),
    ("certgen-jobs", "/apis/batch/v1/namespaces/{ns}/jobs"),
    ("ingresses", "/apis/networking.k8s.io/v1/ingresses"),
    ("gateways", "/apis/gateway.networking.k8s.io/v1/gateways"),
    (
        "certificates",
        "/apis/cert-manager.io/v1/namespaces/{ns}/certificates",
    ),
    (
        "kube-proxy-daemonset",
        "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy",
    ),
];

/// Labels of pods whose logs are collected.
const PODS: [&str; 7] = [
    "k8s-app=cilium",
    "name=cilium-operator",
    "k8s-app=clustermesh-apiserver",
    "k8s-app=hubble-relay",
    "k8s-app=cilium-envoy",
    "k8s-app=cilium-pre-flight-check",
    "k8s-app=clustermesh-apiserver-generate-certs",
];

impl Default for SysdumpOptions {
    fn default() -> Self {
        Self {
            output_filename: "skep-sysdump-<ts>".to_owned(),
            quick: false,
            node_list: Vec::new(),
            worker_count: 20,
            logs_limit_bytes: 64 << 20,
            logs_since_time: Duration::from_secs(8760 * 3600),
        }
    }
}

struct Archive {
    tar: Builder<GzEncoder<File>>,
    folder: String,
    stamp: String,
    time: u64,
    log: String,
    files: usize,
}

impl Archive {
    fn add(&mut self, name: &str, suffix: &str, bytes: &[u8]) -> std::io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        header.set_cksum();
        let path = format!("{}/{name}-{}{suffix}", self.folder, self.stamp);
        self.files += 1;
        self.tar.append_data(&mut header, path, bytes)
    }

    fn say(&mut self, line: &str) {
        println!("{line}");
        self.log.push_str(&format!("{line}\n"));
    }
}

/// Runs `sysdump`.
pub(crate) async fn run(access: &Access, options: &SysdumpOptions) -> Result<(), Box<dyn Error>> {
    let now = Zoned::now();
    let stamp = now.strftime("%Y%m%d-%H%M%S").to_string();
    let folder = options.output_filename.replace("<ts>", &stamp);
    let file = PathBuf::from(format!("{folder}.tar.gz"));
    println!(
        "🔍 Collecting objects, logs and state of agents of the cluster in {}; nothing is changed",
        file.display()
    );
    let failed = |error: std::io::Error| failure(format!("{}: {error}", file.display()));
    let mut archive = Archive {
        tar: Builder::new(GzEncoder::new(
            File::create(&file).map_err(failed)?,
            Compression::default(),
        )),
        folder: folder.rsplit('/').next().unwrap_or(&folder).to_owned(),
        stamp,
        time: u64::try_from(now.timestamp().as_second()).unwrap_or_default(),
        log: String::new(),
        files: 0,
    };
    for (name, path) in LISTS {
        let path = path.replace("{ns}", access.namespace());
        match access.get(&path).await {
            Ok(Some(mut found)) => {
                redact(&mut found);
                let text = serde_norway::to_string(&found)?;
                archive.add(name, ".yaml", text.as_bytes()).map_err(failed)?;
            }
            Ok(None) => {}
            Err(error) => archive.say(&format!("⚠️  {name}: {}", chain(&error))),
        }
    }
    secrets(access, &mut archive)
        .await
        .map_err(|error| failure(error.to_string()))?;
    let helm = crate::chart::Helm::new(access);
    if let Ok(mut values) = helm.values() {
        redact(&mut values);
        let text = serde_norway::to_string(&values)?;
        archive
            .add("cilium-helm-values", ".yaml", text.as_bytes())
            .map_err(failed)?;
    }
    if !options.quick {
        logs(access, options, &mut archive).await.map_err(failed)?;
        agents(access, options, &mut archive).await.map_err(failed)?;
    }
    let log = archive.log.clone();
    archive
        .add("skep-sysdump", ".log", log.as_bytes())
        .map_err(failed)?;
    let files = archive.files;
    archive
        .tar
        .into_inner()
        .and_then(GzEncoder::finish)
        .map_err(failed)?;
    println!("🗳 {} has {files} files", file.display());
    println!("✅ The sysdump is complete");
    Ok(())
}

/// Which Secrets there are, without their values.
async fn secrets(access: &Access, archive: &mut Archive) -> Result<(), Box<dyn Error>> {
    let secrets = access.list(&access.core("secrets")).await.unwrap_or_default();
    let mut lines = String::new();
    for secret in secrets {
        let name = text(&secret, "/metadata/name");
        let keys: Vec<&str> = secret["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .collect();
        lines.push_str(&format!("{name}: {}\n", keys.join(" ")));
    }
    archive.add("secrets", ".txt", lines.as_bytes())?;
    Ok(())
}

/// Removes values that are secrets or only noise.
fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.shift_remove("managedFields");
            for (key, value) in fields.iter_mut() {
                let name = key.to_lowercase();
                let is_secret = ["password", "token", "secretkey", "tls.key", "ca.key"]
                    .iter()
                    .any(|word| name == *word)
                    || (name == "key" && value.as_str().is_some_and(|text| text.len() > 256));
                match is_secret && value.is_string() {
                    true => *value = Value::from("XXXXXX"),
                    false => redact(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

async fn logs(access: &Access, options: &SysdumpOptions, archive: &mut Archive) -> std::io::Result<()> {
    let limit = format!("&limitBytes={}", options.logs_limit_bytes);
    let mut wanted = Vec::new();
    for labels in PODS {
        match access.pods(access.namespace(), labels).await {
            Ok(pods) => wanted.extend(pods),
            Err(error) => archive.say(&format!("⚠️  pods {labels}: {}", chain(&error))),
        }
    }
    let since = format!("&sinceSeconds={}", options.logs_since_time.as_secs());
    let each = wanted.into_iter().flat_map(|pod| {
        let names: Vec<String> = ["initContainers", "containers"]
            .iter()
            .flat_map(|field| pod.object["spec"][*field].as_array().cloned().unwrap_or_default())
            .map(|one| text(&one, "/name").to_owned())
            .collect();
        names
            .into_iter()
            .flat_map(move |name| [(pod.clone(), name.clone(), false), (pod.clone(), name, true)])
    });
    let (limit, since) = (&limit, &since);
    let each: Vec<(Pod, String, bool)> = each.collect();
    let read = each.into_iter().map(|(pod, container, previous)| async move {
        let before = if previous { "&previous=true" } else { "" };
        let log = access
            .log(&pod, &container, &format!("{limit}{since}{before}"))
            .await;
        // Servers that do not know when lines were written.
        let log = match log {
            Err(_) => access.log(&pod, &container, &format!("{limit}{before}")).await,
            log => log,
        };
        (pod, container, previous, log)
    });
    let mut logs = stream::iter(read).buffer_unordered(options.worker_count.max(1));
    while let Some((pod, container, previous, log)) = logs.next().await {
        let name = format!("logs-{}-{container}", pod.name);
        match log {
            Ok(log) => archive.add(&name, if previous { "-prev.log" } else { ".log" }, log.as_bytes())?,
            // Most containers have not been restarted.
            Err(_) if previous => {}
            Err(error) => archive.say(&format!("⚠️  {name}: {}", chain(&error))),
        }
    }
    Ok(())
}

/// What `skep sysdump` collects on each node.
async fn agents(access: &Access, options: &SysdumpOptions, archive: &mut Archive) -> std::io::Result<()> {
    let agents = match access.agents().await {
        Ok(agents) => agents,
        Err(error) => {
            archive.say(&format!("⚠️  agents: {}", chain(&error)));
            return Ok(());
        }
    };
    let wanted = agents
        .into_iter()
        .filter(|agent| options.node_list.is_empty() || options.node_list.contains(&agent.node));
    let asked = wanted.map(|agent| async move {
        let command = [
            agent.command(),
            "sysdump",
            "--no-kubernetes",
            "--output-filename",
            "-",
        ];
        let output = access
            .exec(&agent, "cilium-agent", &command, Duration::from_secs(300))
            .await;
        (agent, output)
    });
    let mut answers = stream::iter(asked).buffer_unordered(options.worker_count.max(1));
    while let Some((agent, output)) = answers.next().await {
        match output {
            Ok(output) if output.code == 0 => {
                let name = format!("cilium-bugtool-{}", agent.name);
                archive.add(&name, ".tar.gz", &output.stdout)?;
            }
            Ok(output) => archive.say(&format!("⚠️  agent {}: {}", agent.name, output.reason())),
            Err(error) => archive.say(&format!("⚠️  agent {}: {}", agent.name, chain(&error))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_and_managed_fields_are_removed() {
        let mut value = json!({
            "metadata": { "managedFields": [1], "name": "x" },
            "tls": { "ca": { "key": "x".repeat(300) } },
            "env": [{ "key": "short", "token": "abc" }],
        });

        redact(&mut value);

        assert_eq!(
            value,
            json!({
                "metadata": { "name": "x" },
                "tls": { "ca": { "key": "XXXXXX" } },
                "env": [{ "key": "short", "token": "XXXXXX" }],
            })
        );
    }
}
