// SPDX-License-Identifier: Apache-2.0

//! Metadata of objects.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::codec;
use super::{Labels, Str};

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name, unique in its namespace and kind.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    /// Prefix from which the API server generates the name.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub generate_name: Str,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub namespace: Str,
    /// Unique id: a recreated object has another one.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub uid: Str,
    /// Opaque version, set by the API server.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub resource_version: Str,
    /// When deletion was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub labels: Labels,
    /// Annotations.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub annotations: Labels,
    /// Owners: the object is deleted with the last of them.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub owner_references: Box<[OwnerReference]>,
}

/// Metadata with the time of creation, for decoding kinds that are judged by it: the others do not grow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct CreatedMetadata {
    /// The other metadata.
    #[serde(flatten)]
    pub metadata: Metadata,
    /// When the object was created.
    #[serde(rename = "creationTimestamp")]
    pub created: Option<Timestamp>,
}

/// An object that owns another.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version of the owner.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub api_version: Str,
    /// Kind of the owner.
    #[serde(deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// Name of the owner.
    #[serde(deserialize_with = "codec::or_zero")]
    pub name: Str,
    /// Unique id of the owner.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub uid: Str,
    /// Whether the owner is the managing controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
}

/// A condition of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Str,
    /// Generation of the object that the condition is about.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub observed_generation: i64,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
    /// Reason, as one word.
    #[serde(deserialize_with = "codec::or_zero")]
    pub reason: Str,
    /// Message for people.
    #[serde(deserialize_with = "codec::or_zero")]
    pub message: Str,
}
