// SPDX-License-Identifier: Apache-2.0

//! What a lab is like: its size, its programs and their settings.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

/// Size and agents of a lab.
#[derive(Debug, Clone, Default, Args)]
pub struct Shape {
    /// How many clusters.
    #[arg(long, default_value_t = 1)]
    pub clusters: u8,
    /// How many nodes each cluster has.
    #[arg(long, default_value_t = 2)]
    pub nodes: u8,
    /// The agent's program; by default `skep-agent` beside this program, or in the search path.
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Folder with `kube-apiserver` and `etcd` to use instead of the embedded API server.
    #[arg(long, env = "KUBEBUILDER_ASSETS")]
    pub assets: Option<OsString>,
    /// Further configuration of every agent, `key=value`; may be repeated.
    #[arg(long = "agent-config", value_name = "KEY=VALUE")]
    pub agent_config: Vec<String>,
    /// Clusters that are in the cluster mesh from the start, such as `c1,c2`; all by default, none if empty.
    #[arg(long, value_delimiter = ',')]
    pub mesh: Option<Vec<String>>,
    /// Let agents read remote clusters from the etcd of their own cluster, which kvstoremesh fills.
    #[arg(long)]
    pub kvstoremesh: bool,
    /// Connect pods by routes of their nodes: they are no endpoints of the agents, whose programs do not see their packets.
    #[arg(long)]
    pub unmanaged_pods: bool,
    /// How packets get from pods to pods of other nodes.
    #[arg(long, value_enum, default_value_t)]
    pub routing_mode: RoutingMode,
    /// How packets get to backends on other nodes, and back.
    #[arg(long, value_enum, default_value_t)]
    pub lb_mode: LbMode,
    /// How the node of a backend learns the address of the service, with `--lb-mode dsr` or `hybrid`.
    #[arg(long, value_enum, default_value_t)]
    pub dsr_dispatch: DsrDispatch,
    /// Run an operator for each cluster.
    #[arg(long)]
    pub operator: bool,
    /// Further configuration of every operator, `key=value`; may be repeated.
    #[arg(long = "operator-config", value_name = "KEY=VALUE", requires = "operator")]
    pub operator_config: Vec<String>,
}

impl Shape {
    /// The folder of a real API server. An empty name is none, as that of an unset variable.
    #[must_use]
    pub fn assets(&self) -> Option<&Path> {
        let named = self.assets.as_deref().filter(|path| !path.is_empty());
        named.map(Path::new)
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

    /// The arguments by which the supervisor gets this shape.
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

/// How packets get from pods to pods of other nodes.
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

/// How packets get to backends on other nodes, and back.
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
