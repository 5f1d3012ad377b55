// SPDX-License-Identifier: Apache-2.0

//! The message. Fields are optional as in proto2: what is set is written, even if it is empty.

use prost::Message;

/// An endpoint slice of a cluster, `cilium/state/endpointslices/v1/<cluster>/<namespace>/<name>`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClusterEndpointSlice {
    #[prost(string, optional, tag = "1")]
    pub cluster: Option<String>,
    #[prost(uint32, optional, tag = "2")]
    pub cluster_id: Option<u32>,
    #[prost(string, optional, tag = "3")]
    pub namespace: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub labels: Vec<TextEntry>,
    #[prost(message, repeated, tag = "6")]
    pub annotations: Vec<TextEntry>,
    /// `IPv4` or `IPv6`.
    #[prost(string, optional, tag = "7")]
    pub address_type: Option<String>,
    #[prost(message, repeated, tag = "8")]
    pub endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "9")]
    pub ports: Vec<EndpointPort>,
}

/// An entry of a map of texts. Maps are written sorted by key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TextEntry {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub conditions: Option<Conditions>,
    #[prost(string, optional, tag = "3")]
    pub hostname: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub zone: Option<String>,
    #[prost(message, optional, tag = "8")]
    pub hints: Option<Hints>,
}

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

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hints {
    #[prost(message, repeated, tag = "1")]
    pub for_zones: Vec<NamedHint>,
    #[prost(message, repeated, tag = "2")]
    pub for_nodes: Vec<NamedHint>,
}

/// The name of a zone or node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NamedHint {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Its protocol; absent counts as `TCP`.
    #[prost(string, optional, tag = "2")]
    pub protocol: Option<String>,
    /// Its number; absent means all ports, which nothing can be done with.
    #[prost(int32, optional, tag = "3")]
    pub port: Option<i32>,
    #[prost(string, optional, tag = "4")]
    pub app_protocol: Option<String>,
}
