// SPDX-License-Identifier: Apache-2.0

//! Clients and backends of different address families.

use std::net::{IpAddr, SocketAddr};

use skep_bpf_programs::Nat46x64;

use crate::{
    mtu::call_twice,
    node::{self, Member, NAT_MIN, PREFIX, Setup, TCP, UDP, node_address, outside, pod_address, router},
    traffic::{tcp_call, tcp_server, udp_call, udp_echo, udp_server},
    ways::no_drops,
};

fn with_cluster(is_routed: bool, mtu: u16, work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed,
        change: &|options| {
            options.packets.nat46x64 = Some(Nat46x64 {
                services: true,
                gateway: false,
                prefix: PREFIX,
                mtu,
            });
        },
    };
    node::with_cluster("families", setup, work);
}

#[test]
fn connections_and_datagrams_reach_backends_of_the_other_family_and_back() {
    for is_routed in [true, false] {
        with_cluster(is_routed, 1500, |members| {
            let [one, two] = members;
            for is_client_ipv6 in [false, true] {
                let is_ipv6 = !is_client_ipv6;
                let frontend = SocketAddr::from((outside(1, is_client_ipv6), 30_080));
                // Answers return to the node of the service.
                let source: IpAddr = match is_routed {
                    true => node_address(1, is_ipv6),
                    false => router(1, is_ipv6),
                };
                let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
                one.serve_other_family(frontend, TCP, backend);
                let server = tcp_server(&two.pod, backend);
                tcp_call(frontend, 1 << 20).unwrap();
                let from = server.join().unwrap().unwrap();
                assert_eq!(from.ip(), source, "{frontend}, routed: {is_routed}");
                assert!(from.port() >= NAT_MIN);

                one.serve_other_family(frontend, UDP, backend);
                let server = udp_server(&two.pod, backend);
                udp_call(frontend, 1000).unwrap();
                assert_eq!(server.join().unwrap().unwrap().ip(), source);

                // A backend of the node itself.
                let frontend = SocketAddr::from((outside(1, is_client_ipv6), 30_081));
                let backend = SocketAddr::from((pod_address(1, is_ipv6), 80));
                one.serve_other_family(frontend, TCP, backend);
                let server = tcp_server(&one.pod, backend);
                tcp_call(frontend, 1 << 20).unwrap();
                server.join().unwrap().unwrap();
            }
            no_drops(members);
        });
    }
}

#[test]
fn errors_go_back_by_the_tunnel() {
    // Smaller than what the tunnel carries, by more than packets grow.
    with_cluster(false, 1380, |members| {
        let [one, two] = members;
        let service = SocketAddr::from((router(1, false), 30_080));
        let backend = SocketAddr::from((pod_address(1, true), 80));
        one.serve_other_family(service, UDP, backend);
        let server = udp_echo(&one.pod, backend);
        two.pod.run(|| call_twice(service));
        server.join().unwrap().unwrap();

        let service = SocketAddr::from((router(1, false), 30_081));
        one.serve_none_of_other_family(service, TCP);
        let refused = two.pod.run(|| tcp_call(service, 1)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        no_drops(members);
    });
}
