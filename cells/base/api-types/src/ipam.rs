// SPDX-License-Identifier: Apache-2.0

//! `POST /v1/ipam`.

use serde::{Deserialize, Serialize};

use crate::{EndpointAddressing, NodeAddressing};

/// Addresses allocated for an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct IpamResponse {
    /// The addresses with their pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<EndpointAddressing>,
    /// Addresses of the node: gateways of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_addressing: Option<NodeAddressing>,
    /// The IPv4 allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpamAddressResponse>,
    /// The IPv6 allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpamAddressResponse>,
}

/// Allocation of an address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct IpamAddressResponse {
    /// Networks of the interface, in cloud modes.
    #[serde(deserialize_with = "crate::or_default")]
    pub cidrs: Vec<String>,
    /// The allocation expires unless an endpoint names this UUID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expiration_uuid: String,
    /// The address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
}
