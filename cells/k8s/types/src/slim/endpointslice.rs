// SPDX-License-Identifier: Apache-2.0

//! `discovery.k8s.io/v1 EndpointSlice`.

use serde::{Deserialize, Serialize};

use super::codec;
use super::text::words;
use super::{Labels, Metadata, Protocol, Str};

/// Label that names the service of a slice.
pub(super) const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A slice of the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "codec::or_zero")]
    pub address_type: AddressType,
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub endpoints: Box<[Endpoint]>,
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub ports: Box<[EndpointPort]>,
}

impl EndpointSlice {
    /// Name of the service, in the slice's namespace, that the endpoints belong to.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata
            .labels
            .get(SERVICE_NAME_LABEL)
            .filter(|name| !name.is_empty())
    }
}

words! {
    /// Type of the addresses of a slice.
    AddressType {
        /// IPv4 addresses.
        V4 = "IPv4",
        /// IPv6 addresses.
        V6 = "IPv6",
        /// Domain names.
        Fqdn = "FQDN",
    }
}

/// An endpoint: a backend of the service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Interchangeable addresses (texts, not checked here).
    #[serde(deserialize_with = "codec::list", serialize_with = "codec::list_or_null")]
    pub addresses: Box<[Str]>,
    #[serde(deserialize_with = "codec::object")]
    pub conditions: EndpointConditions,
    /// Topology as in the beta API: node and zone under their label keys.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub deprecated_topology: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Str>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub hints: Option<Box<EndpointHints>>,
}

/// Conditions of an endpoint; an absent one is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Accepts new connections. Unknown counts as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Serves, possibly while it terminates. Unknown counts as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is terminating. Unknown counts as false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// Topology hints: which clients should use an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones whose clients should use it.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub for_zones: Box<[ForZone]>,
}

/// A zone in [`EndpointHints`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ForZone {
    #[serde(deserialize_with = "codec::or_zero")]
    pub name: Str,
}

/// A port of all endpoints of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the service port it belongs to; absent and empty are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Str>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub protocol: Protocol,
    /// Number; absent means all ports. As on the wire: not checked to be a valid port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}
