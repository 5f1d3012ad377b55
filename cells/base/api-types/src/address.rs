// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/ip`, `GET /v1/node/ids`.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// Entry of the ipcache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpListEntry {
    /// CIDR; of an address, its full-length prefix.
    pub cidr: String,
    /// Index of the encryption key; 0: none.
    #[serde(skip_serializing_if = "is_default")]
    pub encrypt_key: u8,
    /// Tunnel endpoint; empty: none.
    #[serde(rename = "hostIP", skip_serializing_if = "is_default")]
    pub host_ip: String,
    /// The identity.
    pub identity: u32,
    /// Source and pod.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::or_default")]
    pub metadata: IpListEntryMetadata,
}

/// Source and pod of an address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct IpListEntryMetadata {
    /// Name of the pod; empty: no pod.
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
