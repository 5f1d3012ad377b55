// SPDX-License-Identifier: Apache-2.0

//! `v1/Node`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::codec;
use super::text::words;
use super::{Metadata, Str};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "codec::object")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "codec::object")]
    pub status: NodeStatus,
}

/// Desired state of a [`Node`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Pod CIDR of the node, as text.
    #[serde(
        rename = "podCIDR",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub pod_cidr: Str,
    /// Pod CIDRs of the node, one per family, as texts.
    #[serde(
        rename = "podCIDRs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::list"
    )]
    pub pod_cidrs: Box<[Str]>,
    #[serde(
        rename = "providerID",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub provider_id: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub taints: Box<[Taint]>,
}

/// Repels pods that do not tolerate it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    #[serde(deserialize_with = "codec::or_zero")]
    pub key: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub value: Str,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub effect: Str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Timestamp>,
}

/// Observed state of a [`Node`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub conditions: Box<[NodeCondition]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub addresses: Box<[NodeAddress]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    /// Type, such as `Ready`.
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub reason: Str,
}

words! {
    /// Type of an address of a node.
    NodeAddressType {
        /// Host name.
        Hostname = "Hostname",
        /// Address inside the cluster's network.
        InternalIp = "InternalIP",
        /// Address that is reachable from outside.
        ExternalIp = "ExternalIP",
        /// DNS name inside the cluster's network.
        InternalDns = "InternalDNS",
        /// DNS name that is reachable from outside.
        ExternalDns = "ExternalDNS",
        /// Address of the agent's own host device, in `CiliumNode` objects.
        CiliumInternalIp = "CiliumInternalIP",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: NodeAddressType,
    #[serde(deserialize_with = "codec::or_zero")]
    pub address: Str,
}
