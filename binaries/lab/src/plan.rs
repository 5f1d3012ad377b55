// SPDX-License-Identifier: Apache-2.0

//! Plan of a lab: names, addresses and paths, all derived from indexes.
//!
//! | thing | IPv4 | IPv6 |
//! |---|---|---|
//! | node `n` of cluster `c` | `172.30.c.n/16` | `fd00:30:0:c::n/48` |
//! | API server of cluster `c` | `172.30.c.250` | – |
//! | pods of that node | `10.c.n.0/24` | `fd00:10:c:n::/64` |
//! | services of cluster `c` | `10.(100+c).0.0/16` | `fd00:100:c::/112` |
//! | machine behind the router | `10.250.0.2/24` | `fd00:250::2/64` |

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Most clusters of one lab: the cluster index is one byte of an address, shared with service ranges.
pub const MAX_CLUSTERS: u8 = 16;
pub const MAX_NODES: u8 = 64;
/// Port of every API server on the lab's network.
pub const API_PORT: u16 = 6443;

/// Name of the place that is no node: the network between them.
pub const OUTSIDE: &str = "outside";
/// Name of the machine that reaches the nodes through the router [`OUTSIDE`].
pub const BEYOND: &str = "beyond";

/// The network behind the router, IPv4 and IPv6: the router's address, that of the machine, and the prefix length.
pub const BEYOND_NETWORK: [(IpAddr, IpAddr, u8); 2] = [
    (
        IpAddr::V4(Ipv4Addr::new(10, 250, 0, 1)),
        IpAddr::V4(Ipv4Addr::new(10, 250, 0, 2)),
        24,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x250, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x250, 0, 0, 0, 0, 0, 2)),
        64,
    ),
];

/// Why a lab cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Choose another name: it becomes that of a folder and a control group.
    #[error("lab name `{name}` must be 1 to 20 lower-case letters, digits or dashes")]
    Name { name: String },
    /// Choose a number up to the limit, at least 1.
    #[error("{what} must be between 1 and {most}, not {count}")]
    Count {
        /// `clusters` or `nodes`.
        what: &'static str,
        count: u8,
        most: u8,
    },
}

/// A lab: clusters of nodes on one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lab {
    pub name: String,
    /// The clusters, in order of their index.
    pub clusters: Vec<Cluster>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// `c1`, `c2`, ….
    pub name: String,
    /// From 1.
    pub index: u8,
    /// The nodes, in order of their index.
    pub nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `c1-n1`, ….
    pub name: String,
    pub cluster: u8,
    /// From 1.
    pub index: u8,
}

impl Lab {
    /// Plans a lab of `clusters` clusters with `nodes` nodes each.
    ///
    /// # Errors
    /// A name that cannot be a folder, or counts outside the address plan.
    pub fn plan(name: &str, clusters: u8, nodes: u8) -> Result<Self, PlanError> {
        let usable = !name.is_empty()
            && name.len() <= 20
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !usable {
            return Err(PlanError::Name {
                name: name.to_owned(),
            });
        }
        for (what, count, most) in [("clusters", clusters, MAX_CLUSTERS), ("nodes", nodes, MAX_NODES)] {
            if count == 0 || count > most {
                return Err(PlanError::Count { what, count, most });
            }
        }
        let clusters = (1..=clusters)
            .map(|cluster| Cluster {
                name: format!("c{cluster}"),
                index: cluster,
                nodes: (1..=nodes)
                    .map(|node| Node {
                        name: format!("c{cluster}-n{node}"),
                        cluster,
                        index: node,
                    })
                    .collect(),
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            clusters,
        })
    }

    /// Where the lab keeps its state, logs and kubeconfigs.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        folder_of(&self.name)
    }

    /// The lab's control group, below the root of the unified hierarchy.
    #[must_use]
    pub fn cgroup(&self) -> PathBuf {
        cgroup_of(&self.name)
    }

    /// The node called `name`, or the only node when `name` is its short form (`n1`) in a lab of one cluster.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        let mut nodes = self.clusters.iter().flat_map(|cluster| &cluster.nodes);
        nodes.find(|node| {
            node.name == name || (self.clusters.len() == 1 && format!("n{}", node.index) == name)
        })
    }

    /// The cluster called `name`.
    #[must_use]
    pub fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.name == name)
    }
}

/// Folder of the lab called `name`.
#[must_use]
pub fn folder_of(name: &str) -> PathBuf {
    PathBuf::from("/run/skep-lab").join(name)
}

/// Control group of the lab called `name`, relative to the root of the unified hierarchy.
#[must_use]
pub fn cgroup_of(name: &str) -> PathBuf {
    PathBuf::from("skep-lab").join(name)
}

impl Cluster {
    /// Address of the API server on the lab's network.
    #[must_use]
    pub fn api_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.index, 250)
    }

    /// Addresses of the machine outside of the nodes, which has the API server, each with its prefix length.
    #[must_use]
    pub fn outside_addresses(&self) -> [(IpAddr, u8); 2] {
        let v6 = Ipv6Addr::new(0xfd00, 0x30, 0, self.index.into(), 0, 0, 0, 0xfa);
        [(self.api_address().into(), 16), (v6.into(), 48)]
    }

    /// Range of cluster IPs, IPv4.
    #[must_use]
    pub fn service_range_v4(&self) -> (Ipv4Addr, u8) {
        (Ipv4Addr::new(10, 100 + self.index, 0, 0), 16)
    }

    /// Range of cluster IPs, IPv6.
    #[must_use]
    pub fn service_range_v6(&self) -> (Ipv6Addr, u8) {
        (
            Ipv6Addr::new(0xfd00, 0x100, self.index.into(), 0, 0, 0, 0, 0),
            112,
        )
    }
}

impl Node {
    /// Addresses of the node, IPv4 and IPv6, each with its prefix length.
    #[must_use]
    pub fn addresses(&self) -> [(IpAddr, u8); 2] {
        let v4 = Ipv4Addr::new(172, 30, self.cluster, self.index);
        let v6 = Ipv6Addr::new(0xfd00, 0x30, 0, self.cluster.into(), 0, 0, 0, self.index.into());
        [(v4.into(), 16), (v6.into(), 48)]
    }

    /// Networks of the node's pods, IPv4 and IPv6.
    #[must_use]
    pub fn pod_networks(&self) -> [(IpAddr, u8); 2] {
        let v4 = Ipv4Addr::new(10, self.cluster, self.index, 0);
        let v6 = Ipv6Addr::new(0xfd00, 0x10, self.cluster.into(), self.index.into(), 0, 0, 0, 0);
        [(v4.into(), 24), (v6.into(), 64)]
    }

    /// Addresses of the node's side of every pod's link; the pods' gateways.
    #[must_use]
    pub fn gateways(&self) -> [IpAddr; 2] {
        self.pod_networks().map(|(network, _)| offset(network, 1))
    }

    /// Addresses of the pod in `slot` (2 to 254).
    #[must_use]
    pub fn pod_addresses(&self, slot: u8) -> [IpAddr; 2] {
        self.pod_networks().map(|(network, _)| offset(network, slot))
    }
}

fn offset(network: IpAddr, by: u8) -> IpAddr {
    match network {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) + u32::from(by)).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) + u128::from(by)).into(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlace {
    /// Unique on the node; names control group, log and pin.
    pub id: String,
    /// Host name inside: the pod's name.
    pub hostname: String,
    pub namespace: String,
    pub uid: String,
    /// Number of its addresses, 2 to 254.
    pub slot: u8,
}

impl PodPlace {
    /// Name of its interface on the node.
    pub(crate) fn link(&self) -> String {
        format!("pod{}", self.slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn gives_every_node_and_pod_its_own_addresses() {
        let lab = Lab::plan("t", 3, 4).unwrap();
        let mut seen = HashSet::new();

        for node in lab.clusters.iter().flat_map(|cluster| &cluster.nodes) {
            for (address, _) in node.addresses() {
                assert!(seen.insert(address), "{address} twice");
            }
            for slot in [2, 254] {
                for address in node.pod_addresses(slot) {
                    assert!(seen.insert(address), "{address} twice");
                }
            }
        }

        assert_eq!(seen.len(), 3 * 4 * 6);
    }

    #[test]
    fn refuses_names_and_counts_outside_the_plan() {
        assert!(matches!(Lab::plan("../x", 1, 1), Err(PlanError::Name { .. })));
        assert!(matches!(
            Lab::plan("x", 0, 1),
            Err(PlanError::Count { what: "clusters", .. })
        ));
        assert!(matches!(
            Lab::plan("x", 1, MAX_NODES + 1),
            Err(PlanError::Count { what: "nodes", .. })
        ));
    }

    #[test]
    fn finds_nodes_by_short_name_only_in_a_lab_of_one_cluster() {
        assert_eq!(Lab::plan("x", 1, 2).unwrap().node("n2").unwrap().name, "c1-n2");
        assert!(Lab::plan("x", 2, 2).unwrap().node("n2").is_none());
        assert_eq!(Lab::plan("x", 2, 2).unwrap().node("c2-n2").unwrap().cluster, 2);
    }
}
