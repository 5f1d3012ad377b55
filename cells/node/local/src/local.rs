// SPDX-License-Identifier: Apache-2.0

//! Row of table `local-node`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use skep_k8s_types::slim::{Labels, NodeAddressType, Str};
use statedb::row::BoxError;
use statedb::{Index, Row};

/// Label with the zone of a node.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// This node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalNode {
    /// Name.
    pub name: Str,
    /// Cluster; empty and `default` mean the only one.
    pub cluster: Str,
    /// Whether the cluster has a Node for it, which the addresses are from.
    pub registered: bool,
    /// Whether the cluster is about to remove it: its Node is being deleted, or has the taint of the cluster autoscaler.
    pub is_leaving: bool,
    /// Addresses and their types.
    pub addresses: Vec<(NodeAddressType, IpAddr)>,
    /// Labels of the Kubernetes Node.
    pub labels: Labels,
    /// Annotations of the Kubernetes Node.
    pub annotations: Labels,
    /// Unique id of the Kubernetes Node; empty without Kubernetes.
    pub uid: Str,
    /// Provider id of the node.
    pub provider_id: Str,
    /// Pod CIDRs of the node.
    pub pod_cidrs: Vec<IpNet>,
    /// Pod CIDRs that IPAM allocates from. `None`: those of the Kubernetes Node are the node's.
    pub ipam_cidrs: Option<Vec<IpNet>>,
    /// Addresses of its health endpoint, at most one of each family.
    pub health: Vec<IpAddr>,
    /// Addresses of its ingress listener, at most one of each family.
    pub ingress: Vec<IpAddr>,
    /// Boot id of the kernel.
    pub boot_id: Str,
    /// Cookie of the host's network namespace; `None` if the kernel does not report it.
    pub netns_cookie: Option<u64>,
}

impl LocalNode {
    /// Primary index: by name. There is one row.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |node, keys| keys.add(&node.name));

    /// `cluster/name`; only `name` if the cluster has no name of its own.
    pub fn full_name(&self) -> String {
        match self.cluster.as_str() {
            "" | "default" => self.name.to_string(),
            cluster => format!("{cluster}/{}", self.name),
        }
    }

    /// Zone, if labelled.
    pub fn zone(&self) -> Option<&str> {
        self.labels.get(ZONE_LABEL).filter(|zone| !zone.is_empty())
    }

    /// The node's address of a family: the first internal one, else the last external one, else any other. The
    /// agent's own address never.
    pub fn node_ip(&self, ipv4: bool) -> Option<IpAddr> {
        let family = || self.addresses.iter().filter(|(_, addr)| addr.is_ipv4() == ipv4);
        let of = |kind: &NodeAddressType| family().filter(move |(own, _)| own == kind).collect::<Vec<_>>();
        let internal = of(&NodeAddressType::InternalIp);
        let external = of(&NodeAddressType::ExternalIp);
        let other = family().find(|(kind, _)| *kind != NodeAddressType::CiliumInternalIp);
        internal
            .first()
            .or(external.last())
            .copied()
            .or(other)
            .map(|(_, addr)| *addr)
    }

    /// Sets the pod CIDRs that IPAM allocates from, in place of those of the Kubernetes Node.
    pub fn set_ipam_cidrs(&mut self, cidrs: Vec<IpNet>) {
        self.pod_cidrs.clone_from(&cidrs);
        self.ipam_cidrs = Some(cidrs);
    }

    /// Addresses of the agent itself: gateways of pods.
    pub fn routers(&self) -> impl Iterator<Item = IpAddr> {
        let own = |kind: &NodeAddressType| *kind == NodeAddressType::CiliumInternalIp;
        self.addresses
            .iter()
            .filter(move |(kind, _)| own(kind))
            .map(|(_, addr)| *addr)
    }

    /// Addresses by which the cluster knows the node. None without a cluster: addresses that are derived from devices
    /// must not decide about devices.
    pub fn cluster_addrs(&self) -> impl Iterator<Item = IpAddr> {
        let registered = self.registered;
        let known = |kind: &NodeAddressType| {
            matches!(kind, NodeAddressType::InternalIp | NodeAddressType::ExternalIp)
        };
        self.addresses
            .iter()
            .filter(move |(kind, _)| registered && known(kind))
            .map(|(_, addr)| *addr)
    }
}

impl Row for LocalNode {
    fn header() -> &'static [&'static str] {
        &["Name", "Source", "Addresses"]
    }

    fn cells(&self) -> Vec<String> {
        let mut addresses: Vec<String> = self
            .addresses
            .iter()
            .map(|(kind, addr)| format!("{kind}:{addr}"))
            .collect();
        addresses.sort();
        vec![self.full_name(), "local".to_owned(), addresses.join(", ")]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|(kind, addr)| json!({"Type": kind, "IP": addr}))
            .collect();
        Ok(json!({
            "Name": self.name,
            "Cluster": self.cluster,
            "Source": "local",
            "IPAddresses": addresses,
            "Labels": self.labels,
            "Annotations": self.annotations,
            "BootID": self.boot_id,
            "HealthIPs": self.health,
            "IngressIPs": self.ingress,
            "Local": {
                "UID": self.uid,
                "ProviderID": self.provider_id,
                "PodCIDRs": self.pod_cidrs,
                "NetnsCookie": self.netns_cookie,
            },
        }))
    }

    fn type_name() -> String {
        "*node.LocalNode".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: &[(NodeAddressType, &str)]) -> LocalNode {
        let addresses = addresses
            .iter()
            .map(|(kind, addr)| (kind.clone(), addr.parse().unwrap()))
            .collect();
        LocalNode {
            name: "n1".into(),
            addresses,
            ..LocalNode::default()
        }
    }

    #[test]
    fn addresses_are_sorted_by_their_text() {
        let node = node(&[
            (NodeAddressType::InternalIp, "192.0.2.1"),
            (NodeAddressType::ExternalIp, "fd00::1"),
        ]);

        assert_eq!(LocalNode::header(), ["Name", "Source", "Addresses"]);
        assert_eq!(
            node.cells(),
            ["n1", "local", "ExternalIP:fd00::1, InternalIP:192.0.2.1"]
        );
        assert_eq!(
            LocalNode {
                cluster: "west".into(),
                ..node
            }
            .full_name(),
            "west/n1"
        );
    }

    #[test]
    fn node_ip_prefers_internal_then_external_addresses() {
        let mut node = node(&[
            (NodeAddressType::CiliumInternalIp, "10.1.0.1"),
            (NodeAddressType::ExternalIp, "198.51.100.1"),
            (NodeAddressType::ExternalIp, "198.51.100.2"),
            (NodeAddressType::InternalIp, "192.0.2.1"),
        ]);

        assert_eq!(node.node_ip(true), Some("192.0.2.1".parse().unwrap()));
        node.addresses.pop();
        assert_eq!(node.node_ip(true), Some("198.51.100.2".parse().unwrap()));
        node.addresses.truncate(1);
        assert_eq!(node.node_ip(true), None);
    }
}
