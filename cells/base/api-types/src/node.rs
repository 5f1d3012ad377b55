// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/cluster/nodes`.

use serde::{Deserialize, Serialize, Serializer};

use crate::is_default;

/// Nodes of all clusters; of a client that has asked before, what has changed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ClusterNodeStatus {
    /// Id to send with the next request; 0 if none was sent with this one.
    #[serde(skip_serializing_if = "is_default")]
    pub client_id: i64,
    /// Nodes that are new or changed.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub nodes_added: Vec<ClusterNode>,
    /// Nodes that are gone, and changed ones as they were.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub nodes_removed: Vec<ClusterNode>,
    /// Name of this node.
    #[serde(rename = "self", skip_serializing_if = "is_default")]
    pub own: String,
}

/// Writes an empty list as Go does.
fn null_if_empty<S: Serializer>(nodes: &[ClusterNode], to: S) -> Result<S::Ok, S::Error> {
    match nodes {
        [] => to.serialize_none(),
        nodes => nodes.serialize(to),
    }
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ClusterNode {
    /// Its name, `cluster/name` if the cluster has a name.
    pub name: String,
    /// Addresses by which other nodes reach it, and the networks of its pods.
    #[serde(deserialize_with = "crate::or_default")]
    pub primary_address: NodeAddressing,
    /// Its other addresses.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "is_default")]
    pub secondary_addresses: Vec<NodeAddressingAddress>,
    /// Addresses of its health endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_endpoint_address: Option<NodeAddressing>,
    /// Addresses of its ingress listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_address: Option<NodeAddressing>,
    /// Who says so: `local`, `custom-resource`, `clustermesh` …
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

/// An address and the network of the pods in its family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeAddressingFamily {
    /// The network of its pods.
    #[serde(skip_serializing_if = "is_default")]
    pub alloc_range: String,
    /// Whether it has an address of the family.
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
