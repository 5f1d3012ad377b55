// SPDX-License-Identifier: Apache-2.0

//! Where packets go, and with which identity.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use skep_bpf_maps::node::{IpcacheValue, ipcache_flags};

use crate::{
    node::{self, Member, Setup, TCP, UDP, identity, node_address, outside, pod_address, router},
    traffic::{Outer, Tap, ping, tcp_call, tcp_server, udp_call, udp_server},
};

const IDENTITY_REMOTE_NODE: u32 = 6;
const IDENTITY_WORLD: u32 = 2;
const POLICY: u8 = 133;
const ENCAPSULATION: u8 = 170;

fn with_cluster(is_underlay_ipv6: bool, work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6,
        is_routed: false,
        change: &|_| {},
    };
    node::with_cluster("tunnel", setup, work);
}

/// A packet from one node to another with this tunnel id.
fn between(from: u8, to: u8, vni: u32, is_underlay_ipv6: bool) -> Outer {
    Outer {
        source: node_address(from, is_underlay_ipv6),
        destination: node_address(to, is_underlay_ipv6),
        vni,
    }
}

/// Kernels send MLD reports and detect duplicates of their link-local addresses: pods from addresses that are not the
/// endpoint's, the node at `cilium_host` and at the tunnel, where no program handles them.
const OF_KERNELS: [u8; 4] = [132, 147, 150, 151];

#[track_caller]
pub(crate) fn no_drops(members: &[Member]) {
    for member in members {
        let mut drops = member.drops();
        drops.retain(|(reason, _)| !OF_KERNELS.contains(reason));
        assert_eq!(drops, [], "node {}", member.n);
    }
}

#[test]
fn pods_reach_each_other_with_their_identity_as_tunnel_id() {
    for is_underlay_ipv6 in [false, true] {
        with_cluster(is_underlay_ipv6, |members| {
            let [one, two] = members;
            for is_ipv6 in [false, true] {
                let tap = Tap::new(&two.netns);
                let to = pod_address(2, is_ipv6);
                one.pod.run(|| ping(to, 56)).unwrap();
                let seen = tap.outer();

                let expected = [
                    between(1, 2, identity(1), is_underlay_ipv6),
                    between(2, 1, identity(2), is_underlay_ipv6),
                ];
                assert_eq!(seen, expected, "{to}");

                one.pod.run(|| ping(to, 1300)).unwrap();
                // Larger than what the network carries in one packet.
                let server = udp_server(&two.pod, (to, 53).into());
                one.pod.run(|| udp_call((to, 53).into(), 4000)).unwrap();
                let from = server.join().unwrap().unwrap();
                assert_eq!(from.ip(), pod_address(1, is_ipv6));

                let server = tcp_server(&two.pod, (to, 80).into());
                one.pod.run(|| tcp_call((to, 80).into(), 1 << 20)).unwrap();
                let from = server.join().unwrap().unwrap();
                assert_eq!(from.ip(), pod_address(1, is_ipv6));
            }
            no_drops(members);
        });
    }
}

#[test]
fn policies_see_the_identity_of_the_tunnel() {
    with_cluster(false, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            two.allow_only(&[identity(1)]);
            one.pod.run(|| ping(pod_address(2, is_ipv6), 56)).unwrap();
        }
        no_drops(members);

        two.allow_only(&[]);
        two.forbid(identity(1));
        for is_ipv6 in [false, true] {
            let server = tcp_server(&two.pod, (pod_address(2, is_ipv6), 80).into());
            let called = one.pod.run(|| tcp_call((pod_address(2, is_ipv6), 80).into(), 1));
            called.unwrap_err();
            drop(server);
        }
        let drops = two.drops();
        assert!(
            drops
                .iter()
                .any(|(reason, count)| *reason == POLICY && *count >= 2),
            "{drops:?}"
        );
    });
}

#[test]
fn the_node_reaches_pods_and_nodes_by_the_tunnel() {
    with_cluster(false, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let tap = Tap::new(&two.netns);
            let to = pod_address(2, is_ipv6);
            let server = tcp_server(&two.pod, (to, 80).into());
            one.netns.run(|| tcp_call((to, 80).into(), 1 << 16)).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), router(1, is_ipv6));
            let expected = [
                between(1, 2, IDENTITY_REMOTE_NODE, false),
                between(2, 1, identity(2), false),
            ];
            assert_eq!(tap.outer(), expected);

            // A process of the other node, at the address that has no other way.
            let server = udp_server(&two.netns, (router(2, is_ipv6), 53).into());
            one.pod
                .run(|| udp_call((router(2, is_ipv6), 53).into(), 100))
                .unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), pod_address(1, is_ipv6));
            one.netns.run(|| ping(router(2, is_ipv6), 56)).unwrap();
        }
        no_drops(members);
    });
}

#[test]
fn node_ports_reach_backends_on_other_nodes_by_the_tunnel() {
    with_cluster(false, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            one.serve(frontend, TCP, backend);
            let tap = Tap::new(&two.netns);
            let server = tcp_server(&two.pod, backend);
            tcp_call(frontend, 1 << 18).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), router(1, is_ipv6), "as if the first node called");
            let expected = [
                between(1, 2, IDENTITY_WORLD, false),
                between(2, 1, identity(2), false),
            ];
            assert_eq!(tap.outer(), expected);

            one.serve(frontend, UDP, backend);
            let server = udp_server(&two.pod, backend);
            udp_call(frontend, 3000).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), router(1, is_ipv6));
        }
        no_drops(members);
    });
}

#[test]
fn node_ports_at_xdp_reach_backends_on_other_nodes_by_the_tunnel() {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: false,
        change: &|options| options.packets.xdp = true,
    };
    node::with_cluster("tunnel", setup, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            one.serve(frontend, UDP, backend);
            let tap = Tap::new(&two.netns);
            let server = udp_server(&two.pod, backend);
            udp_call(frontend, 1000).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), router(1, is_ipv6));
            let expected = [
                between(1, 2, IDENTITY_WORLD, false),
                between(2, 1, identity(2), false),
            ];
            assert_eq!(tap.outer(), expected);

            // The neighbours are known now.
            let tap = Tap::new(&one.netns);
            let server = udp_server(&two.pod, backend);
            udp_call(frontend, 1000).unwrap();
            server.join().unwrap().unwrap();
            assert_eq!(tap.datagrams_to(frontend.port()), 0, "nothing gets past XDP");

            one.serve(frontend, TCP, backend);
            let server = tcp_server(&two.pod, backend);
            tcp_call(frontend, 1 << 18).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), router(1, is_ipv6), "as if the first node called");
        }
        no_drops(members);
    });
}

#[test]
fn node_ports_serve_clients_behind_the_tunnel() {
    with_cluster(false, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            // A pod of the second node calls the first one at an address that it reaches by the tunnel.
            let frontend = SocketAddr::from((router(1, is_ipv6), 30_081));
            let backend = SocketAddr::from((pod_address(1, is_ipv6), 80));
            one.serve(frontend, TCP, backend);
            let server = tcp_server(&one.pod, backend);
            two.pod.run(|| tcp_call(frontend, 1 << 16)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), pod_address(2, is_ipv6));

            // The backend is where the client is.
            let frontend = SocketAddr::from((router(1, is_ipv6), 30_082));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            one.serve(frontend, TCP, backend);
            let server = tcp_server(&two.pod, backend);
            two.pod.run(|| tcp_call(frontend, 1 << 16)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), router(1, is_ipv6));
        }
        no_drops(members);
    });
}

#[test]
fn pods_reach_other_nodes_with_the_address_of_their_own() {
    with_cluster(false, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let at = SocketAddr::from((node_address(2, is_ipv6), 7000));
            let server = tcp_server(&two.netns, at);
            let tap = Tap::new(&two.netns);
            one.pod.run(|| tcp_call(at, 1000)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), node_address(1, is_ipv6));
            assert_eq!(tap.outer(), [], "nodes reach each other without the tunnel");
        }
        no_drops(members);
    });
}

#[test]
fn addresses_that_skip_the_tunnel_are_routed() {
    with_cluster(false, |[one, two]| {
        let to = pod_address(2, false);
        let mut value = IpcacheValue::new(identity(2)).with_tunnel_endpoint(node_address(2, false));
        value.flags |= ipcache_flags::SKIP_TUNNEL;
        one.identify(to, value);
        let tap = Tap::new(&two.netns);

        // Nodes have no such route.
        one.pod.run(|| udp_call((to, 53).into(), 10)).unwrap_err();

        assert_eq!(tap.outer(), []);
    });
}

#[test]
fn pods_cannot_send_packets_of_the_tunnel() {
    with_cluster(false, |[one, two]| {
        for to in [pod_address(2, false), node_address(2, true)] {
            one.pod.run(|| udp_call((to, node::PORT).into(), 10)).unwrap_err();
        }
        let drops = one.drops();
        assert!(
            drops
                .iter()
                .any(|(reason, count)| *reason == ENCAPSULATION && *count >= 2),
            "{drops:?}"
        );
        no_drops(std::slice::from_ref(two));
    });
}

#[test]
fn ports_of_the_node_are_not_given_to_translated_packets() {
    with_cluster(false, |[one, two]| {
        let backend: SocketAddr = (pod_address(2, false), 80).into();
        let frontend: SocketAddr = (outside(1, false), 30_080).into();
        one.serve(frontend, UDP, backend);
        let server = udp_server(&two.pod, backend);
        // The node itself talks to the backend from the port that the client has, too.
        let own: IpAddr = router(1, false);
        let held = one.netns.run(|| UdpSocket::bind((own, 40_000)).unwrap());
        held.send_to(b"own", backend).unwrap();
        assert_eq!(server.join().unwrap().unwrap(), (own, 40_000).into());
        drop(held);

        let server = udp_server(&two.pod, backend);
        let client = UdpSocket::bind((outside(2, false), 40_000)).unwrap();
        client.send_to(b"client", frontend).unwrap();
        let from = server.join().unwrap().unwrap();
        assert_eq!(from.ip(), own);
        assert_ne!(from.port(), 40_000);
    });
}
