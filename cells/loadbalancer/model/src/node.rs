// SPDX-License-Identifier: Apache-2.0

//! What the writer knows of this node: a row of table `node-facts`, and where its parts are read.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use compact_str::CompactString;
use statedb::Snapshot;

/// Addresses of the node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// All of them.
    pub all: HashSet<IpAddr>,
    /// IPv4 addresses that answer node ports, in table order.
    pub node_port_v4: Vec<IpAddr>,
    /// IPv6 addresses that answer node ports, in table order.
    pub node_port_v6: Vec<IpAddr>,
}

impl Addresses {
    /// Those that answer node ports, of one family.
    pub fn node_ports(&self, ipv6: bool) -> &[IpAddr] {
        match ipv6 {
            true => &self.node_port_v6,
            false => &self.node_port_v4,
        }
    }

    /// Whether an address answers node ports.
    pub fn answers_node_ports(&self, ip: IpAddr) -> bool {
        self.node_ports(ip.is_ipv6()).contains(&ip)
    }
}

impl FromIterator<(IpAddr, bool)> for Addresses {
    /// Collects addresses, each with whether it answers node ports, in table order.
    fn from_iter<I: IntoIterator<Item = (IpAddr, bool)>>(iter: I) -> Self {
        let mut addresses = Self::default();
        for (ip, is_node_port) in iter {
            let node_ports = match ip {
                IpAddr::V4(_) => &mut addresses.node_port_v4,
                IpAddr::V6(_) => &mut addresses.node_port_v6,
            };
            if is_node_port && !node_ports.contains(&ip) {
                node_ports.push(ip);
            }
            addresses.all.insert(ip);
        }
        addresses
    }
}

/// What the writer must know of this node. The row of table `node-facts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: Arc<str>,
    /// Its zone (label `topology.kubernetes.io/zone`), if it has one.
    pub zone: Option<CompactString>,
    /// Its addresses.
    pub addresses: Arc<Addresses>,
}

/// Frontends that depend on the addresses of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressUse {
    /// Node ports, and host ports of every address: expanded to those that answer node ports.
    NodePorts,
    /// Cluster IPs and load balancers: no wildcard entry for an address of the node.
    Wildcards,
}

/// Where name and addresses of the node are read.
pub trait NodeAddresses: Send + Sync {
    /// Name of the node; empty if it is not known.
    fn name(&self) -> Arc<str> {
        "".into()
    }

    /// The addresses in a snapshot; the same value as long as they are the same. `None`: nothing is known of them.
    fn addresses(&self, snapshot: &Snapshot) -> Option<Arc<Addresses>>;
}

/// A node of which nothing is known but what [`Writer::set_node`](crate::Writer::set_node) is called with.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAddresses;

impl NodeAddresses for NoAddresses {
    fn addresses(&self, _snapshot: &Snapshot) -> Option<Arc<Addresses>> {
        None
    }
}
