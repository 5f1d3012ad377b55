// SPDX-License-Identifier: Apache-2.0

//! Packets between pods and the network that pass the stack of the host, by `cilium_host` or by routes to the pods.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use crate::{
    network::{add_route, link},
    node::{self, Member, Setup, TCP, UDP, identity, node_address, outside, pod_address, router},
    traffic::{ping, tcp_call, tcp_serve, tcp_server, udp_call, udp_echo, udp_server},
    ways::no_drops,
};

const POLICY: u8 = 133;

/// Runs `work` with nodes whose programs leave packets to the kernel, without and with endpoint routes.
fn with_legacy_routing(is_routed: bool, work: impl Fn(&[Member; 2], bool) + Sync) {
    for has_endpoint_routes in [false, true] {
        let setup = Setup {
            is_underlay_ipv6: false,
            is_routed,
            change: &|options| {
                let packets = &mut options.packets;
                packets.legacy_routing = true;
                // Pods of all nodes.
                packets.native4 = Some(([10, 0, 0, 0].into(), 8));
                packets.native6 = Some(("fd00::".parse().unwrap(), 16));
            },
        };
        node::with_cluster("legacy", setup, |members| {
            if has_endpoint_routes {
                members.iter().for_each(Member::route_endpoint);
            }
            work(members, has_endpoint_routes);
        });
    }
}

/// How many packets of a family the kernels of both nodes forward meanwhile.
fn forwarded(members: &[Member; 2], is_ipv6: bool, work: impl FnOnce()) -> [u64; 2] {
    let counts = || [0, 1].map(|n: usize| members[n].forwarded(is_ipv6));
    let before = counts();
    work();
    let after = counts();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn pods_of_different_nodes_reach_each_other_by_the_stack() {
    with_legacy_routing(true, |members, _| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let to = pod_address(2, is_ipv6);
            let size = 1 << 18;
            let count = forwarded(members, is_ipv6, || one.pod.run(|| ping(to, 56)).unwrap());
            // A request and a reply.
            assert!(count.iter().all(|count| *count >= 2), "{to}: {count:?}");

            let server = tcp_server(&two.pod, (to, 80).into());
            one.pod.run(|| tcp_call((to, 80).into(), size)).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), pod_address(1, is_ipv6));
            let server = udp_server(&two.pod, (to, 53).into());
            // Fragmented by the pod.
            one.pod.run(|| udp_call((to, 53).into(), 4000)).unwrap();
            server.join().unwrap().unwrap();
        }
        no_drops(members);
    });
}

#[test]
fn without_the_option_the_stack_sees_no_packets_of_pods() {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: true,
        change: &|_| {},
    };
    node::with_cluster("bypass", setup, |members| {
        for is_ipv6 in [false, true] {
            let to = pod_address(2, is_ipv6);
            let count = forwarded(members, is_ipv6, || members[0].pod.run(|| ping(to, 56)).unwrap());
            assert_eq!(count, [0, 0], "{to}");
        }
    });
}

#[test]
fn policies_see_who_sent_what_the_stack_brings() {
    with_legacy_routing(true, |members, _| {
        let [one, two] = members;
        two.allow_only(&[identity(1)]);
        for is_ipv6 in [false, true] {
            one.pod.run(|| ping(pod_address(2, is_ipv6), 56)).unwrap();
        }
        no_drops(members);

        two.forbid(identity(1));
        for is_ipv6 in [false, true] {
            let at = SocketAddr::from((pod_address(2, is_ipv6), 80));
            drop(tcp_server(&two.pod, at));
            one.pod.run(|| tcp_call(at, 1)).unwrap_err();
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
fn pods_are_masqueraded_on_their_way_through_the_stack() {
    with_legacy_routing(true, |members, _| {
        let [one, _] = members;
        for is_ipv6 in [false, true] {
            let (client, source) = (outside(2, is_ipv6), node_address(1, is_ipv6));
            let bits = if is_ipv6 { 128 } else { 32 };
            add_route(link("client").0, source, bits, Some(outside(1, is_ipv6)), None);
            let listener = TcpListener::bind((client, 8081)).unwrap();
            let at = listener.local_addr().unwrap();
            let server = tcp_serve(listener);
            let count = forwarded(members, is_ipv6, || {
                one.pod.run(|| tcp_call(at, 1 << 16)).unwrap()
            });
            assert_eq!(server.join().unwrap().unwrap().ip(), source);
            assert!(count[0] > 5, "both ways of a connection: {count:?}");
        }
        no_drops(members);
    });
}

#[test]
fn the_node_and_its_pod_reach_each_other() {
    with_legacy_routing(true, |members, _| {
        let [one, _] = members;
        for is_ipv6 in [false, true] {
            let pod = SocketAddr::from((pod_address(1, is_ipv6), 80));
            let server = tcp_server(&one.pod, pod);
            one.netns.run(|| tcp_call(pod, 1 << 16)).unwrap();
            server.join().unwrap().unwrap();
            let host = SocketAddr::from((router(1, is_ipv6), 81));
            let server = tcp_server(&one.netns, host);
            one.pod.run(|| tcp_call(host, 1 << 16)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), pod.ip());
        }
        no_drops(members);
    });
}

#[test]
fn node_ports_reach_pods_of_the_node_by_the_stack_and_of_others_without() {
    with_legacy_routing(true, |members, _| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            for (member, source) in [(one, outside(2, is_ipv6)), (two, node_address(1, is_ipv6))] {
                let backend = SocketAddr::from((pod_address(member.n, is_ipv6), 80));
                one.serve(frontend, TCP, backend);
                let server = tcp_server(&member.pod, backend);
                let count = forwarded(members, is_ipv6, || tcp_call(frontend, 1 << 16).unwrap());
                assert_eq!(server.join().unwrap().unwrap().ip(), source, "{backend}");
                assert_eq!(count[0] > 5, member.n == 1, "{backend}: {count:?}");
                assert_eq!(count[1] > 5, member.n == 2, "{backend}: {count:?}");

                one.serve(frontend, UDP, backend);
                let server = udp_server(&member.pod, backend);
                udp_call(frontend, 1000).unwrap();
                assert_eq!(server.join().unwrap().unwrap().ip(), source, "{backend}");
            }
        }
        no_drops(members);
    });
}

#[test]
fn answers_come_from_whom_the_client_asked() {
    with_legacy_routing(true, |members, _| {
        let [one, _] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(1, is_ipv6), 80));
            let bits = if is_ipv6 { 128 } else { 32 };
            add_route(
                link("client").0,
                backend.ip(),
                bits,
                Some(outside(1, is_ipv6)),
                None,
            );
            one.serve(frontend, UDP, backend);
            let server = udp_echo(&one.pod, backend);
            let client = UdpSocket::bind((outside(2, is_ipv6), 40_000)).unwrap();
            client
                .set_read_timeout(Some(std::time::Duration::from_secs(5)))
                .unwrap();

            // The same flow by the node port and straight to the pod.
            for to in [frontend, frontend, backend, backend, frontend] {
                client.send_to(b"?", to).unwrap();
                let (_, from) = client.recv_from(&mut [0; 8]).unwrap();
                assert_eq!(from, to);
            }
            server.join().unwrap().unwrap();
        }
        no_drops(members);
    });
}

#[test]
fn a_pod_reaches_services_and_itself() {
    with_legacy_routing(true, |members, _| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let address: IpAddr = if is_ipv6 { "2001:db8:80::1" } else { "203.0.113.80" }
                .parse()
                .unwrap();
            let service = SocketAddr::from((address, 80));
            for member in [one, two] {
                let backend = SocketAddr::from((pod_address(member.n, is_ipv6), 8080));
                one.serve(service, TCP, backend);
                let server = tcp_server(&member.pod, backend);
                one.pod.run(|| tcp_call(service, 1 << 16)).unwrap();
                let source = server.join().unwrap().unwrap().ip();
                assert_eq!(source == pod_address(1, is_ipv6), member.n == 2, "{source}");
            }
        }
        no_drops(members);
    });
}

#[test]
fn what_comes_by_the_tunnel_reaches_pods() {
    with_legacy_routing(false, |members, _| {
        let [one, two] = members;
        // The pod, and clients outside: a node port is the other node's.
        two.allow_only(&[identity(1), 2, 6, 9, 10]);
        for is_ipv6 in [false, true] {
            let to = SocketAddr::from((pod_address(2, is_ipv6), 80));
            let server = tcp_server(&two.pod, to);
            one.pod.run(|| tcp_call(to, 1 << 18)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), pod_address(1, is_ipv6));

            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            one.serve(frontend, TCP, to);
            let server = tcp_server(&two.pod, to);
            tcp_call(frontend, 1 << 18).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), router(1, is_ipv6));
        }
        no_drops(members);

        two.forbid(identity(1));
        let at = SocketAddr::from((pod_address(2, false), 81));
        let _server = tcp_server(&two.pod, at);
        one.pod.run(|| tcp_call(at, 1)).unwrap_err();
    });
}
