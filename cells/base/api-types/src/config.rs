// SPDX-License-Identifier: Apache-2.0

//! `/v1/config`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{NodeAddressing, ipam::enabled_families, is_default};

/// Configuration of the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct DaemonConfiguration {
    /// Mutable settings.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: DaemonConfigurationSpec,
    /// The realized state.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: DaemonConfigurationStatus,
}

/// Mutable settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct DaemonConfigurationSpec {
    /// Options: `Enabled`, `Disabled`, or a value of their own.
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub options: BTreeMap<String, String>,
    /// Enforcement of network policies: `default`, `always` or `never`.
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub policy_enforcement: String,
}

/// The key-value store of the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct KvstoreConfiguration {
    /// Options of the client.
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub options: BTreeMap<String, String>,
    /// `etcd`; empty: none.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// Address families whose packets of pods are masqueraded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MasqueradeProtocols {
    /// IPv4.
    #[serde(skip_serializing_if = "is_default")]
    pub ipv4: bool,
    /// IPv6.
    #[serde(skip_serializing_if = "is_default")]
    pub ipv6: bool,
}

/// The realized configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonConfigurationStatus {
    /// MTU of devices and of pod interfaces.
    #[serde(rename = "deviceMTU", skip_serializing_if = "is_default")]
    pub device_mtu: u32,
    /// MTU of pod routes: device MTU minus tunnel overhead.
    #[serde(rename = "routeMTU", skip_serializing_if = "is_default")]
    pub route_mtu: u32,
    /// The CNI plugin sets the MTU of routes in chaining mode.
    #[serde(rename = "enableRouteMTUForCNIChaining", skip_serializing_if = "is_default")]
    pub chained_routes: bool,
    /// When TCP connections of pods search the MTU of their paths by probes, as the kernel's `tcp_mtu_probing`: 0 never, 1 when
    /// packets vanish, 2 always; empty: the CNI plugin leaves that alone.
    #[serde(rename = "packetizationLayerPMTUDMode", skip_serializing_if = "is_default")]
    pub path_probing: String,
    /// IPAM mode.
    #[serde(rename = "ipam-mode", skip_serializing_if = "String::is_empty")]
    pub ipam_mode: String,
    /// Addresses of the node.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "enabled_families")]
    pub addressing: Option<NodeAddressing>,
    /// Datapath mode: `veth`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datapath_mode: String,
    /// The datapath mode of the settings.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub configured_datapath_mode: String,
    /// Settings that cannot change.
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub immutable: BTreeMap<String, String>,
    /// The file with the access to Kubernetes.
    #[serde(rename = "k8s-configuration", skip_serializing_if = "String::is_empty")]
    pub k8s_configuration: String,
    /// URL of the API server.
    #[serde(rename = "k8s-endpoint", skip_serializing_if = "String::is_empty")]
    pub k8s_endpoint: String,
    /// The key-value store.
    #[serde(deserialize_with = "crate::or_default")]
    pub kvstore_configuration: KvstoreConfiguration,
    /// Packets of pods are masqueraded.
    #[serde(skip_serializing_if = "is_default")]
    pub masquerade: bool,
    /// Masqueraded address families.
    #[serde(deserialize_with = "crate::or_default")]
    pub masquerade_protocols: MasqueradeProtocols,
    /// The monitor of events, while it has listeners.
    #[serde(rename = "nodeMonitor", skip_serializing_if = "Option::is_none")]
    pub node_monitor: Option<crate::MonitorStatus>,
    /// Mutable settings in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realized: Option<DaemonConfigurationSpec>,
    /// Largest GSO packets, if configured.
    #[serde(rename = "GSOMaxSize", skip_serializing_if = "is_default")]
    pub gso_max_size: u32,
    /// Largest GRO packets, if configured.
    #[serde(rename = "GROMaxSize", skip_serializing_if = "is_default")]
    pub gro_max_size: u32,
    /// As `GSOMaxSize`, of IPv4.
    #[serde(rename = "GSOIPv4MaxSize", skip_serializing_if = "is_default")]
    pub gso_ipv4_max_size: u32,
    /// As `GROMaxSize`, of IPv4.
    #[serde(rename = "GROIPv4MaxSize", skip_serializing_if = "is_default")]
    pub gro_ipv4_max_size: u32,
    /// Ports that pods do not use as source ports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_local_reserved_ports: String,
    /// Only the node uses BBR congestion control.
    #[serde(rename = "enableBBRHostNamespaceOnly", skip_serializing_if = "is_default")]
    pub bbr_host_only: bool,
    /// Settings by the names of Cilium's fields.
    #[serde(deserialize_with = "crate::or_default")]
    pub daemon_configuration_map: Map<String, Value>,
}
