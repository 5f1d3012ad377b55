// SPDX-License-Identifier: Apache-2.0

//! What a lab is like: its size, its programs and their settings.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

/// Size and agents of a lab.
#[derive(Debug, Clone, Default, Args)]
pub struct LabOptions {
    /// Number of clusters.
    #[arg(long, default_value_t = 1)]
    pub clusters: u8,
    /// Number of nodes of each cluster.
    #[arg(long, default_value_t = 2)]
    pub nodes: u8,
    /// Path of the agent binary; default: `skep-agent` beside this program or in `$PATH`.
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Directory with `kube-apiserver` and `etcd`, instead of the embedded API server.
    #[arg(long, env = "KUBEBUILDER_ASSETS")]
    pub assets: Option<OsString>,
    /// Setting of all agents, `key=value`; may be repeated.
    #[arg(long = "agent-config", value_name = "KEY=VALUE")]
    pub agent_config: Vec<String>,
    /// Clusters of the initial cluster mesh, such as `c1,c2`; default: all; empty: none.
    #[arg(long, value_delimiter = ',')]
    pub mesh: Option<Vec<String>>,
    /// Run kvstoremesh: agents read the local cache of remote clusters.
    #[arg(long)]
    pub kvstoremesh: bool,
    /// Connect pods by routes, without endpoints: programs do not see their packets.
    #[arg(long)]
    pub unmanaged_pods: bool,
    /// Run containerd on each node, for pods with a runtime class.
    #[arg(long)]
    pub containerd: bool,
    /// Install the chart with helm: its pods run on each node in containerd, instead of agents of the lab.
    #[arg(long, conflicts_with_all = ["operator", "agent_config", "unmanaged_pods", "mesh", "kvstoremesh"])]
    pub install: bool,
    /// The chart.
    #[arg(long, default_value = "deploy/helm/skep", requires = "install")]
    pub chart: PathBuf,
    /// Value of the chart, `key=value`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "install")]
    pub values: Vec<String>,
    /// Routing mode between nodes.
    #[arg(long, value_enum, default_value_t)]
    pub routing_mode: RoutingMode,
    /// Forwarding mode to backends on other nodes.
    #[arg(long, value_enum, default_value_t)]
    pub lb_mode: LbMode,
    /// DSR encoding of the service address, with `--lb-mode dsr` or `hybrid`.
    #[arg(long, value_enum, default_value_t)]
    pub dsr_dispatch: DsrDispatch,
    /// Run an operator in each cluster.
    #[arg(long)]
    pub operator: bool,
    /// Setting of all operators, `key=value`; may be repeated.
    #[arg(long = "operator-config", value_name = "KEY=VALUE", requires = "operator")]
    pub operator_config: Vec<String>,
}

impl LabOptions {
    /// The folder of a real API server; none for the chart, whose pods need controllers. An empty name is none, as that of an unset variable.
    #[must_use]
    pub fn assets(&self) -> Option<&Path> {
        let named = self
            .assets
            .as_deref()
            .filter(|path| !path.is_empty() && !self.install);
        named.map(Path::new)
    }

    /// Whether containerd runs on each node.
    #[must_use]
    pub fn has_containerd(&self) -> bool {
        self.containerd || self.install
    }

    /// How pods are connected to their nodes.
    #[must_use]
    pub fn network(&self) -> PodNetwork {
        match self.unmanaged_pods {
            true => PodNetwork::Unmanaged,
            false => PodNetwork::Managed,
        }
    }

    /// Settings of the agents that follow from the options.
    pub(crate) fn agent_settings(&self) -> impl Iterator<Item = (String, String)> {
        let (routing, direct) = match self.routing_mode {
            RoutingMode::Native => ("native", None),
            RoutingMode::Direct => ("native", Some(("auto-direct-node-routes", "true".to_owned()))),
            RoutingMode::Tunnel => ("tunnel", None),
        };
        let settings = [
            ("routing-mode", routing.to_owned()),
            ("bpf-lb-mode", word(self.lb_mode)),
            ("bpf-lb-dsr-dispatch", word(self.dsr_dispatch)),
        ];
        let settings = settings.into_iter().chain(direct);
        settings.map(|(key, value)| (key.to_owned(), value))
    }

    /// Arguments of the supervisor with these options.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--clusters".into(),
            self.clusters.to_string().into(),
            "--nodes".into(),
            self.nodes.to_string().into(),
        ];
        if let Some(agent) = &self.agent {
            arguments.extend(["--agent".into(), agent.clone().into_os_string()]);
        }
        // The variable of the supervisor is not read again.
        arguments.extend(["--assets".into(), self.assets().unwrap_or(Path::new("")).into()]);
        if let Some(mesh) = &self.mesh {
            arguments.extend(["--mesh".into(), mesh.join(",").into()]);
        }
        arguments.extend(self.kvstoremesh.then(|| "--kvstoremesh".into()));
        arguments.extend(self.unmanaged_pods.then(|| "--unmanaged-pods".into()));
        arguments.extend(self.containerd.then(|| "--containerd".into()));
        arguments.extend(self.install.then(|| "--install".into()));
        for (option, value) in [
            ("--routing-mode", word(self.routing_mode)),
            ("--lb-mode", word(self.lb_mode)),
            ("--dsr-dispatch", word(self.dsr_dispatch)),
        ] {
            arguments.extend([option.into(), value.into()]);
        }
        for setting in &self.agent_config {
            arguments.extend(["--agent-config".into(), setting.into()]);
        }
        arguments.extend(self.operator.then(|| "--operator".into()));
        for setting in &self.operator_config {
            arguments.extend(["--operator-config".into(), setting.into()]);
        }
        arguments
    }
}

/// Routing mode between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RoutingMode {
    /// By routes of the nodes to the pods of other nodes, which the lab makes.
    #[default]
    Native,
    /// By routes that the agents make, with `auto-direct-node-routes`; the lab makes those to other clusters only.
    Direct,
    /// In VXLAN between nodes, which have no routes to the pods of other nodes of their cluster.
    Tunnel,
}

/// Forwarding mode to backends on other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LbMode {
    /// With the node's address as source.
    #[default]
    Snat,
    /// With the client's address as source: the backend's node replies to the client.
    Dsr,
    /// TCP as `dsr`, everything else as `snat`.
    Hybrid,
}

/// How the node of a backend learns the address of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum DsrDispatch {
    /// From an option in the packet.
    #[default]
    Opt,
    /// From the packet, which is in another one.
    Ipip,
}

/// How pods are connected to their node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodNetwork {
    #[default]
    Managed,
    /// By routes of the node; the agent knows nothing of them.
    Unmanaged,
}

/// The value of a mode on the command line and in the settings of the agent.
fn word(mode: impl ValueEnum) -> String {
    mode.to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}
