// SPDX-License-Identifier: Apache-2.0

//! `/v1beta` of the health API: probes between nodes.

use serde::{Deserialize, Serialize};

use crate::{StatusResponse, is_default};

/// Health of the local node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HealthResponse {
    /// Status of the agent.
    #[serde(deserialize_with = "crate::or_default")]
    pub cilium: StatusResponse,
    /// Load of the node.
    #[serde(deserialize_with = "crate::or_default")]
    pub system_load: LoadResponse,
    /// Time since the start, in Go's form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uptime: String,
}

/// Load averages, with two digits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadResponse {
    /// 15 minutes.
    #[serde(rename = "last15min", skip_serializing_if = "String::is_empty")]
    pub last15: String,
    /// 1 minute.
    #[serde(rename = "last1min", skip_serializing_if = "String::is_empty")]
    pub last1: String,
    /// 5 minutes.
    #[serde(rename = "last5min", skip_serializing_if = "String::is_empty")]
    pub last5: String,
}

/// Results of the probes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthStatusResponse {
    /// The local node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<SelfStatus>,
    /// All nodes, also the local one.
    #[serde(
        deserialize_with = "crate::or_default",
        serialize_with = "crate::null_if_empty"
    )]
    pub nodes: Vec<NodeHealthStatus>,
    /// Length of a round, in Go's form.
    #[serde(rename = "probeInterval", skip_serializing_if = "String::is_empty")]
    pub probe_interval: String,
    /// Start of the current round.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timestamp: String,
}

/// The local node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SelfStatus {
    /// Name of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Connectivity of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeHealthStatus {
    /// Primary address of the health endpoint; old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<PathStatus>,
    /// Addresses of the health endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_endpoint: Option<HostStatus>,
    /// Addresses of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostStatus>,
    /// Name, with that of a cluster other than `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Connectivity of a network stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HostStatus {
    /// The primary address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_address: Option<PathStatus>,
    /// The other ones.
    #[serde(
        deserialize_with = "crate::or_default",
        serialize_with = "crate::null_if_empty"
    )]
    pub secondary_addresses: Vec<PathStatus>,
}

/// Connectivity of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathStatus {
    /// `GET /hello`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<ConnectivityStatus>,
    /// Echo requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<ConnectivityStatus>,
    /// The address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
}

/// Result of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectivityStatus {
    /// Time of the probe.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_probed: String,
    /// Round-trip time, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub latency: i64,
    /// Error; empty if it succeeded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
}
