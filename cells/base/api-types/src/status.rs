// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/healthz`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::is_default;

/// Status of the agent. Missing components are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct StatusResponse {
    /// The overall state.
    #[serde(deserialize_with = "crate::or_default")]
    pub cilium: Status,
    /// The key-value store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvstore: Option<Status>,
    /// The cluster mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_mesh: Option<crate::ClusterMeshStatus>,
    /// The API server of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<K8sStatus>,
    /// The CNI configuration of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_file: Option<Status>,
    /// Chaining to other CNI plugins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_chaining: Option<CniChaining>,
    /// Service handling in place of kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_proxy_replacement: Option<KubeProxyReplacement>,
    /// Allocated addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam: Option<crate::IpamStatus>,
    /// Routing modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
    /// Device type of endpoints: `veth`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datapath_mode: String,
    /// Masquerading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masquerading: Option<Masquerading>,
    /// Attach mode of programs: `tcx` or `tc`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub attach_mode: String,
    /// Clock of the BPF programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_source: Option<ClockSource>,
    /// Sizes of the BPF maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpf_maps: Option<BpfMapStatus>,
    /// Event ring buffers, while there are listeners.
    #[serde(rename = "nodeMonitor", skip_serializing_if = "Option::is_none")]
    pub node_monitor: Option<MonitorStatus>,
    /// Health of every module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules_health: Option<Vec<ModuleStatus>>,
    /// Components with a stale probe, with the time of its start.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(deserialize_with = "crate::or_default")]
    pub stale: BTreeMap<String, String>,
}

/// State of a component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum State {
    /// Works.
    Ok,
    /// Works in part, or is not known yet.
    Warning,
    /// Does not work.
    Failure,
    /// Disabled.
    #[default]
    Disabled,
}

impl State {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "Ok",
            Self::Warning => "Warning",
            Self::Failure => "Failure",
            Self::Disabled => "Disabled",
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_well(self) -> bool {
        matches!(self, Self::Ok | Self::Disabled)
    }
}

/// State of a component, with a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Status {
    /// The state.
    pub state: State,
    /// Reason, or a version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub msg: String,
}

/// Chaining to other CNI plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CniChaining {
    /// `none`, or the mode of `cni-chaining-mode`.
    pub mode: String,
}

/// Event ring buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MonitorStatus {
    /// CPUs with a ring.
    pub cpus: u64,
    /// Pages of a ring.
    pub npages: u64,
    /// Bytes of a page.
    pub pagesize: u64,
    /// Events lost because a ring was full.
    pub lost: u64,
    /// Unknown records.
    pub unknown: u64,
}

/// State of the connection to Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct K8sStatus {
    /// The state.
    pub state: State,
    /// Version of the API server, or an error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub msg: String,
    /// Kinds that the agent watches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "crate::or_default")]
    pub k8s_api_versions: Vec<String>,
}

/// Service handling in place of kube-proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyReplacement {
    /// `True` or `False`.
    pub mode: String,
    /// Devices with node ports.
    #[serde(deserialize_with = "crate::or_default")]
    pub devices: Vec<String>,
    /// The same with their addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub device_list: Vec<DeviceAddresses>,
    /// Device of traffic between nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub direct_routing_device: String,
    /// Enabled features.
    #[serde(deserialize_with = "crate::or_default")]
    pub features: KubeProxyReplacementFeatures,
}

/// Routing modes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct Routing {
    /// On the node: `BPF` bypasses the host's network stack.
    pub intra_host_routing_mode: String,
    /// Between nodes: `Native` or `Tunnel`.
    pub inter_host_routing_mode: String,
    /// Tunnel protocol: `vxlan`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tunnel_protocol: String,
}

/// Masquerading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Masquerading {
    /// `BPF`, or `Disabled`.
    pub mode: String,
    /// Enabled for any address family.
    pub enabled: bool,
    /// Address families.
    #[serde(rename = "enabledProtocols")]
    #[serde(deserialize_with = "crate::or_default")]
    pub enabled_protocols: MasqueradingProtocols,
    /// IPv4 network that is not masqueraded.
    #[serde(rename = "snat-exclusion-cidr-v4", skip_serializing_if = "String::is_empty")]
    pub exclusion4: String,
    /// IPv6 network that is not masqueraded.
    #[serde(rename = "snat-exclusion-cidr-v6", skip_serializing_if = "String::is_empty")]
    pub exclusion6: String,
}

/// Masqueraded address families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MasqueradingProtocols {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

/// A device and its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct DeviceAddresses {
    /// Its name.
    pub name: String,
    /// Addresses. Cilium's agent may send empty ones.
    #[serde(deserialize_with = "crate::or_default")]
    pub ip: Vec<String>,
}

/// State of a feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Switch {
    /// On or off.
    pub enabled: bool,
}

/// Features of service handling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyReplacementFeatures {
    /// Node ports.
    #[serde(deserialize_with = "crate::or_default")]
    pub node_port: NodePortFeature,
    /// Host ports of pods.
    #[serde(deserialize_with = "crate::or_default")]
    pub host_port: Switch,
    /// External addresses of services.
    #[serde(rename = "externalIPs")]
    #[serde(deserialize_with = "crate::or_default")]
    pub external_ips: Switch,
    /// Load balancing at `connect()`.
    #[serde(rename = "socketLB")]
    #[serde(deserialize_with = "crate::or_default")]
    pub socket_lb: Switch,
    /// Events of load balancing at `connect()`.
    #[serde(rename = "socketLBTracing")]
    #[serde(deserialize_with = "crate::or_default")]
    pub socket_lb_tracing: Switch,
    /// Session affinity.
    #[serde(deserialize_with = "crate::or_default")]
    pub session_affinity: Switch,
    /// NAT46 and NAT64.
    #[serde(deserialize_with = "crate::or_default")]
    pub nat46_x64: Nat46X64Feature,
    /// Socket load balancing in the host network namespace only.
    #[serde(rename = "bpfSocketLBHostnsOnly")]
    pub bpf_socket_lb_hostns_only: bool,
    /// Supported annotations of services, sorted.
    #[serde(deserialize_with = "crate::or_default")]
    pub annotations: Vec<String>,
}

/// Node ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodePortFeature {
    /// On or off.
    pub enabled: bool,
    /// Forwarding mode: `SNAT`, `DSR` or `HYBRID`.
    pub mode: String,
    /// Encoding of the service address with `DSR` and `HYBRID`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dsr_mode: String,
    /// `Random` or `Maglev`.
    pub algorithm: String,
    /// Size of Maglev tables; 0 without.
    pub lut_size: u64,
    /// `Disabled`, `Native`, `Best-Effort` or `Generic`.
    pub acceleration: String,
    /// First node port.
    pub port_min: u16,
    /// Last node port.
    pub port_max: u16,
}

/// NAT46 and NAT64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Nat46X64Feature {
    /// On or off.
    pub enabled: bool,
    /// Gateway translation.
    #[serde(deserialize_with = "crate::or_default")]
    pub gateway: GatewayFeature,
    /// Service translation between address families.
    #[serde(deserialize_with = "crate::or_default")]
    pub service: Switch,
}

/// Translation for networks behind a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GatewayFeature {
    /// On or off.
    pub enabled: bool,
    /// The networks.
    #[serde(deserialize_with = "crate::or_default")]
    pub prefixes: Vec<String>,
}

/// Clock of the BPF programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ClockSource {
    /// `ktime` or `jiffies`.
    pub mode: String,
    /// Tick rate of `jiffies`, else 0.
    #[serde(skip_serializing_if = "is_default")]
    pub hertz: u64,
}

/// Sizes of the BPF maps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct BpfMapStatus {
    /// Ratio of system memory for dynamically sized maps; 0: fixed sizes.
    pub dynamic_size_ratio: f64,
    /// The maps.
    #[serde(deserialize_with = "crate::or_default")]
    pub maps: Vec<BpfMapProperties>,
}

/// Size of a BPF map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct BpfMapProperties {
    /// Title of the map.
    pub name: String,
    /// Maximum number of entries.
    pub size: u64,
}

/// Health of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ModuleStatus {
    /// Module and component.
    pub id: String,
    /// `OK`, `Degraded` or `Stopped`.
    pub level: String,
    /// Its last message.
    pub message: String,
    /// Its error.
    pub error: String,
}
