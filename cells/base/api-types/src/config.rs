// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/config`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{NodeAddressing, is_default};

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

/// Mutable settings: none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DaemonConfigurationSpec {}

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
    /// When TCP connections of pods search the MTU of their paths by probes: `always`, `blackhole` or `disabled`; empty: the
    /// CNI plugin leaves that alone.
    #[serde(rename = "packetizationLayerPMTUDMode", skip_serializing_if = "is_default")]
    pub path_probing: String,
    /// IPAM mode.
    #[serde(rename = "ipam-mode", skip_serializing_if = "String::is_empty")]
    pub ipam_mode: String,
    /// Addresses of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addressing: Option<NodeAddressing>,
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
    /// Every setting by the name of its flag, secrets masked.
    #[serde(deserialize_with = "crate::or_default")]
    pub daemon_configuration_map: BTreeMap<String, String>,
}
