// SPDX-License-Identifier: Apache-2.0

//! A node with two pods, a client and a backend outside of it, each in a network namespace.
//!
//! ```text
//! pod client ─ lxc1 ┐      ┌ eth0 ─ client ┐
//!                   ├ node ┤               ├ the way back of direct return
//! pod server ─ lxc2 ┘      └ eth1 ─ backend┘
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use skep_bpf_sys::testing::{Node, Pod};
use skep_endpoint::EndpointSpec;

use crate::datapath::{identify, ip, set};

/// Address of the node for clients.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the node for backends.
pub(super) const NODE_INSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
pub(super) const CLIENT_POD: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 11);
/// Addresses of pods of the node.
pub(super) const POD_NETWORK: &str = "10.0.1.0/24";
const BACKENDS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Port of the first service's server. Each has its own: flows of two services with one backend would conflict where a
/// client uses the same port for both.
const FIRST_PORT: u16 = 40_000;
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// A frontend and its one backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) frontend: SocketAddr,
    pub(super) backend: SocketAddr,
}

/// A service whose ClusterIP leads to a pod, and whose node port, while the range has one, leads to another node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    pub(super) cluster_ip: Target,
    pub(super) node_port: Option<Target>,
}

impl Service {
    pub(super) fn new(n: u16) -> Self {
        let [high, low] = n.to_be_bytes();
        let (node_port, port) = (NODE_PORTS.start() + n, FIRST_PORT + n);
        Self {
            cluster_ip: Target {
                frontend: (Ipv4Addr::new(10, 96, high, low), 80).into(),
                backend: (pod_address(2), port).into(),
            },
            node_port: NODE_PORTS.contains(&node_port).then(|| Target {
                frontend: (NODE, node_port).into(),
                backend: (BACKENDS, port).into(),
            }),
        }
    }
}

pub(super) struct Network {
    pub(super) node: Pod,
    pub(super) client: Pod,
    pub(super) backend: Pod,
    pub(super) client_pod: Pod,
    server_pod: Pod,
}

impl Network {
    /// Makes one whose name is its own, with routes between all of it; pods have none on the node yet.
    pub(super) fn new(world: &Node, name: &str) -> anyhow::Result<Self> {
        let space = |part: &str| world.pod(&format!("{name}-{part}"));
        let network = Self {
            node: space("node")?,
            client: space("client")?,
            backend: space("backend")?,
            client_pod: space("pod1")?,
            server_pod: space("pod2")?,
        };
        let at = |pod: &Pod| pod.path().display().to_string();
        let (client, backend) = (at(&network.client), at(&network.backend));
        network.node.run(|| {
            settings()?;
            ip(&format!(
                "link add eth0 type veth peer name eth0 netns {client}
                 link add eth1 type veth peer name eth0 netns {backend}
                 addr add {NODE}/24 dev eth0
                 addr add {NODE_INSIDE}/24 dev eth1
                 link set eth0 up
                 link set eth1 up"
            ))
        })?;
        network.client.run(|| {
            settings()?;
            ip(&format!(
                "link add eth1 type veth peer name eth1 netns {backend}
                 addr add {CLIENT}/24 dev eth0
                 link set eth0 up
                 link set eth1 up
                 route add default via {NODE}"
            ))
        })?;
        network.backend.run(|| {
            settings()?;
            ip(&format!(
                "addr add {BACKENDS}/24 dev eth0
                 link set eth0 up
                 link set eth1 up
                 route add default via {NODE_INSIDE}"
            ))
        })?;
        for (n, pod) in [(1, &network.client_pod), (2, &network.server_pod)] {
            let path = at(pod);
            network.node.run(|| {
                ip(&format!(
                    "link add lxc{n} type veth peer name eth0 netns {path}
                     link set lxc{n} up"
                ))
            })?;
            pod.run(|| {
                settings()?;
                ip(&format!(
                    "addr add {}/32 dev eth0
                     link set eth0 up
                     route add {GATEWAY}/32 dev eth0 scope link
                     route add default via {GATEWAY}",
                    pod_address(n)
                ))
            })?;
        }
        Ok(network)
    }

    /// The node is the gateway of pods, and routes to them.
    pub(super) fn route_pods(&self) -> anyhow::Result<()> {
        self.node.run(|| {
            ip(&format!(
                "addr add {GATEWAY}/32 dev lo
                 route add {}/32 dev lxc1
                 route add {}/32 dev lxc2",
                pod_address(1),
                pod_address(2)
            ))
        })
    }

    /// Answers of the backend go to the client without the node.
    pub(super) fn answer_directly(&self) -> anyhow::Result<()> {
        self.backend
            .run(|| ip(&format!("route add {CLIENT}/32 dev eth1 src {BACKENDS}")))
    }

    /// The pods, as a CNI plugin reports them.
    pub(super) fn endpoints(&self) -> anyhow::Result<[EndpointSpec; 2]> {
        let endpoint = |n: u8, pod: &Pod| {
            let (ifindex, host_mac) = self.node.run(|| identify(&format!("lxc{n}")))?;
            anyhow::Ok(EndpointSpec {
                container_id: format!("pod{n}"),
                container_interface: "eth0".to_owned(),
                interface: format!("lxc{n}"),
                ifindex,
                ipv4: Some(pod_address(n)),
                host_mac,
                mac: pod.run(|| identify("eth0"))?.1,
                ..EndpointSpec::default()
            })
        };
        Ok([endpoint(1, &self.client_pod)?, endpoint(2, &self.server_pod)?])
    }

    pub(super) fn server(&self, at: SocketAddr) -> std::io::Result<TcpListener> {
        let netns = if at.ip() == IpAddr::V4(BACKENDS) {
            &self.backend
        } else {
            &self.server_pod
        };
        netns.run(|| TcpListener::bind(at))
    }
}

fn pod_address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, 10 + n)
}

/// Of the namespace of the calling thread.
fn settings() -> anyhow::Result<()> {
    set("ipv4/conf/all/forwarding", "1")?;
    set("ipv4/ip_local_port_range", "1024 65535")?;
    for scope in ["all", "default"] {
        set(&format!("ipv4/conf/{scope}/rp_filter"), "0")?;
        set(&format!("ipv6/conf/{scope}/disable_ipv6"), "1")?;
    }
    Ok(())
}
