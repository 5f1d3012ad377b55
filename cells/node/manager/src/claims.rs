// SPDX-License-Identifier: Apache-2.0

//! A node → what its addresses and networks are.

use std::net::IpAddr;
use std::sync::Arc;

use hive::Cfg;
use ipnet::IpNet;
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_identity::{Label, LabelSource, Labels, Reserved};
use skep_identity_labels::{LabelFilter, PatternError};
use skep_ipcache::{Claim, Config, EndpointFlags, Owner, Prefix, ResourceId};
use skep_k8s_types::slim::NodeAddressType;

use crate::node::{Node, NodeKey};

/// Kind of the resources that claim for nodes.
pub(crate) const KIND: &str = "node";

/// Who this node is, which address families are on, and where tunnels end.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) local: NodeKey,
    pub(crate) families: Cfg<AddressFamilies>,
    pub(crate) tunnel: Cfg<TunnelConfig>,
    /// Networks whose addresses are not this node's.
    pub(crate) excluded: Vec<IpNet>,
    pub(crate) node_labels: NodeLabels,
}

/// Which labels of their Node other nodes have.
#[derive(Clone, Debug)]
pub(crate) enum NodeLabels {
    None,
    All,
    Filtered(LabelFilter),
}

impl NodeLabels {
    pub(crate) fn new(config: &Config) -> Result<Self, PatternError> {
        Ok(match config.node_labels {
            false => Self::None,
            true => config.node_label_filter()?.map_or(Self::All, Self::Filtered),
        })
    }
}

impl View {
    fn is_on(&self, address: IpAddr) -> bool {
        if address.is_ipv4() {
            self.families.ipv4
        } else {
            self.families.ipv6
        }
    }

    /// Whether an address that this node is known by is the host's.
    fn is_host(&self, address: IpAddr) -> bool {
        self.is_on(address) && !self.excluded.iter().any(|network| network.contains(&address))
    }

    pub(crate) fn world(&self, address: IpAddr) -> Reserved {
        Reserved::world(address, self.families.ipv4 && self.families.ipv6)
    }
}

/// Labels of the addresses of another node.
fn remote_labels(node: &Node, view: &View) -> Arc<Labels> {
    let filter = match &view.node_labels {
        NodeLabels::None => return Reserved::RemoteNode.into(),
        NodeLabels::All => None,
        NodeLabels::Filtered(filter) => Some(filter),
    };
    let of_node = node.labels.iter();
    let of_node = of_node.filter_map(|(key, value)| Label::new(LabelSource::Node, key, value).ok());
    let of_node = of_node.filter(|label| filter.is_none_or(|filter| filter.is_relevant(label)));
    let cluster = Label::new(LabelSource::K8s, Labels::CLUSTER, &node.key.cluster).ok();
    let all = of_node.chain(cluster).chain([Reserved::RemoteNode.into()]);
    Arc::new(all.collect())
}

/// What a node claims. This node: its addresses are the host's. Another one: its addresses are a node's, its health and
/// ingress addresses and the networks of its pods are reached through a tunnel to it.
pub(crate) fn claims_of(node: &Node, view: &View) -> Vec<(Prefix, Claim)> {
    let owner = Owner::new(
        node.source,
        ResourceId::new(KIND, &node.key.cluster, &node.key.name),
    );
    if node.key == view.local {
        let addresses = node.reachable().map(|(_, address)| address);
        let addresses = addresses.filter(|address| view.is_host(*address));
        return addresses
            .map(|address| (address.into(), Claim::labels(owner.clone(), Reserved::Host)))
            .collect();
    }
    // As Cilium does, of the addresses of nodes alone: programs look at it for those.
    let node_flags = match node.key.cluster == view.local.cluster {
        true => EndpointFlags::empty(),
        false => EndpointFlags::REMOTE_CLUSTER,
    };
    let peer = view.tunnel.endpoint(node.node_ip(true), node.node_ip(false));
    let claim = |label: Reserved| Claim::labels(owner.clone(), label);
    let tunnelled = |label| claim(label).tunnel_peer(peer).encrypt_key(node.encryption_key);
    let remote = remote_labels(node, view);
    let mut claims: Vec<(Prefix, Claim)> = Vec::new();
    for (kind, address) in node.reachable() {
        // Nodes talk to each other directly, except through the agent's own address.
        let is_own = *kind == NodeAddressType::CiliumInternalIp;
        let remote = Claim::labels(owner.clone(), remote.clone())
            .flags(node_flags)
            .tunnel_peer(peer.filter(|_| is_own));
        claims.push((address.into(), remote));
    }
    let health = node.health.iter().map(|address| (*address, Reserved::Health));
    let ingress = node.ingress.iter().map(|address| (*address, Reserved::Ingress));
    for (address, label) in health.chain(ingress) {
        claims.push((address.into(), tunnelled(label)));
    }
    for net in &node.pod_cidrs {
        claims.push((Prefix::cidr(*net), tunnelled(view.world(net.addr()))));
    }
    claims.retain(|(prefix, _)| view.is_on(prefix.net().addr()));
    claims
}
