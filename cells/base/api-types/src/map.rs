// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/map`, `GET /v1/map/{name}` and `GET /v1/map/{name}/events`.

use serde::{Deserialize, Serialize};

/// All BPF maps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct BpfMapList {
    /// The maps.
    #[serde(deserialize_with = "crate::or_default")]
    pub maps: Vec<BpfMap>,
}

/// A BPF map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct BpfMap {
    /// Pin path.
    pub path: String,
    /// Entries; `null` if they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Vec<BpfMapEntry>>,
}

/// An entry of a BPF map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct BpfMapEntry {
    /// Key.
    pub key: String,
    /// Value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `sync`, or the write that failed: `to-be-inserted`, `to-be-deleted`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub desired_action: String,
    /// Error of the failed write.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// A write of a BPF map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct BpfMapEvent {
    /// Time of the write, RFC 3339.
    pub timestamp: String,
    /// `update` or `delete`.
    pub action: String,
    /// Key.
    pub key: String,
    /// Written value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `sync`, or the write that failed: `to-be-inserted`, `to-be-deleted`.
    pub desired_action: String,
    /// Error of the failed write.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}
