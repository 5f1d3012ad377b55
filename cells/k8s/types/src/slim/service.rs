// SPDX-License-Identifier: Apache-2.0

//! `v1/Service`.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::codec;
use super::text::words;
use super::{Condition, Labels, Metadata, Protocol, Str};

/// A named set of addresses in front of backends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "codec::object")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "codec::object")]
    pub status: ServiceStatus,
}

words! {
    /// Type of a service.
    ServiceType {
        /// Reachable at an address inside the cluster.
        ClusterIp = "ClusterIP",
        /// Also at a port of every node.
        NodePort = "NodePort",
        /// Also through an external load balancer.
        LoadBalancer = "LoadBalancer",
        /// A DNS alias, no addresses.
        ExternalName = "ExternalName",
    }
}

words! {
    /// Traffic policy: which backends a client may reach.
    TrafficPolicy {
        /// All.
        Cluster = "Cluster",
        /// Those on the node that handles the packet.
        Local = "Local",
    }
}

words! {
    /// Session affinity: whether a client keeps its backend.
    SessionAffinity {
        /// No.
        None = "None",
        /// By client address.
        ClientIp = "ClientIP",
    }
}

words! {
    /// Address family.
    IpFamily {
        /// IPv4.
        V4 = "IPv4",
        /// IPv6.
        V6 = "IPv6",
    }
}

words! {
    /// How a load balancer delivers packets to the nodes.
    IngressIpMode {
        /// Destination address unchanged.
        Vip = "VIP",
        /// Destination address is the node's or pod's.
        Proxy = "Proxy",
    }
}

/// Desired state of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub ports: Box<[ServicePort]>,
    /// Selector: labels of the pods of the service.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub selector: Labels,
    /// Cluster address; `None` as text for headless services.
    #[serde(
        rename = "clusterIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub cluster_ip: Str,
    #[serde(
        rename = "clusterIPs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::list"
    )]
    pub cluster_ips: Box<[Str]>,
    #[serde(
        rename = "type",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub kind: ServiceType,
    /// Addresses that are routed to the nodes by other means.
    #[serde(
        rename = "externalIPs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::list"
    )]
    pub external_ips: Box<[Str]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub session_affinity: SessionAffinity,
    /// Requested load-balancer address (deprecated by Kubernetes, read by LB-IPAM).
    #[serde(
        rename = "loadBalancerIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub load_balancer_ip: Str,
    /// Client networks (CIDR texts, not checked here).
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::list")]
    pub load_balancer_source_ranges: Box<[Str]>,
    /// Backends for clients outside the cluster.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub external_traffic_policy: TrafficPolicy,
    /// Port on every node that reports whether the node has a local backend; 0 for none.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub health_check_node_port: i32,
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::list")]
    pub ip_families: Box<[IpFamily]>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<Str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<Str>,
    /// Backends for clients inside the cluster.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub internal_traffic_policy: TrafficPolicy,
    /// Preference among backends, such as `PreferSameZone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<Str>,
}

/// A port of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name, unique in the service; may be empty if it is the only port.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub protocol: Protocol,
    /// Port that clients use. As on the wire: not checked to be a valid port.
    #[serde(deserialize_with = "codec::or_zero")]
    pub port: i32,
    /// Port of the pods, by number or name.
    #[serde(deserialize_with = "codec::or_zero")]
    pub target_port: IntOrString,
    /// Port on every node; 0 for none.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub node_port: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntOrString {
    Int(i32),
    String(Str),
}

impl Default for IntOrString {
    fn default() -> Self {
        Self::Int(0)
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(number) => serializer.serialize_i32(*number),
            Self::String(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = IntOrString;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number or a string")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<IntOrString, E> {
                i32::try_from(number)
                    .map(IntOrString::Int)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &"a 32 bit number"))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<IntOrString, E> {
                i32::try_from(number)
                    .map(IntOrString::Int)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &"a 32 bit number"))
            }

            fn visit_str<E>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(Str::new(text)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    #[serde(
        rename = "clientIP",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub client_ip: Option<ClientIpConfig>,
}

/// Parameters of affinity by client address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Seconds after which an idle client may be sent to another backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// Observed state of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Addresses that the load balancer has assigned.
    #[serde(deserialize_with = "codec::object")]
    pub load_balancer: LoadBalancerStatus,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub conditions: Box<[Condition]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub ingress: Box<[LoadBalancerIngress]>,
}

/// A point where traffic comes in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Address; empty if there is only a host name.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ip: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub hostname: Str,
    /// How packets arrive; unset means [`IngressIpMode::Vip`].
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ip_mode: IngressIpMode,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub ports: Box<[IngressPort]>,
}

/// State of a port of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressPort {
    #[serde(deserialize_with = "codec::or_zero")]
    pub port: i32,
    #[serde(deserialize_with = "codec::or_zero")]
    pub protocol: Protocol,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Str>,
}
