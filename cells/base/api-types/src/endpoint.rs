// SPDX-License-Identifier: Apache-2.0

//! `/v1/endpoint`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Identity, is_default};

/// An endpoint that is to be created: the body of `PUT /v1/endpoint/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointChangeRequest {
    /// Its id; 0: the agent chooses.
    #[serde(skip_serializing_if = "is_default")]
    pub id: u16,
    /// Id of its container in the runtime.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Name of the interface in the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_interface_name: String,
    /// Network namespace of the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_netns_path: String,
    /// Cookie of that namespace, in decimal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netns_cookie: String,
    /// Name of the interface on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    /// Its index.
    #[serde(skip_serializing_if = "is_default")]
    pub interface_index: u32,
    /// MAC address in the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// MAC address of the interface on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_mac: String,
    /// Its addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub addressing: EndpointAddressing,
    /// Namespace of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_namespace: String,
    /// Name of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_pod_name: String,
    /// Uid of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_uid: String,
    /// Labels, `source:key=value` each.
    #[serde(deserialize_with = "crate::or_default")]
    pub labels: Vec<String>,
    /// Its state as the caller sees it; the agent decides.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// How its packets are handled: switches by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, bool>))]
    #[serde(deserialize_with = "crate::or_default")]
    pub datapath_configuration: BTreeMap<String, bool>,
    /// Properties by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, bool>))]
    #[serde(deserialize_with = "crate::or_default")]
    pub properties: BTreeMap<String, bool>,
    /// Answer when the endpoint is ready.
    #[serde(skip_serializing_if = "is_default")]
    pub sync_build_endpoint: bool,
}

/// The endpoints that are to be deleted: the body of `DELETE /v1/endpoint`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointBatchDeleteRequest {
    /// Id of their container.
    pub container_id: String,
}

/// An endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Endpoint {
    /// Its id.
    pub id: u16,
    /// How it is.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: EndpointStatus,
}

/// How an endpoint is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointStatus {
    /// `waiting-for-identity`, `waiting-to-regenerate`, `restoring`, `ready`, `not-ready`, `disconnecting`, `disconnected`.
    pub state: String,
    /// What others call it.
    #[serde(deserialize_with = "crate::or_default")]
    pub external_identifiers: EndpointIdentifiers,
    /// Its identity; none while it waits for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Its labels.
    #[serde(deserialize_with = "crate::or_default")]
    pub labels: LabelConfigurationStatus,
    /// Its interface and addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub networking: EndpointNetworking,
    /// Its health.
    #[serde(deserialize_with = "crate::or_default")]
    pub health: EndpointHealth,
    /// Its policy.
    #[serde(deserialize_with = "crate::or_default")]
    pub policy: EndpointPolicyStatus,
}

/// What others call an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointIdentifiers {
    /// `<container>:<interface>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cni_attachment_id: String,
    /// Id of its container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Namespace of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_namespace: String,
    /// Name of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_pod_name: String,
    /// `<namespace>/<name>` of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
}

/// Labels of an endpoint that a user set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LabelConfigurationSpec {
    /// The labels.
    #[serde(deserialize_with = "crate::or_default")]
    pub user: Vec<String>,
}

/// Labels of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct LabelConfigurationStatus {
    /// Labels that say nothing about who it is.
    #[serde(deserialize_with = "crate::or_default")]
    pub derived: Vec<String>,
    /// Labels that a user took away.
    #[serde(deserialize_with = "crate::or_default")]
    pub disabled: Vec<String>,
    /// Labels that a user set.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: LabelConfigurationSpec,
    /// Labels that the identity has.
    #[serde(deserialize_with = "crate::or_default")]
    pub security_relevant: Vec<String>,
}

/// `GET /v1/endpoint/{id}/labels`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LabelConfiguration {
    /// What a user set.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: LabelConfigurationSpec,
    /// What there is.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: LabelConfigurationStatus,
}

/// Interface and addresses of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointNetworking {
    /// Its addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub addressing: Vec<EndpointAddressing>,
    /// Name of the interface in the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_interface_name: String,
    /// MAC address of the interface on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_mac: String,
    /// Index of the interface on the node.
    pub interface_index: u32,
    /// Name of the interface on the node.
    pub interface_name: String,
    /// MAC address in the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
}

/// Addresses of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct EndpointAddressing {
    /// IPv4 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4: String,
    /// IPv6 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6: String,
}

/// `GET /v1/endpoint/{id}/healthz`: `OK`, `Pending`, `Warning` or `Failure` each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHealth {
    /// Its programs and maps.
    pub bpf: String,
    /// Its policy.
    pub policy: String,
    /// Whether it has an interface that programs serve.
    pub connected: bool,
    /// The worst of all.
    pub overall_health: String,
}

/// Policy of an endpoint: what is wanted and what is there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct EndpointPolicyStatus {
    /// What is wanted.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: EndpointPolicy,
    /// What is there.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: EndpointPolicy,
}

/// Policy of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointPolicy {
    /// Number of its identity.
    pub id: u32,
    /// Directions that are restricted: `none`, `ingress`, `egress`, `both`.
    pub policy_enabled: String,
}
