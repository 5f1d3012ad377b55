// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/cluster/nodes`.

use serde::{Deserialize, Serialize};

use crate::{is_default, null_if_empty};

/// Nodes of all clusters, or the changes since the last request of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ClusterNodeStatus {
    /// Client id of the next request; 0 without one.
    #[serde(skip_serializing_if = "is_default")]
    pub client_id: i64,
    /// Added and updated nodes.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub nodes_added: Vec<ClusterNode>,
    /// Removed nodes, and previous versions of updated ones.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub nodes_removed: Vec<ClusterNode>,
    /// Name of this node.
    #[serde(rename = "self", skip_serializing_if = "is_default")]
    pub own: String,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ClusterNode {
    /// Name, `cluster/name` if the cluster has a name.
    pub name: String,
    /// Node addresses and pod CIDRs.
    #[serde(deserialize_with = "crate::or_default")]
    pub primary_address: NodeAddressing,
    /// Other addresses.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "is_default")]
    pub secondary_addresses: Vec<NodeAddressingAddress>,
    /// Addresses of its health endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_endpoint_address: Option<NodeAddressing>,
    /// Addresses of its ingress listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_address: Option<NodeAddressing>,
    /// Source: `local`, `custom-resource`, `clustermesh` …
    #[serde(skip_serializing_if = "is_default")]
    pub source: String,
}

/// Addresses of both families.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NodeAddressing {
    /// IPv4.
    #[serde(deserialize_with = "crate::or_default")]
    pub ipv4: NodeAddressingFamily,
    /// IPv6.
    #[serde(deserialize_with = "crate::or_default")]
    pub ipv6: NodeAddressingFamily,
}

/// Address and pod CIDR of an address family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeAddressingFamily {
    /// Pod CIDR.
    #[serde(skip_serializing_if = "is_default")]
    pub alloc_range: String,
    /// Has an address of the family.
    #[serde(skip_serializing_if = "is_default")]
    pub enabled: bool,
    /// The address.
    #[serde(skip_serializing_if = "is_default")]
    pub ip: String,
}

/// One more address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NodeAddressingAddress {
    /// The address.
    pub ip: String,
}
