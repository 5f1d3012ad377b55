// SPDX-License-Identifier: Apache-2.0

//! Row of table `nodes`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use skep_ipcache::Source;
use skep_k8s_types::slim::{Labels, NodeAddressType, Str};
use skep_node_local::LocalNode;
use statedb::row::BoxError;
use statedb::{Index, Key, KeyWriter, Row};

/// Name of a cluster that has none of its own.
pub const DEFAULT_CLUSTER: &str = "default";

/// Cluster and name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey {
    pub cluster: Str,
    pub name: Str,
}

impl NodeKey {
    /// The node of a cluster; an empty cluster is [`DEFAULT_CLUSTER`].
    pub fn new(cluster: &str, name: &str) -> Self {
        let cluster = match cluster {
            "" => DEFAULT_CLUSTER,
            cluster => cluster,
        };
        Self {
            cluster: cluster.into(),
            name: name.into(),
        }
    }
}

/// `cluster/name`.
impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.name)
    }
}

impl Key for NodeKey {
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(self.cluster.as_bytes());
        out.bytes(b"/");
        out.bytes(self.name.as_bytes());
    }

    fn from_text(text: &str) -> Result<statedb::KeyBuf, statedb::TextKeyError> {
        let (cluster, name) = text.split_once('/').unwrap_or(("", text));
        Ok(statedb::KeyBuf::of(&Self::new(cluster, name)))
    }
}

/// A node, as a source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub key: NodeKey,
    pub source: Source,
    /// Id of the cluster in the mesh, 0 for none.
    pub cluster_id: u32,
    pub addresses: Vec<(NodeAddressType, IpAddr)>,
    /// Networks of its pods; the first one of each family is the primary one.
    pub pod_cidrs: Vec<IpNet>,
    /// Addresses of its health endpoint, at most one of each family.
    pub health: Vec<IpAddr>,
    /// Addresses of its ingress listener, at most one of each family.
    pub ingress: Vec<IpAddr>,
    /// Index of the key that packets to it are encrypted with, 0 for none.
    pub encryption_key: u8,
    /// Public key of WireGuard, empty for none.
    pub wireguard_key: Str,
    /// Id of the boot of the kernel.
    pub boot_id: Str,
    pub labels: Labels,
    pub annotations: Labels,
}

impl Node {
    pub const BY_ID: Index<Self, (NodeKey, u8)> = Index::new("id", |node, keys| {
        keys.add(&(node.key.clone(), node.source as u8))
    });
    /// By node: all sources that have it.
    pub const BY_NAME: Index<Self, NodeKey> = Index::new("name", |node, keys| keys.add(&node.key));
    pub const BY_ADDRESS: Index<Self, IpAddr> = Index::new("address", |node, keys| {
        node.addresses.iter().for_each(|(_, address)| keys.add(address));
    });

    /// A node of which only the name is known.
    pub fn new(key: NodeKey, source: Source) -> Self {
        Self {
            key,
            source,
            cluster_id: 0,
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            health: Vec::new(),
            ingress: Vec::new(),
            encryption_key: 0,
            wireguard_key: Str::default(),
            boot_id: Str::default(),
            labels: Labels::default(),
            annotations: Labels::default(),
        }
    }

    pub fn is_local(&self) -> bool {
        self.source == Source::Local
    }

    /// The node's address of a family: the first internal one, else the last external one, else any other. The agent's own
    /// address never.
    pub fn node_ip(&self, ipv4: bool) -> Option<IpAddr> {
        LocalNode {
            addresses: self.addresses.clone(),
            ..LocalNode::default()
        }
        .node_ip(ipv4)
    }

    /// Addresses by which packets come from it or go to it.
    pub fn reachable(&self) -> impl Iterator<Item = (&NodeAddressType, IpAddr)> {
        let kinds = |kind: &NodeAddressType| {
            matches!(
                kind,
                NodeAddressType::InternalIp | NodeAddressType::ExternalIp | NodeAddressType::CiliumInternalIp
            )
        };
        let addresses = self.addresses.iter().filter(move |(kind, _)| kinds(kind));
        addresses.map(|(kind, address)| (kind, *address))
    }
}

impl Row for Node {
    fn header() -> &'static [&'static str] {
        &["Name", "Source", "Addresses", "PodCIDRs"]
    }

    fn cells(&self) -> Vec<String> {
        let mut addresses: Vec<String> = self
            .addresses
            .iter()
            .map(|(kind, address)| format!("{kind}:{address}"))
            .collect();
        addresses.sort();
        let networks: Vec<String> = self.pod_cidrs.iter().map(ToString::to_string).collect();
        vec![
            self.key.to_string(),
            self.source.to_string(),
            addresses.join(", "),
            networks.join(", "),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|(kind, address)| json!({"Type": kind, "IP": address}))
            .collect();
        Ok(json!({
            "Name": self.key.name,
            "Cluster": self.key.cluster,
            "ClusterID": self.cluster_id,
            "Source": self.source.as_str(),
            "IPAddresses": addresses,
            "PodCIDRs": self.pod_cidrs,
            "HealthIPs": self.health,
            "IngressIPs": self.ingress,
            "EncryptionKey": self.encryption_key,
            "WireguardPubKey": self.wireguard_key,
            "BootID": self.boot_id,
            "Labels": self.labels,
            "Annotations": self.annotations,
        }))
    }
}
