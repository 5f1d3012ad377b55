// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-nodes`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skep_clustermesh_types::{ClusterInfo, Node, NodeAddress};
use skep_k8s_types::slim::{CiliumNode, CiliumNodeAddress, CiliumNodeSpec, Labels, NodeAddressType, Str};
use statedb::{Index, Row};

use crate::parts::Parts;

/// What readers see of where a value comes from.
const SOURCE: &str = "custom-resource";
/// Annotations with the public key of WireGuard: today's, and an older one.
const WIREGUARD_KEYS: [&str; 2] = ["network.cilium.io/wg-pub-key", "io.cilium.network.wg-pub-key"];

#[derive(Debug, Clone)]
pub(crate) struct NodeRow {
    pub(crate) name: Str,
    pub(crate) value: Arc<Node>,
    /// What of the object is not published.
    pub(crate) fault: Option<Box<str>>,
}

/// Why a part of a node is not published. Fix the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidNode {
    #[error("{field}: `{value}` is not an IP address")]
    Address { field: &'static str, value: Str },
    #[error("pod CIDR `{0}` is not a network")]
    Cidr(Str),
    /// The index of the encryption key does not fit.
    #[error("encryption key {0}: it must be from 0 to 255")]
    Key(i64),
}

impl NodeRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    pub(crate) fn new(cluster: &ClusterInfo, node: &CiliumNode) -> Self {
        let mut parts = Parts::default();
        Self {
            name: node.metadata.name.clone(),
            value: Arc::new(value(cluster, node, &mut parts)),
            fault: parts.fault(),
        }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.value == other.value && self.fault == other.fault
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

fn value(cluster: &ClusterInfo, node: &CiliumNode, parts: &mut Parts) -> Node {
    let (metadata, spec) = (&node.metadata, &node.spec);
    let (ipv4, ipv6) = networks(spec, parts);
    let (ipv4_alloc_cidr, ipv4_secondary_alloc_cidrs) = first_and_others(ipv4);
    let (ipv6_alloc_cidr, ipv6_secondary_alloc_cidrs) = first_and_others(ipv6);
    let addresses = spec.addresses.iter();
    let addresses: Vec<NodeAddress> = addresses.filter_map(|entry| address(entry, parts)).collect();
    let key = spec.encryption.key;
    let in_range = u8::try_from(key).map_err(|_| InvalidNode::Key(key));
    let wireguard = WIREGUARD_KEYS
        .into_iter()
        .find_map(|key| metadata.annotations.get(key));
    Node {
        name: metadata.name.to_string(),
        cluster: cluster.name.to_string(),
        cluster_id: cluster.id,
        ip_addresses: Some(addresses).filter(|addresses| !addresses.is_empty()),
        ipv4_alloc_cidr,
        ipv4_secondary_alloc_cidrs,
        ipv6_alloc_cidr,
        ipv6_secondary_alloc_cidrs,
        ipv4_health_ip: ip("spec.health.ipv4", &spec.health.ipv4, parts),
        ipv6_health_ip: ip("spec.health.ipv6", &spec.health.ipv6, parts),
        ipv4_ingress_ip: ip("spec.ingress.ipv4", &spec.ingress.ipv4, parts),
        ipv6_ingress_ip: ip("spec.ingress.ipv6", &spec.ingress.ipv6, parts),
        source: SOURCE.to_owned(),
        // Cilium publishes the lowest byte.
        encryption_key: parts.take(in_range).unwrap_or(key.to_le_bytes()[0]),
        labels: texts(&metadata.labels),
        annotations: texts(&metadata.annotations),
        wireguard_pub_key: wireguard.unwrap_or_default().to_owned(),
        boot_id: spec.boot_id.to_string(),
    }
}

fn texts(labels: &Labels) -> Option<BTreeMap<String, String>> {
    let texts = labels
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    Some(texts.collect()).filter(|texts: &BTreeMap<_, _>| !texts.is_empty())
}

fn parse(field: &'static str, text: &Str) -> Result<IpAddr, InvalidNode> {
    let ip: IpAddr = text.parse().map_err(|_| InvalidNode::Address {
        field,
        value: text.clone(),
    })?;
    Ok(ip.to_canonical())
}

fn ip(field: &'static str, text: &Str, parts: &mut Parts) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    parts.take(parse(field, text))
}

/// An address, if it is one: readers try to use whatever is published. Host names are none, and not invalid.
fn address(address: &CiliumNodeAddress, parts: &mut Parts) -> Option<NodeAddress> {
    let parsed = parse("spec.addresses", &address.ip);
    let ip = match &address.kind {
        NodeAddressType::Hostname | NodeAddressType::InternalDns | NodeAddressType::ExternalDns => {
            parsed.ok()
        }
        _ => parts.take(parsed),
    }?;
    Some(NodeAddress {
        kind: address.kind.to_string(),
        ip: Some(ip),
    })
}

/// The networks of pods by family, those of the node itself before those of pools.
fn networks(spec: &CiliumNodeSpec, parts: &mut Parts) -> (Vec<IpNet>, Vec<IpNet>) {
    let pools = spec.ipam.pools.allocated.iter().flat_map(|pool| &pool.cidrs);
    let networks = spec.ipam.pod_cidrs.iter().chain(pools).filter_map(|cidr| {
        let network = cidr.parse::<IpNet>().map(|network| network.trunc());
        parts.take(network.map_err(|_| InvalidNode::Cidr(cidr.clone())))
    });
    networks.partition(|network| network.addr().is_ipv4())
}

fn first_and_others(networks: Vec<IpNet>) -> (Option<IpNet>, Option<Vec<IpNet>>) {
    let mut networks = networks.into_iter();
    let first = networks.next();
    let others: Vec<IpNet> = networks.collect();
    (first, Some(others).filter(|others| !others.is_empty()))
}
