// SPDX-License-Identifier: Apache-2.0

//! The message. Fields are optional as in proto2: what is set is written, even if it is empty.

use prost::Message;

/// An endpoint slice of a cluster, `cilium/state/endpointslices/v1/<cluster>/<namespace>/<name>`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClusterEndpointSlice {
    /// Name of the cluster.
    #[prost(string, optional, tag = "1")]
    pub cluster: Option<String>,
    /// Id of the cluster.
    #[prost(uint32, optional, tag = "2")]
    pub cluster_id: Option<u32>,
    /// Namespace of the slice.
    #[prost(string, optional, tag = "3")]
    pub namespace: Option<String>,
    /// Name of the slice.
    #[prost(string, optional, tag = "4")]
    pub name: Option<String>,
    /// Labels.
    #[prost(message, repeated, tag = "5")]
    pub labels: Vec<TextEntry>,
    /// Annotations.
    #[prost(message, repeated, tag = "6")]
    pub annotations: Vec<TextEntry>,
    /// `IPv4` or `IPv6`.
    #[prost(string, optional, tag = "7")]
    pub address_type: Option<String>,
    /// Endpoints.
    #[prost(message, repeated, tag = "8")]
    pub endpoints: Vec<Endpoint>,
    /// Ports of all endpoints.
    #[prost(message, repeated, tag = "9")]
    pub ports: Vec<EndpointPort>,
}

/// An entry of a map of texts. Maps are written sorted by key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TextEntry {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// An endpoint.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Endpoint {
    /// Its addresses.
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    /// Its state.
    #[prost(message, optional, tag = "2")]
    pub conditions: Option<Conditions>,
    /// Its host name.
    #[prost(string, optional, tag = "3")]
    pub hostname: Option<String>,
    /// Its node.
    #[prost(string, optional, tag = "6")]
    pub node_name: Option<String>,
    /// Its zone.
    #[prost(string, optional, tag = "7")]
    pub zone: Option<String>,
    /// Who should use it.
    #[prost(message, optional, tag = "8")]
    pub hints: Option<Hints>,
}

/// State of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Conditions {
    /// Whether it takes new connections; absent counts as true.
    #[prost(bool, optional, tag = "1")]
    pub ready: Option<bool>,
    /// Whether it serves; absent counts as ready.
    #[prost(bool, optional, tag = "2")]
    pub serving: Option<bool>,
    /// Whether it is going away; absent counts as false.
    #[prost(bool, optional, tag = "3")]
    pub terminating: Option<bool>,
}

/// Who should use an endpoint.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hints {
    /// Zones.
    #[prost(message, repeated, tag = "1")]
    pub for_zones: Vec<NamedHint>,
    /// Nodes.
    #[prost(message, repeated, tag = "2")]
    pub for_nodes: Vec<NamedHint>,
}

/// The name of a zone or node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NamedHint {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EndpointPort {
    /// Its name; may be empty.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Its protocol; absent counts as `TCP`.
    #[prost(string, optional, tag = "2")]
    pub protocol: Option<String>,
    /// Its number; absent means all ports, which nothing can be done with.
    #[prost(int32, optional, tag = "3")]
    pub port: Option<i32>,
    /// Protocol of the application.
    #[prost(string, optional, tag = "4")]
    pub app_protocol: Option<String>,
}
