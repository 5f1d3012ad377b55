// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/ip`, `GET /v1/node/ids`.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// What an address or a network is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpListEntry {
    /// The network; of an address, the one that has only this address.
    pub cidr: String,
    /// Index of the key that packets are encrypted with, 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub encrypt_key: u8,
    /// The node that packets are tunnelled to; empty for none.
    #[serde(rename = "hostIP", skip_serializing_if = "is_default")]
    pub host_ip: String,
    /// The identity.
    pub identity: u32,
    /// The source, and the pod that has the address.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::or_default")]
    pub metadata: IpListEntryMetadata,
}

/// Who says what an address is, and the pod that has it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct IpListEntryMetadata {
    /// Name of the pod; empty if it is none.
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "is_default")]
    pub namespace: String,
    /// The source.
    #[serde(skip_serializing_if = "is_default")]
    pub source: String,
}

/// The id of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NodeId {
    /// The id.
    pub id: u16,
    /// Addresses of the node.
    #[serde(deserialize_with = "crate::or_default")]
    pub ips: Vec<String>,
}
