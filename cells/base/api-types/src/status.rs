// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/healthz`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use crate::{ClusterNode, is_default, null_if_empty, or_never};

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
    /// Certificates of mutual authentication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_certificate_provider: Option<Status>,
    /// Rate limits of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_manager: Option<BandwidthManager>,
    /// Health of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Configured device type of endpoints.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub configured_datapath_mode: String,
    /// Background jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "crate::or_default")]
    pub controllers: Vec<ControllerStatus>,
    /// Encryption between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionStatus>,
    /// Policies of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_firewall: Option<HostFirewall>,
    /// Flow observer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hubble: Option<HubbleStatus>,
    /// Metrics of flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hubble_metrics: Option<Status>,
    /// Ids of cluster identities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_range: Option<IdentityRange>,
    /// IPv4 packets larger than 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4_big_tcp: Option<BigTcp>,
    /// IPv6 packets larger than 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_big_tcp: Option<BigTcp>,
    /// Proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyStatus>,
    /// Segment routing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srv6: Option<Srv6>,
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
    #[serde(skip_serializing_if = "is_default")]
    pub cpus: u64,
    /// Pages of a ring.
    #[serde(skip_serializing_if = "is_default")]
    pub npages: u64,
    /// Bytes of a page.
    #[serde(skip_serializing_if = "is_default")]
    pub pagesize: u64,
    /// Events lost because a ring was full.
    #[serde(skip_serializing_if = "is_default")]
    pub lost: u64,
    /// Unknown records.
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// Address families.
    #[serde(rename = "enabledProtocols")]
    #[serde(deserialize_with = "crate::or_default")]
    pub enabled_protocols: MasqueradingProtocols,
    /// Networks of the ip-masq-agent are not masqueraded.
    #[serde(rename = "ip-masq-agent", skip_serializing_if = "is_default")]
    pub ip_masq_agent: bool,
    /// The IPv4 network, by its old name.
    #[serde(rename = "snat-exclusion-cidr", skip_serializing_if = "String::is_empty")]
    pub exclusion: String,
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
    #[serde(skip_serializing_if = "is_default")]
    pub ipv4: bool,
    /// IPv6.
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// Forwarding mode: `SNAT`, `DSR` or `HYBRID`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: String,
    /// Encoding of the service address with `DSR` and `HYBRID`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dsr_mode: String,
    /// `Random` or `Maglev`.
    #[serde(skip_serializing_if = "is_default")]
    pub algorithm: String,
    /// Size of Maglev tables; 0 without.
    #[serde(skip_serializing_if = "is_default")]
    pub lut_size: u64,
    /// `Disabled`, `Native`, `Best-Effort` or `Generic`.
    #[serde(skip_serializing_if = "is_default")]
    pub acceleration: String,
    /// First node port.
    #[serde(skip_serializing_if = "is_default")]
    pub port_min: u16,
    /// Last node port.
    #[serde(skip_serializing_if = "is_default")]
    pub port_max: u16,
}

/// NAT46 and NAT64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Nat46X64Feature {
    /// On or off.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// Gateway translation.
    #[serde(deserialize_with = "crate::or_default")]
    #[serde(skip_serializing_if = "is_default")]
    pub gateway: GatewayFeature,
    /// Service translation between address families.
    #[serde(deserialize_with = "crate::or_default")]
    #[serde(skip_serializing_if = "is_default")]
    pub service: Switch,
}

/// Translation for networks behind a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GatewayFeature {
    /// On or off.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// The networks.
    #[serde(deserialize_with = "crate::or_default")]
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
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

/// Health of the nodes of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ClusterStatus {
    /// State of the prober of other nodes.
    #[serde(rename = "ciliumHealth", skip_serializing_if = "Option::is_none")]
    pub health: Option<Status>,
    /// Nodes; listed by `GET /cluster/nodes` instead.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub nodes: Vec<ClusterNode>,
    /// Name of the local node.
    #[serde(rename = "self", skip_serializing_if = "String::is_empty")]
    pub own: String,
}

/// Rate limits of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BandwidthManager {
    /// On or off.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// `cubic` or `bbr`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub congestion_control: String,
    /// Devices with limits.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub devices: Vec<String>,
}

/// A background job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ControllerStatus {
    /// Its intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ControllerConfiguration>,
    /// Name of the job.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Runs.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: ControllerRuns,
    /// Unique id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uuid: String,
}

/// Intervals of a background job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ControllerConfiguration {
    /// Failed runs are retried.
    #[serde(skip_serializing_if = "is_default")]
    pub error_retry: bool,
    /// Base of the retry interval.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error_retry_base: String,
    /// Time between two runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interval: String,
}

/// Runs of a background job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ControllerRuns {
    /// Failures since the last success.
    #[serde(skip_serializing_if = "is_default")]
    pub consecutive_failure_count: u64,
    /// Failed runs.
    #[serde(skip_serializing_if = "is_default")]
    pub failure_count: u64,
    /// Error of the last run; empty after a success.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failure_msg: String,
    /// Time of the last failure.
    #[serde(serialize_with = "zero_if_never", deserialize_with = "or_never")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub last_failure_timestamp: Option<Timestamp>,
    /// Time of the last success.
    #[serde(serialize_with = "zero_if_never", deserialize_with = "or_never")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub last_success_timestamp: Option<Timestamp>,
    /// Successful runs.
    #[serde(skip_serializing_if = "is_default")]
    pub success_count: u64,
}

/// Writes a time in milliseconds, and none as Go's zero time.
fn zero_if_never<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        None => to.serialize_str("0001-01-01T00:00:00.000Z"),
        Some(time) => to.collect_str(&format_args!("{time:.3}")),
    }
}

/// Encryption between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct EncryptionStatus {
    /// `Disabled`, `IPsec` or `Wireguard`.
    pub mode: String,
    /// Reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub msg: String,
    /// WireGuard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<WireguardStatus>,
}

/// WireGuard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct WireguardStatus {
    /// Encryption of traffic between nodes: `Disabled`, `Enabled` or `OptedOut`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_encryption: String,
    /// Interfaces.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub interfaces: Vec<WireguardInterface>,
}

/// Interface of WireGuard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct WireguardInterface {
    /// UDP port.
    #[serde(skip_serializing_if = "is_default")]
    pub listen_port: u16,
    /// Name of the interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Number of peers.
    #[serde(skip_serializing_if = "is_default")]
    pub peer_count: u64,
    /// Public key of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_key: String,
}

/// Policies of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostFirewall {
    /// Devices of the node.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub devices: Vec<String>,
    /// `Enabled` or `Disabled`.
    pub mode: String,
}

/// Flow observer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HubbleStatus {
    /// Reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub msg: String,
    /// Flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observer: Option<HubbleObserver>,
    /// The state.
    pub state: State,
}

/// Flows of the observer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct HubbleObserver {
    /// Flows in memory.
    #[serde(skip_serializing_if = "is_default")]
    pub current_flows: u64,
    /// Capacity.
    #[serde(skip_serializing_if = "is_default")]
    pub max_flows: u64,
    /// Flows since the start.
    #[serde(skip_serializing_if = "is_default")]
    pub seen_flows: u64,
    /// Time since the start, in Go's form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uptime: String,
}

/// Ids of cluster identities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct IdentityRange {
    /// Last id.
    #[serde(skip_serializing_if = "is_default")]
    pub max_identity: u32,
    /// First id.
    #[serde(skip_serializing_if = "is_default")]
    pub min_identity: u32,
}

/// Packets larger than 64 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct BigTcp {
    /// On or off.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// Largest received packet.
    #[serde(rename = "maxGRO", skip_serializing_if = "is_default")]
    pub max_gro: u32,
    /// Largest sent packet.
    #[serde(rename = "maxGSO", skip_serializing_if = "is_default")]
    pub max_gso: u32,
}

/// Proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ProxyStatus {
    /// `embedded` or `external`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub envoy_deployment_mode: String,
    /// Address of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Ports of redirects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_range: String,
    /// Redirects.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub redirects: Vec<ProxyRedirect>,
    /// Number of listening ports.
    #[serde(skip_serializing_if = "is_default")]
    pub total_ports: u64,
    /// Number of redirects.
    #[serde(skip_serializing_if = "is_default")]
    pub total_redirects: u64,
}

/// Redirect to a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ProxyRedirect {
    /// `<endpoint>:<direction>:<protocol>:<port>:`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Listener.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy: String,
    /// Port of the listener.
    #[serde(skip_serializing_if = "is_default")]
    pub proxy_port: u16,
}

/// Segment routing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Srv6 {
    /// On or off.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// `reduced` or `srh`.
    #[serde(rename = "srv6EncapMode", skip_serializing_if = "String::is_empty")]
    pub encap_mode: String,
}
