// SPDX-License-Identifier: Apache-2.0

//! `cilium.io/v2 CiliumLocalRedirectPolicy`.

use serde::{Deserialize, Serialize};
use serde_json::Map;
use serde_json::Value;

use super::codec;
use super::{LabelSelector, Metadata, Str};

/// Sends traffic for an address or a service to pods of the same node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumLocalRedirectPolicy {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "codec::object")]
    pub spec: RedirectPolicySpec,
    /// Observed state, kept as it is.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Map<String, Value>,
}

/// Desired state of a [`CiliumLocalRedirectPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectPolicySpec {
    #[serde(deserialize_with = "codec::object")]
    pub redirect_frontend: RedirectFrontend,
    #[serde(deserialize_with = "codec::object")]
    pub redirect_backend: RedirectBackend,
    /// Whether traffic of the backend pods themselves goes to the original destination.
    #[serde(deserialize_with = "codec::or_zero")]
    pub skip_redirect_from_backend: bool,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub description: Str,
}

/// What a policy redirects: exactly one field should be set, which is not checked here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectFrontend {
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub address_matcher: Option<AddressMatcher>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub service_matcher: Option<ServiceMatcher>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressMatcher {
    #[serde(deserialize_with = "codec::or_zero")]
    pub ip: Str,
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub to_ports: Box<[PortInfo]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceMatcher {
    #[serde(deserialize_with = "codec::or_zero")]
    pub service_name: Str,
    /// Its namespace, which must be the policy's.
    #[serde(deserialize_with = "codec::or_zero")]
    pub namespace: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub to_ports: Box<[PortInfo]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectBackend {
    /// Pods of the policy's namespace on this node.
    #[serde(deserialize_with = "codec::object")]
    pub local_endpoint_selector: LabelSelector,
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub to_ports: Box<[PortInfo]>,
}

/// A port in a policy, as text, not checked here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PortInfo {
    #[serde(deserialize_with = "codec::or_zero")]
    pub port: Str,
    #[serde(deserialize_with = "codec::or_zero")]
    pub protocol: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
}
