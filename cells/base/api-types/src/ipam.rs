// SPDX-License-Identifier: Apache-2.0

//! `POST /v1/ipam`, and its part of the status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};

use crate::{EndpointAddressing, NodeAddressing, is_default, null_if_empty};

/// Addresses allocated for an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct IpamResponse {
    /// The addresses with their pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<EndpointAddressing>,
    /// Addresses of the node: gateways of the pod.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "enabled_families")]
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
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub cidrs: Vec<String>,
    /// The allocation expires unless an endpoint names this UUID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expiration_uuid: String,
    /// The address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Packets from the address are not masqueraded.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_masquerade: bool,
}

/// Writes the addresses of enabled families alone.
pub(crate) fn enabled_families<S: Serializer>(
    node: &Option<NodeAddressing>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    for (name, family) in node
        .iter()
        .flat_map(|node| [("ipv4", &node.ipv4), ("ipv6", &node.ipv6)])
    {
        if !is_default(family) {
            map.serialize_entry(name, family)?;
        }
    }
    map.end()
}

/// Part `ipam` of the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct IpamStatus {
    /// Owners by address; `pool/address` outside of the default pool.
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub allocations: BTreeMap<String, String>,
    /// Allocated IPv4 addresses.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub ipv4: Vec<String>,
    /// Allocated IPv6 addresses.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub ipv6: Vec<String>,
    /// Summary of both families.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
}
