// SPDX-License-Identifier: Apache-2.0

//! `cilium.io/v2 CiliumNode`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::codec;
use super::{Labels, Metadata, NodeAddressType, Str};

/// A node as the agents describe it to each other and to the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumNode {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    /// Desired state, written by the agent.
    #[serde(deserialize_with = "codec::object")]
    pub spec: CiliumNodeSpec,
    /// Observed state, written by the operator.
    #[serde(deserialize_with = "codec::object")]
    pub status: CiliumNodeStatus,
}

/// Desired state of a [`CiliumNode`], written by the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumNodeSpec {
    /// Instance id of the cloud provider.
    #[serde(
        rename = "instance-id",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub instance_id: Str,
    #[serde(
        rename = "bootid",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub boot_id: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub addresses: Box<[CiliumNodeAddress]>,
    #[serde(deserialize_with = "codec::object")]
    pub health: FamilyAddresses,
    #[serde(deserialize_with = "codec::object")]
    pub ingress: FamilyAddresses,
    #[serde(deserialize_with = "codec::object")]
    pub encryption: EncryptionSpec,
    /// Settings of AWS interfaces, kept as they are.
    #[serde(deserialize_with = "codec::or_zero")]
    pub eni: Map<String, Value>,
    /// Settings of Azure interfaces, kept as they are.
    #[serde(deserialize_with = "codec::or_zero")]
    pub azure: Map<String, Value>,
    /// Settings of Alibaba Cloud interfaces, kept as they are.
    #[serde(rename = "alibaba-cloud", deserialize_with = "codec::or_zero")]
    pub alibaba_cloud: Map<String, Value>,
    #[serde(deserialize_with = "codec::object")]
    pub ipam: IpamSpec,
    /// Numeric security identity of the node.
    #[serde(
        rename = "nodeidentity",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub node_identity: u64,
}

/// An address of a [`CiliumNode`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumNodeAddress {
    #[serde(
        rename = "type",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub kind: NodeAddressType,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ip: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FamilyAddresses {
    /// IPv4 address.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ipv4: Str,
    /// IPv6 address.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ipv6: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EncryptionSpec {
    /// Index of the key in use; 0 for none.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub key: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamSpec {
    #[serde(
        rename = "podCIDRs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::list"
    )]
    pub pod_cidrs: Box<[Str]>,
    #[serde(deserialize_with = "codec::object")]
    pub pools: IpamPoolSpec,
    /// Single addresses that the node may use, kept as they are.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub pool: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamPoolSpec {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub requested: Box<[IpamPoolRequest]>,
    /// Networks that the operator has allocated.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub allocated: Box<[IpamPoolAllocation]>,
}

/// A request of an agent to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamPoolRequest {
    #[serde(deserialize_with = "codec::or_zero")]
    pub pool: Str,
    /// Counts `ipv4-addrs` and `ipv6-addrs`, kept as they are.
    #[serde(deserialize_with = "codec::or_zero")]
    pub needed: Map<String, Value>,
}

/// Networks of a pool that are allocated to a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamPoolAllocation {
    #[serde(deserialize_with = "codec::or_zero")]
    pub pool: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::list")]
    pub cidrs: Box<[Str]>,
}

/// Observed state of a [`CiliumNode`], written by the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumNodeStatus {
    /// State of AWS interfaces, kept as it is.
    #[serde(deserialize_with = "codec::or_zero")]
    pub eni: Map<String, Value>,
    /// State of Azure interfaces, kept as it is.
    #[serde(deserialize_with = "codec::or_zero")]
    pub azure: Map<String, Value>,
    /// State of Alibaba Cloud interfaces, kept as it is.
    #[serde(rename = "alibaba-cloud", deserialize_with = "codec::or_zero")]
    pub alibaba_cloud: Map<String, Value>,
    #[serde(deserialize_with = "codec::object")]
    pub ipam: IpamStatus,
}

/// State of IPAM of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamStatus {
    /// Addresses in use, kept as they are.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub used: Map<String, Value>,
    /// State of the node's networks, kept as it is.
    #[serde(
        rename = "pod-cidrs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub pod_cidrs: Map<String, Value>,
    #[serde(rename = "operator-status", deserialize_with = "codec::object")]
    pub operator_status: OperatorStatus,
    /// State of addresses that are being released.
    #[serde(
        rename = "release-ips",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub release_ips: Labels,
}

/// Errors of the operator about a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorStatus {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub error: Str,
}
