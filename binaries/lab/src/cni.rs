// SPDX-License-Identifier: Apache-2.0

//! The CNI plugin, invoked as a container runtime does: with the configuration that the node's agent wrote.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::{
    enter::Placement,
    plan::PodPlace,
    process::{find, placed},
};

/// File of the configuration, on each node.
pub const CONFIGURATION: &str = "/run/cni/net.d/05-cilium.conflist";
/// Interface in a pod.
const INTERFACE: &str = "eth0";

/// Why a pod has no network.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The agent writes it once it started.
    #[error("node {node} has no CNI configuration yet")]
    Unconfigured { node: String },
    /// Build it (`cargo build`).
    #[error("no program skep-cni beside the lab's or in the search path")]
    Missing,
    #[error("cannot run skep-cni for pod {pod}")]
    Start {
        pod: String,
        #[source]
        cause: io::Error,
    },
    /// Invalid input, or an error of the agent: retried.
    #[error("{command} of pod {pod}: {message}")]
    Failed {
        command: &'static str,
        pod: String,
        message: String,
    },
}

/// The plugin on the node of process `node`.
#[derive(Debug)]
pub(crate) struct Plugin<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: u32,
    pub(crate) cgroup: PathBuf,
}

impl Plugin<'_> {
    /// Connects a pod whose network namespace is pinned; its addresses, IPv4 first.
    pub(crate) async fn add(&self, pod: &PodPlace) -> Result<Vec<IpAddr>, CniError> {
        let entry = self.entry().ok_or_else(|| CniError::Unconfigured {
            node: self.name.to_owned(),
        })?;
        // Left by an ADD whose answer did not come.
        self.invoke("DEL", pod, &entry).await?;
        let result = self.invoke("ADD", pod, &entry).await?;
        let ips = result["ips"].as_array().into_iter().flatten();
        let mut addresses: Vec<IpAddr> = ips
            .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
            .collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        // Older versions have none.
        if entry["cniVersion"]
            .as_str()
            .is_some_and(|version| version >= "0.4.0")
        {
            let mut entry = entry;
            entry["prevResult"] = result;
            self.invoke("CHECK", pod, &entry).await?;
        }
        Ok(addresses)
    }

    /// Disconnects a pod; fine if it is not connected.
    pub(crate) async fn delete(&self, pod: &PodPlace) -> Result<(), CniError> {
        let Some(entry) = self.entry() else {
            return Ok(());
        };
        self.invoke("DEL", pod, &entry).await.map(drop)
    }

    /// The configuration of the plugin: the first one of the network that the agent wrote.
    fn entry(&self) -> Option<Value> {
        let root = Path::new("/proc").join(self.node.to_string()).join("root");
        let text = fs::read_to_string(root.join(CONFIGURATION.trim_start_matches('/'))).ok()?;
        let network: Value = serde_json::from_str(&text).ok()?;
        let mut entry = network["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            entry[key] = network[key].clone();
        }
        Some(entry)
    }

    async fn invoke(&self, command: &'static str, pod: &PodPlace, entry: &Value) -> Result<Value, CniError> {
        let start = |cause| CniError::Start {
            pod: pod.id.clone(),
            cause,
        };
        let placement = Placement {
            cgroup: Some(self.cgroup.clone()),
            beside: Some(self.node),
            program: vec![find("skep-cni").ok_or(CniError::Missing)?.into()],
            ..Placement::default()
        };
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.namespace, pod.hostname, pod.uid, pod.uid
        );
        let mut process = placed(&placement)
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", &pod.uid),
                ("CNI_NETNS", &format!("/run/netns/{}", pod.id)),
                ("CNI_IFNAME", INTERFACE),
                ("CNI_PATH", "/opt/cni/bin"),
                ("CNI_ARGS", &arguments),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        if let Some(mut stdin) = process.stdin.take() {
            stdin
                .write_all(entry.to_string().as_bytes())
                .await
                .map_err(start)?;
        }
        let output = process.wait_with_output().await.map_err(start)?;
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            return Ok(answer);
        }
        let message = match answer["msg"].as_str() {
            Some(message) => message.to_owned(),
            None => String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        let pod = pod.id.clone();
        Err(CniError::Failed {
            command,
            pod,
            message,
        })
    }
}
