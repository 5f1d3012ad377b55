// SPDX-License-Identifier: Apache-2.0

//! Settings of the socket load balancer itself.

use std::path::{Path, PathBuf};

/// Settings of socket load balancing. What it shares with other parts of load balancing is in
/// [`LbSettings`](crate::LbSettings).
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Translates services to backends at the socket. The kube-proxy replacement switches it on, too.
    #[config(default = false, flag = "bpf-lb-sock")]
    pub enabled: bool,
    /// Translates only sockets of the host's network namespace; pods' packets are translated on their way.
    #[config(default = false, flag = "bpf-lb-sock-hostns-only")]
    pub host_only: bool,
    /// Destroys pods' sockets that are connected to backends which are gone, not only the host's.
    #[config(default = true, flag = "bpf-lb-sock-terminate-pod-connections", hidden)]
    pub terminate_pod_connections: bool,
    /// Destroys TCP sockets of backends that are gone, not only UDP sockets.
    #[config(default = false, flag = "lb-sock-terminate-all-protos", hidden)]
    pub terminate_all_protos: bool,
    /// Sends an event for each translation to the monitor.
    #[config(default = true, flag = "trace-sock")]
    pub trace: bool,
    /// Refuses to bind ports on which services are served on this node.
    #[config(default = true, flag = "node-port-bind-protection")]
    pub bind_protection: bool,
    /// Has the kernel reserve node ports that it would give to sockets which want any port. If off, such node ports
    /// are refused at start.
    #[config(default = true, flag = "enable-auto-protect-node-port-range")]
    pub protect_node_ports: bool,
    /// Translates external IPs of services even if they are not addresses of this node. Anybody who may
    /// create services can then capture traffic to any address.
    #[config(default = false, flag = "disable-external-ip-mitigation")]
    pub disable_external_ip_mitigation: bool,
    /// Treats sockets of the MKE host extension as the host's.
    #[config(default = false, flag = "enable-mke", hidden)]
    pub mke: bool,
    /// Root of the cgroup v2 tree to attach to. Found if empty, and mounted if there is none.
    #[config(default = "", flag = "cgroup-root")]
    pub cgroup_root: PathBuf,
}

impl Config {
    /// The chosen cgroup root, if one was.
    pub fn chosen_cgroup_root(&self) -> Option<&Path> {
        (!self.cgroup_root.as_os_str().is_empty()).then_some(&self.cgroup_root)
    }
}
