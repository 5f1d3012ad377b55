// SPDX-License-Identifier: Apache-2.0

//! Settings of socket load balancing.

use std::path::{Path, PathBuf};

/// Settings of socket load balancing.
#[derive(Debug, Clone, hive::Config)]
pub struct SocketLbConfig {
    /// Enable socket load balancing. Implied by the kube-proxy replacement.
    #[config(default = false, flag = "bpf-lb-sock")]
    pub enabled: bool,
    /// Restrict socket load balancing to the host network namespace; packets of pods are translated at their
    /// interfaces.
    #[config(default = false, flag = "bpf-lb-sock-hostns-only")]
    pub host_only: bool,
    /// Destroy pods' sockets that are connected to removed backends, not only the host's.
    #[config(default = true, flag = "bpf-lb-sock-terminate-pod-connections", hidden)]
    pub terminate_pod_connections: bool,
    /// Destroy TCP sockets of removed backends, not only UDP sockets.
    #[config(default = false, flag = "lb-sock-terminate-all-protos", hidden)]
    pub terminate_all_protos: bool,
    /// Emit events of socket translations.
    #[config(default = true, flag = "trace-sock")]
    pub trace: bool,
    /// Translate external IPs that are no addresses of this node. Any user who may create services can then
    /// intercept traffic to any address.
    #[config(default = false, flag = "disable-external-ip-mitigation")]
    pub disable_external_ip_mitigation: bool,
    /// Treat sockets of the MKE host extension as the host's.
    #[config(default = false, flag = "enable-mke", hidden)]
    pub mke: bool,
    /// Root of the cgroup v2 hierarchy to attach to. Detected if empty, mounted if missing.
    #[config(default = "", flag = "cgroup-root")]
    pub cgroup_root: PathBuf,
}

impl SocketLbConfig {
    /// The configured cgroup root, if there is one.
    pub fn configured_cgroup_root(&self) -> Option<&Path> {
        (!self.cgroup_root.as_os_str().is_empty()).then_some(&self.cgroup_root)
    }
}
