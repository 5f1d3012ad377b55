// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-nodes`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_clustermesh_types::{ClusterInfo, Node, NodeAddress};
use skep_k8s_types::slim::{CiliumNode, CiliumNodeAddress, CiliumNodeSpec, Labels, NodeAddressType, Str};
use statedb::{Index, Row};

/// What readers see of where a value comes from.
const SOURCE: &str = "custom-resource";
const WIREGUARD_KEY: &str = "network.cilium.io/wg-pub-key";

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct NodeRow {
    pub(crate) name: Str,
    pub(crate) value: Arc<Node>,
}

/// Why a node cannot be published. Fix the object; until then its last valid state stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidNode {
    /// A field holds no address.
    #[error("{field}: `{value}` is not an IP address")]
    Address {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: Str,
    },
    /// A pod CIDR is none.
    #[error("pod CIDR `{0}` is not a network")]
    Cidr(Str),
    /// The index of the encryption key does not fit.
    #[error("encryption key {0}: it must be from 0 to 255")]
    Key(i64),
}

impl NodeRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    pub(crate) fn new(cluster: &ClusterInfo, node: &CiliumNode) -> Result<Self, InvalidNode> {
        Ok(Self {
            name: node.metadata.name.clone(),
            value: Arc::new(value(cluster, node)?),
        })
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Row for NodeRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Addresses"]
    }

    fn cells(&self) -> Vec<String> {
        let addresses = self.value.ip_addresses.iter().flatten();
        let addresses: Vec<String> = addresses
            .filter_map(|address| Some(address.ip?.to_string()))
            .collect();
        vec![self.name.to_string(), addresses.join(", ")]
    }
}

fn value(cluster: &ClusterInfo, node: &CiliumNode) -> Result<Node, InvalidNode> {
    let (metadata, spec) = (&node.metadata, &node.spec);
    let (ipv4, ipv6) = networks(spec)?;
    let (ipv4_alloc_cidr, ipv4_secondary_alloc_cidrs) = first_and_others(ipv4);
    let (ipv6_alloc_cidr, ipv6_secondary_alloc_cidrs) = first_and_others(ipv6);
    let addresses = spec.addresses.iter().map(address);
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let key = spec.encryption.key;
    Ok(Node {
        name: metadata.name.to_string(),
        cluster: cluster.name.to_string(),
        cluster_id: cluster.id,
        ip_addresses: Some(addresses).filter(|addresses| !addresses.is_empty()),
        ipv4_alloc_cidr,
        ipv4_secondary_alloc_cidrs,
        ipv6_alloc_cidr,
        ipv6_secondary_alloc_cidrs,
        ipv4_health_ip: ip("spec.health.ipv4", &spec.health.ipv4)?,
        ipv6_health_ip: ip("spec.health.ipv6", &spec.health.ipv6)?,
        ipv4_ingress_ip: ip("spec.ingress.ipv4", &spec.ingress.ipv4)?,
        ipv6_ingress_ip: ip("spec.ingress.ipv6", &spec.ingress.ipv6)?,
        source: SOURCE.to_owned(),
        encryption_key: u8::try_from(key).map_err(|_| InvalidNode::Key(key))?,
        labels: texts(&metadata.labels),
        annotations: texts(&metadata.annotations),
        wireguard_pub_key: metadata
            .annotations
            .get(WIREGUARD_KEY)
            .unwrap_or_default()
            .to_owned(),
        boot_id: spec.boot_id.to_string(),
    })
}

fn texts(labels: &Labels) -> Option<BTreeMap<String, String>> {
    let texts = labels
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    Some(texts.collect()).filter(|texts: &BTreeMap<_, _>| !texts.is_empty())
}

fn ip(field: &'static str, text: &Str) -> Result<Option<IpAddr>, InvalidNode> {
    if text.is_empty() {
        return Ok(None);
    }
    let ip: IpAddr = text.parse().map_err(|_| InvalidNode::Address {
        field,
        value: text.clone(),
    })?;
    Ok(Some(ip.to_canonical()))
}

fn address(address: &CiliumNodeAddress) -> Result<NodeAddress, InvalidNode> {
    let ip = match (&address.kind, ip("spec.addresses", &address.ip)) {
        // These may be names, which have no place in the value.
        (NodeAddressType::Hostname | NodeAddressType::InternalDns | NodeAddressType::ExternalDns, Err(_)) => {
            None
        }
        (_, ip) => ip?,
    };
    Ok(NodeAddress {
        kind: address.kind.to_string(),
        ip,
    })
}

/// The networks of pods by family, those of the node itself before those of pools.
fn networks(spec: &CiliumNodeSpec) -> Result<(Vec<IpNet>, Vec<IpNet>), InvalidNode> {
    let pools = spec.ipam.pools.allocated.iter().flat_map(|pool| &pool.cidrs);
    let networks = spec
        .ipam
        .pod_cidrs
        .iter()
        .chain(pools)
        .map(|cidr| match cidr.parse::<IpNet>() {
            Ok(network) => Ok(network.trunc()),
            Err(_) => Err(InvalidNode::Cidr(cidr.clone())),
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(networks.into_iter().partition(|network| network.addr().is_ipv4()))
}

fn first_and_others(networks: Vec<IpNet>) -> (Option<IpNet>, Option<Vec<IpNet>>) {
    let mut networks = networks.into_iter();
    let first = networks.next();
    let others: Vec<IpNet> = networks.collect();
    (first, Some(others).filter(|others| !others.is_empty()))
}
