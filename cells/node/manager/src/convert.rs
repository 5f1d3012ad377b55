// SPDX-License-Identifier: Apache-2.0

//! Objects of Kubernetes and the local node → nodes.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use skep_ipcache::Source;
use skep_k8s_types::slim::{CiliumNode, Node as KubernetesNode, NodeAddressType};
use skep_node_local::LocalNode;

use crate::node::{Node, NodeKey};

/// Annotations with the public key of WireGuard: today's, and an older one.
const WIREGUARD_KEYS: [&str; 2] = ["network.cilium.io/wg-pub-key", "io.cilium.network.wg-pub-key"];

/// Part of a node is invalid, and left out. Correct the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node `{node}`: {field} `{value}` is invalid: {reason}")]
pub(crate) struct InvalidPart {
    node: NodeKey,
    field: &'static str,
    value: String,
    reason: String,
}

/// A node and what of its object is invalid.
#[derive(Debug)]
pub(crate) struct Converted {
    pub(crate) node: Node,
    pub(crate) invalid: Vec<InvalidPart>,
}

impl Converted {
    fn new(cluster: &str, name: &str, source: Source) -> Self {
        Self {
            node: Node::new(NodeKey::new(cluster, name), source),
            invalid: Vec::new(),
        }
    }

    fn parse<T: FromStr<Err: Display>>(&mut self, field: &'static str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.invalid.push(InvalidPart {
                    node: self.node.key.clone(),
                    field,
                    value: text.to_owned(),
                    reason: T::Err::to_string(&error),
                });
                None
            }
        }
    }

    fn add_address(&mut self, kind: &NodeAddressType, text: &str) {
        // Others are names.
        let is_ip = matches!(
            kind,
            NodeAddressType::InternalIp | NodeAddressType::ExternalIp | NodeAddressType::CiliumInternalIp
        );
        if is_ip && let Some(address) = self.parse("address", text) {
            self.node.addresses.push((kind.clone(), address));
        }
    }

    fn add_networks<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        for text in texts {
            if let Some(net) = self.parse::<IpNet>("pod CIDR", text)
                && !self.node.pod_cidrs.contains(&net)
            {
                self.node.pod_cidrs.push(net);
            }
        }
    }

    fn pair(&mut self, field: &'static str, texts: [&str; 2]) -> Vec<IpAddr> {
        let texts = texts.into_iter().filter(|text| !text.is_empty());
        texts.filter_map(|text| self.parse(field, text)).collect()
    }
}

pub(crate) fn kubernetes_node(object: &KubernetesNode, cluster: &str) -> Converted {
    let mut converted = Converted::new(cluster, &object.metadata.name, Source::Kubernetes);
    for address in &object.status.addresses {
        converted.add_address(&address.kind, &address.address);
    }
    let single = object.spec.pod_cidrs.is_empty().then_some(&object.spec.pod_cidr);
    let networks = object.spec.pod_cidrs.iter().chain(single);
    converted.add_networks(networks.map(|text| text.as_str()).filter(|text| !text.is_empty()));
    converted.node.labels = object.metadata.labels.clone();
    converted.node.annotations = object.metadata.annotations.clone();
    converted
}

pub(crate) fn cilium_node(object: &CiliumNode, cluster: &str) -> Converted {
    let mut converted = Converted::new(cluster, &object.metadata.name, Source::CustomResource);
    let spec = &object.spec;
    for address in &spec.addresses {
        converted.add_address(&address.kind, &address.ip);
    }
    let pools = spec
        .ipam
        .pools
        .allocated
        .iter()
        .flat_map(|pool| pool.cidrs.iter());
    converted.add_networks(spec.ipam.pod_cidrs.iter().chain(pools).map(|text| text.as_str()));
    converted.node.health = converted.pair("health address", [&spec.health.ipv4, &spec.health.ipv6]);
    converted.node.ingress = converted.pair("ingress address", [&spec.ingress.ipv4, &spec.ingress.ipv6]);
    let key = spec.encryption.key.to_string();
    converted.node.encryption_key = converted.parse("encryption key", &key).unwrap_or(0);
    let annotations = &object.metadata.annotations;
    let wireguard = WIREGUARD_KEYS.into_iter().find_map(|key| annotations.get(key));
    converted.node.wireguard_key = wireguard.unwrap_or_default().into();
    converted.node.boot_id = spec.boot_id.clone();
    converted.node.labels = object.metadata.labels.clone();
    converted.node.annotations = annotations.clone();
    converted
}

pub(crate) fn local_node(local: &LocalNode) -> Node {
    let mut node = Node::new(NodeKey::new(&local.cluster, &local.name), Source::Local);
    node.addresses = local.addresses.clone();
    node.pod_cidrs = local.pod_cidrs.clone();
    node.health.clone_from(&local.health);
    node.ingress.clone_from(&local.ingress);
    node.boot_id = local.boot_id.clone();
    node.labels = local.labels.clone();
    node.annotations = local.annotations.clone();
    node
}
