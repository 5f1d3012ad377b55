// SPDX-License-Identifier: Apache-2.0

//! Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address::{cidr, cidrs, maybe_ip};
use crate::error::ValueError;
use crate::go_json;
use crate::remote::{RemoteInfo, check_name};

/// A node of a cluster, `cilium/state/nodes/v1/<cluster>/<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Node {
    pub name: String,
    pub cluster: String,
    /// Addresses in the order of preference. Absent is like empty, but written as `null`.
    #[serde(rename = "IPAddresses")]
    pub ip_addresses: Option<Vec<NodeAddress>>,
    /// Where addresses of pods come from.
    #[serde(rename = "IPv4AllocCIDR", with = "cidr")]
    pub ipv4_alloc_cidr: Option<IpNet>,
    #[serde(rename = "IPv4SecondaryAllocCIDRs", with = "cidrs")]
    pub ipv4_secondary_alloc_cidrs: Option<Vec<IpNet>>,
    /// Where addresses of pods come from.
    #[serde(rename = "IPv6AllocCIDR", with = "cidr")]
    pub ipv6_alloc_cidr: Option<IpNet>,
    #[serde(rename = "IPv6SecondaryAllocCIDRs", with = "cidrs")]
    pub ipv6_secondary_alloc_cidrs: Option<Vec<IpNet>>,
    #[serde(rename = "IPv4HealthIP", with = "maybe_ip")]
    pub ipv4_health_ip: Option<IpAddr>,
    #[serde(rename = "IPv6HealthIP", with = "maybe_ip")]
    pub ipv6_health_ip: Option<IpAddr>,
    #[serde(rename = "IPv4IngressIP", with = "maybe_ip")]
    pub ipv4_ingress_ip: Option<IpAddr>,
    #[serde(rename = "IPv6IngressIP", with = "maybe_ip")]
    pub ipv6_ingress_ip: Option<IpAddr>,
    #[serde(rename = "ClusterID")]
    pub cluster_id: u32,
    /// Where the writer had the node from: `custom-resource`, `local`. It means nothing to readers.
    pub source: String,
    /// Encryption key of IPsec; 0 for none.
    pub encryption_key: u8,
    /// Labels. Absent is like empty, but written as `null`.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations. Absent is like empty, but written as `null`.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Public key of WireGuard; empty for none.
    #[serde(rename = "WireguardPubKey")]
    pub wireguard_pub_key: String,
    /// Id of the boot of its kernel.
    #[serde(rename = "BootID")]
    pub boot_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// What it is: `InternalIP`, `ExternalIP`, `CiliumInternalIP` and others.
    #[serde(rename = "Type")]
    pub kind: String,
    #[serde(rename = "IP", with = "maybe_ip")]
    pub ip: Option<IpAddr>,
}

impl Node {
    /// Reads the value of a remote cluster. `name` is the key below the cluster's prefix: the name of the node.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let node: Self = go_json::from_slice(value).map_err(ValueError::Json)?;
        remote.check_cluster(&node.cluster)?;
        if node.name.is_empty() {
            return Err(ValueError::Empty { field: "Name" });
        }
        check_name(&node.name, name)?;
        remote.check_id(node.cluster_id)?;
        Ok(node)
    }

    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        go_json::to_vec(self).map_err(ValueError::Encode)
    }
}
