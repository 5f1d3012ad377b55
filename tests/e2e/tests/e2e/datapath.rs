// SPDX-License-Identifier: Apache-2.0

//! Services by packets, between pods of two nodes and from outside: natively routed and in a tunnel, both families, TCP and
//! UDP. Everything on the wire between the nodes is captured, and has right checksums.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Answer, Capture, Iperf, Place, TestLab, beyond_address, lab_options};
use skep_lab::{
    echo::Outcome,
    lab_options::{LabOptions, RoutingMode},
    plan::{self, BEYOND, OUTSIDE},
    session::{CallMode, at, client_pod, cluster_ips, dual_stack_service, echo_pod, node_port},
};

const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
/// MTU of a route between a client and the nodes.
const SMALL_MTU: &str = "1300";
/// Bytes that are sent and come back; many times the MTU, and more than a socket buffers.
const BULK: usize = 1_000_000;
const LARGE_DATAGRAM: usize = 4_000;
/// A datagram that fits into every link but the small one.
const DATAGRAM: usize = 1_400;
/// How often a service is called at most until both backends have answered.
const CALLS: usize = 64;
const IPERF_PORT: u16 = 5201;
/// Of TCP and UDP: a client of iperf3 uses one port for both.
const IPERF_NODE_PORT: u64 = 31_201;

/// Two nodes with a backend of the service `shop` on each, and clients in a pod and behind a router.
struct Setup {
    lab: TestLab,
    routing: RoutingMode,
    shop: Arc<Value>,
    sticky: Arc<Value>,
    perf: Arc<Value>,
}

impl Setup {
    async fn up(test: &str, routing: RoutingMode) -> Self {
        let lab_options = LabOptions {
            routing_mode: routing,
            ..lab_options(2, &[AT_PACKETS], None)
        };
        let lab = TestLab::up_with(test, lab_options).await;
        let mut perf = client_pod("perf", "c1-n2");
        perf["metadata"]["labels"] = json!({"app": "perf"});
        lab.create_all([
            client_pod("client", "c1-n1"),
            echo_pod("web-0", "shop", "c1-n1"),
            echo_pod("web-1", "shop", "c1-n2"),
            perf,
        ])
        .await;
        let shop = lab.create_shop(json!({"type": "NodePort"})).await;
        let sticky = json!({"type": "NodePort", "selector": {"app": "shop"}, "sessionAffinity": "ClientIP"});
        let sticky = lab.session.create(dual_stack_service("sticky", &sticky)).await;
        let ports = ["TCP", "UDP"]
            .map(|protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": IPERF_PORT, "nodePort": IPERF_NODE_PORT}));
        let perf = dual_stack_service("perf", &json!({"type": "NodePort", "ports": ports}));
        let perf = lab.session.create(perf).await;
        assert_eq!(node_port(perf.as_ref().unwrap(), "UDP"), IPERF_NODE_PORT);
        Self {
            routing,
            shop,
            sticky: sticky.unwrap(),
            perf: perf.unwrap(),
            lab,
        }
    }

    fn place(&self, name: &str) -> Place {
        self.lab.place(name)
    }

    /// Waits until both backends answer at every address, from pods and from outside, by both protocols.
    async fn wait_served(&self) {
        for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
            let all = |outcome: &Outcome| outcome.failed == 0 && outcome.servers.len() == 2;
            for ip in cluster_ips(&self.shop) {
                let to = at(&ip, 80);
                self.lab.call_until("default/client", &to, mode, 20, all).await;
            }
            for (_, address) in node_addresses() {
                let to = at(&address.to_string(), node_port(&self.shop, protocol));
                self.lab.call_until(BEYOND, &to, mode, 20, all).await;
            }
        }
    }

    /// Waits until all services are in the maps that packets from outside and from the client's pod meet.
    async fn wait_realized(&self) {
        for (node, addresses) in NODES.into_iter().zip(plan_nodes()) {
            let mut wanted = Vec::new();
            for service in [&self.sticky, &self.perf] {
                for protocol in ["TCP", "UDP"] {
                    let port = node_port(service, protocol);
                    let addresses = addresses.addresses().map(|(address, _)| address.to_string());
                    wanted.extend(addresses.map(|address| format!("{}/{protocol} (1)", at(&address, port))));
                }
            }
            self.lab
                .wait("services are realized", || async {
                    let list = self.lab.run(node, &["skep", "bpf", "lb", "list"]).await;
                    wanted.iter().all(|entry| list.contains(entry))
                })
                .await;
        }
    }

    /// Cluster IPs of `shop`, for calls from the client's pod, and its node ports on the first node, for calls from outside.
    fn ways(&self, protocol: &str) -> Vec<(Place, SocketAddr)> {
        let (client, beyond) = (self.place("default/client"), self.place(BEYOND));
        let port = u16::try_from(node_port(&self.shop, protocol)).unwrap();
        let inside = cluster_ips(&self.shop)
            .into_iter()
            .map(|ip| (client, SocketAddr::new(ip.parse().unwrap(), 80)));
        let outside = node_addresses()
            .into_iter()
            .filter(|(node, _)| *node == 0)
            .map(|(_, address)| (beyond, SocketAddr::new(address, port)));
        inside.chain(outside).collect()
    }

    /// Whether `node` sends packets to a backend on another one from this address.
    fn is_snat_source(&self, node: usize, address: IpAddr) -> bool {
        let node = &plan_nodes()[node];
        match self.routing {
            RoutingMode::Native | RoutingMode::Direct => {
                node.addresses().iter().any(|(own, _)| *own == address)
            }
            // So that the answer comes by the tunnel.
            RoutingMode::Tunnel => {
                let mut networks = node.pod_networks().into_iter();
                networks.any(|(network, length)| IpNet::new_assert(network, length).contains(&address))
            }
        }
    }

    /// Backends on the node that is called see the client, others the node.
    fn backends_see_the_right_client(&self) {
        let beyond = self.place(BEYOND);
        for protocol in ["TCP", "UDP"] {
            let port = u16::try_from(node_port(&self.shop, protocol)).unwrap();
            for (node, address) in node_addresses() {
                let to = SocketAddr::new(address, port);
                let answers = of_both_backends(|| match protocol {
                    "TCP" => beyond.call(to),
                    _ => beyond.call_udp(to, 10),
                });
                for (server, answer) in answers {
                    let is_local = server == format!("web-{node}");
                    let client = answer.client.ip();
                    let is_right = match is_local {
                        true => client == beyond_address(address.is_ipv4()),
                        false => self.is_snat_source(node, client),
                    };
                    assert!(is_right, "{protocol} {to}: {answer:?}");
                }
            }
        }
    }

    fn affinity_keeps_clients_with_their_backend(&self) {
        let port = u16::try_from(node_port(&self.sticky, "TCP")).unwrap();
        let mut ways: Vec<_> = cluster_ips(&self.sticky)
            .into_iter()
            .map(|ip| {
                (
                    self.place("default/client"),
                    SocketAddr::new(ip.parse().unwrap(), 80),
                )
            })
            .collect();
        for (_, address) in node_addresses() {
            ways.push((self.place(BEYOND), SocketAddr::new(address, port)));
        }
        for (from, to) in ways {
            let servers: Vec<String> = (0..20).map(|_| from.call(to).unwrap().server).collect();
            assert!(
                servers.iter().all(|server| *server == servers[0]),
                "{to}: {servers:?}"
            );
        }
    }

    /// TCP both ways, and datagrams, to both backends.
    fn transfers_complete(&self, datagram: usize) {
        for (from, to) in self.ways("TCP") {
            of_both_backends(|| from.transfer(to, BULK));
        }
        for (from, to) in self.ways("UDP") {
            of_both_backends(|| from.call_udp(to, datagram));
        }
    }

    async fn iperf3_runs(&self) {
        let server = Iperf::serve(&self.lab, "default/perf", IPERF_PORT).await;
        let bytes = 20_000_000;
        let inside = cluster_ips(&self.perf);
        let inside = inside
            .iter()
            .map(|ip| ("default/client", ip.clone(), u64::from(IPERF_PORT)));
        let outside = node_addresses().into_iter().filter(|(node, _)| *node == 0);
        let outside = outside.map(|(_, address)| (BEYOND, address.to_string(), IPERF_NODE_PORT));
        for (from, address, port) in inside.chain(outside) {
            let to = (address.as_str(), port);
            let arrived = server.tcp(&self.lab, from, to, bytes).await;
            // The server counts until it hears that all is sent, which may overtake the last of it.
            assert!(
                arrived > bytes / 2,
                "{arrived} bytes of {bytes} arrived at {to:?}"
            );
            let (packets, lost) = server.udp(&self.lab, from, to, bytes / 40).await;
            // Sockets lose some on a busy machine.
            assert!(
                packets > 400 && lost < packets / 2,
                "{lost} of {packets} lost to {to:?}"
            );
        }
    }

    /// The agents do not run for a while; packets pass all the same.
    async fn packets_pass_without_agents(&self) {
        for node in NODES {
            let agent = self.lab.agent(node).to_string();
            self.lab.run(node, &["kill", "-STOP", &agent]).await;
        }
        self.transfers_complete(DATAGRAM);
        for node in NODES {
            let agent = self.lab.agent(node).to_string();
            self.lab.run(node, &["kill", "-CONT", &agent]).await;
        }
    }

    /// As after a boot: no programs, maps, interfaces and files of the agent, and pods that start again.
    async fn a_node_starts_from_nothing(&self, node: &str) {
        let agent = self.lab.agent(node);
        // It must not make anything again meanwhile.
        self.lab.run(node, &["kill", "-STOP", &agent.to_string()]).await;
        let wipe = "find /sys/fs/bpf -mindepth 1 ! -name '*.debug' -delete; rm -rf /run/cilium/*; \
                    ip link delete cilium_host; ip link delete cilium_vxlan 2>/dev/null; true";
        self.lab.run(node, &["sh", "-c", wipe]).await;
        self.lab.run(node, &["kill", "-KILL", &agent.to_string()]).await;
        for pod in ["default/web-1", "default/perf"] {
            let process = self.place(pod).process().to_string();
            self.lab.run(node, &["kill", "-KILL", &process]).await;
        }
        self.lab.wait_agent(node, agent).await;
    }
}

/// The nodes as every lab of two has them.
fn plan_nodes() -> Vec<plan::Node> {
    plan::Lab::plan("x", 1, 2).unwrap().clusters.remove(0).nodes
}

/// Addresses of the nodes, with the node's index.
fn node_addresses() -> Vec<(usize, IpAddr)> {
    let nodes = plan_nodes();
    let nodes = nodes.iter().enumerate();
    nodes
        .flat_map(|(index, node)| node.addresses().map(|(address, _)| (index, address)))
        .collect()
}

/// Calls until both backends have answered; the answers of each, by name.
#[track_caller]
fn of_both_backends(call: impl Fn() -> std::io::Result<Answer>) -> BTreeMap<String, Answer> {
    let mut answers = BTreeMap::new();
    for _ in 0..CALLS {
        let answer = call().unwrap();
        answers.insert(answer.server.clone(), answer);
        if answers.len() == 2 {
            return answers;
        }
    }
    panic!("only one backend answered {CALLS} calls: {answers:?}");
}

/// Lowers the path MTU between the router and the client behind it.
async fn shrink_path_to_client(lab: &TestLab) {
    for (router, client, _) in plan::BEYOND_NETWORK {
        let (router, client) = (router.to_string(), client.to_string());
        let route = [
            "ip", "route", "replace", &client, "dev", BEYOND, "src", &router, "mtu", SMALL_MTU,
        ];
        lab.run(OUTSIDE, &route).await;
    }
}

/// Sends packets from the first node to pods of the second one through the router, with a lower path MTU.
async fn shrink_path_between_nodes(lab: &TestLab) {
    // Its errors come back to it: it is the router on the client's side, too.
    let accept = "echo 1 > /proc/sys/net/ipv4/conf/all/accept_local";
    lab.run(OUTSIDE, &["sh", "-c", accept]).await;
    let both = [
        ("-4", "10.1.2.0/24", "172.30.1.250", "172.30.1.2"),
        ("-6", "fd00:10:1:2::/64", "fd00:30:0:1::fa", "fd00:30:0:1::2"),
    ];
    for (family, pods, router, node) in both {
        let through = [
            "ip", family, "route", "replace", pods, "via", router, "dev", "eth0",
        ];
        lab.run("c1-n1", &through).await;
        let on = [
            "ip", family, "route", "replace", pods, "via", node, "dev", "lab0", "mtu", SMALL_MTU,
        ];
        lab.run(OUTSIDE, &on).await;
    }
}

async fn check(test: &str, routing: RoutingMode, kinds: &[&str]) {
    let setup = Setup::up(test, routing).await;
    let lab = &setup.lab;
    setup.wait_served().await;
    setup.wait_realized().await;
    let pods = ["client", "web-0", "web-1", "perf"].map(|pod| format!("default/{pod}"));
    let places: Vec<&str> = [OUTSIDE, BEYOND]
        .into_iter()
        .chain(NODES)
        .chain(pods.iter().map(String::as_str))
        .collect();
    lab.checksums_in_software(&places).await;
    let capture = Capture::start(lab.place(OUTSIDE)).unwrap();

    tokio::task::block_in_place(|| {
        setup.backends_see_the_right_client();
        setup.affinity_keeps_clients_with_their_backend();
        setup.transfers_complete(LARGE_DATAGRAM);
    });
    setup.iperf3_runs().await;
    setup.packets_pass_without_agents().await;
    shrink_path_to_client(lab).await;
    if routing == RoutingMode::Native {
        shrink_path_between_nodes(lab).await;
    }
    tokio::task::block_in_place(|| setup.transfers_complete(DATAGRAM));

    capture.finish().unwrap().assert_right(kinds);
    setup.a_node_starts_from_nothing("c1-n2").await;
    setup.wait_served().await;
    tokio::task::block_in_place(|| setup.backends_see_the_right_client());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_work_at_packets_with_native_routing() {
    let kinds = [
        "IPv4 TCP",
        "IPv4 UDP",
        "IPv4 fragment",
        "IPv4 too large",
        "IPv6 TCP",
        "IPv6 UDP",
        "IPv6 fragment",
        "IPv6 too large",
    ];
    check("native", RoutingMode::Native, &kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_work_at_packets_with_a_tunnel() {
    let kinds = [
        "IPv4 TCP",
        "IPv4 too large",
        "IPv6 TCP",
        "IPv6 too large",
        "VXLAN IPv4 TCP",
        "VXLAN IPv4 UDP",
        "VXLAN IPv4 fragment",
        "VXLAN IPv6 TCP",
        "VXLAN IPv6 UDP",
        "VXLAN IPv6 fragment",
    ];
    check("tunnel", RoutingMode::Tunnel, &kinds).await;
}
