// SPDX-License-Identifier: Apache-2.0

//! `/v1/endpoint`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ControllerStatus, Identity, is_default};

/// Body of `PUT /v1/endpoint/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointChangeRequest {
    /// Id; 0: allocated by the agent.
    #[serde(skip_serializing_if = "is_default")]
    pub id: u16,
    /// Container id of the runtime.
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
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_namespace: String,
    /// Name of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_pod_name: String,
    /// Uid of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_uid: String,
    /// Labels, `source:key=value` each.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// State requested by the caller; ignored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Datapath options by name.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, bool>))]
    #[serde(deserialize_with = "crate::or_default")]
    pub datapath_configuration: BTreeMap<String, bool>,
    /// Properties by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, bool>))]
    #[serde(deserialize_with = "crate::or_default")]
    pub properties: BTreeMap<String, bool>,
    /// Respond when the endpoint is ready.
    #[serde(skip_serializing_if = "is_default")]
    pub sync_build_endpoint: bool,
}

/// Body of `DELETE /v1/endpoint`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointBatchDeleteRequest {
    /// Container id.
    pub container_id: String,
}

/// An endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Endpoint {
    /// Its id.
    pub id: u16,
    /// Desired configuration.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: EndpointConfigurationSpec,
    /// Status.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: EndpointStatus,
}

/// Configuration of an endpoint: body of `PATCH /v1/endpoint/{id}/config`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointConfigurationSpec {
    /// User labels.
    #[serde(deserialize_with = "crate::or_default")]
    pub label_configuration: LabelConfigurationSpec,
    /// Options by name: `Enabled`, `Disabled` or a level.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub options: BTreeMap<String, String>,
}

/// `GET /v1/endpoint/{id}/config`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointConfigurationStatus {
    /// Options that cannot change.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub immutable: BTreeMap<String, String>,
    /// Current configuration.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: EndpointConfigurationSpec,
}

/// An event in the life of an endpoint: entry of `GET /v1/endpoint/{id}/log`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct EndpointStatusChange {
    /// `OK`, `Warning`, `Failure` or `Disabled`.
    pub code: String,
    /// The event.
    pub message: String,
    /// State after the event.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Time.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(deserialize_with = "crate::or_never", skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
}

/// A named port of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NamedPort {
    /// Name.
    pub name: String,
    /// Number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// Status of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointStatus {
    /// `waiting-for-identity`, `waiting-to-regenerate`, `regenerating`, `restoring`, `ready`, `not-ready`, `disconnecting`,
    /// `disconnected`.
    pub state: String,
    /// Background jobs.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<ControllerStatus>,
    /// External identifiers.
    #[serde(deserialize_with = "crate::or_default")]
    pub external_identifiers: EndpointIdentifiers,
    /// Identity; none in state `waiting-for-identity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Labels.
    #[serde(deserialize_with = "crate::or_default")]
    pub labels: LabelConfigurationStatus,
    /// Its last event.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<EndpointStatusChange>,
    /// Named ports of its pod.
    #[serde(
        rename = "namedPorts",
        deserialize_with = "crate::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub named_ports: Vec<NamedPort>,
    /// Interface and addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub networking: EndpointNetworking,
    /// Health.
    #[serde(deserialize_with = "crate::or_default")]
    pub health: EndpointHealth,
    /// Its policy.
    #[serde(deserialize_with = "crate::or_default")]
    pub policy: EndpointPolicyStatus,
    /// Current configuration.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: EndpointConfigurationSpec,
}

/// External identifiers of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointIdentifiers {
    /// `<container>:<interface>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cni_attachment_id: String,
    /// Container id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_namespace: String,
    /// Name of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_pod_name: String,
    /// `<namespace>/<name>` of the pod; `/` without a pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
}

/// User labels of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LabelConfigurationSpec {
    /// The labels.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub user: Vec<String>,
}

/// Labels of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct LabelConfigurationStatus {
    /// Labels that are not part of the identity.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<String>,
    /// Labels disabled by the user.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
    /// Labels added by the user.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: LabelConfigurationSpec,
    /// Labels of the identity.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub security_relevant: Vec<String>,
}

/// `GET /v1/endpoint/{id}/labels`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LabelConfiguration {
    /// User labels.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: LabelConfigurationSpec,
    /// Current labels.
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
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointAddressing {
    /// IPv4 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4: String,
    /// UUID of its allocation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4_expiration_uuid: String,
    /// Pool of the IPv4 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4_pool_name: String,
    /// IPv6 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6: String,
    /// UUID of its allocation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6_expiration_uuid: String,
    /// Pool of the IPv6 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6_pool_name: String,
}

/// `GET /v1/endpoint/{id}/healthz`: `OK`, `Pending`, `Warning` or `Failure` each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHealth {
    /// Programs and maps.
    pub bpf: String,
    /// Its policy.
    pub policy: String,
    /// Interface with attached programs.
    #[serde(skip_serializing_if = "is_default")]
    pub connected: bool,
    /// Overall health: the worst of all.
    pub overall_health: String,
}

/// Desired and realized policy of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointPolicyStatus {
    /// Policy revision that the proxy has.
    #[serde(skip_serializing_if = "is_default")]
    pub proxy_policy_revision: u64,
    /// Redirects to the proxy.
    #[serde(deserialize_with = "crate::or_default")]
    pub proxy_statistics: Vec<ProxyStatistics>,
    /// Desired policy.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: EndpointPolicy,
    /// Realized policy.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: EndpointPolicy,
}

/// A redirect of packets of an endpoint to the proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ProxyStatistics {
    /// Port of the proxy.
    #[serde(skip_serializing_if = "is_default")]
    pub allocated_proxy_port: u16,
    /// `ingress` or `egress`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub location: String,
    /// Redirected port.
    #[serde(skip_serializing_if = "is_default")]
    pub port: u16,
    /// Protocol: `http`, `dns`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// Policy of an endpoint. Lists of identities are absent until the policy is computed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct EndpointPolicy {
    /// Identity.
    pub id: u32,
    /// Revision of its build.
    #[serde(skip_serializing_if = "is_default")]
    pub build: u64,
    /// Revision of the rules.
    #[serde(skip_serializing_if = "is_default")]
    pub policy_revision: u64,
    /// Enforced directions: `none`, `ingress`, `egress`, `both`.
    pub policy_enabled: String,
    /// Identities that it may send to; 0: all.
    pub allowed_egress_identities: Option<Vec<u32>>,
    /// Identities that may send to it; 0: all.
    pub allowed_ingress_identities: Option<Vec<u32>>,
    /// Identities that it must not send to.
    pub denied_egress_identities: Option<Vec<u32>>,
    /// Identities that must not send to it.
    pub denied_ingress_identities: Option<Vec<u32>>,
    /// Rules of ports.
    #[serde(deserialize_with = "crate::or_default")]
    pub l4: L4Policy,
}

/// Rules of ports of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct L4Policy {
    /// Rules of packets that it sends.
    #[serde(deserialize_with = "crate::or_default")]
    pub egress: Vec<PolicyRule>,
    /// Rules of packets to it.
    #[serde(deserialize_with = "crate::or_default")]
    pub ingress: Vec<PolicyRule>,
}

/// A rule of a policy, and its origin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct PolicyRule {
    /// Labels of the rules that it derives from.
    #[serde(deserialize_with = "crate::or_default", skip_serializing_if = "Vec::is_empty")]
    pub derived_from_rules: Vec<Vec<String>>,
    /// The rule, as JSON.
    pub rule: String,
    /// Labels of rules by selector.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, Vec<Vec<String>>>))]
    #[serde(
        deserialize_with = "crate::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub rules_by_selector: BTreeMap<String, Vec<Vec<String>>>,
}
