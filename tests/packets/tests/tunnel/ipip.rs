// SPDX-License-Identifier: Apache-2.0

//! Direct server return by IP in IP, from the client's node to that of the backend and straight back.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd as _,
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketType, connect, socket,
    sockopt::{Timeout, set_socket_timeout},
};
use skep_bpf_programs::{DirectReturn, DsrDispatch};

use crate::{
    node::{self, Member, Setup, TCP, UDP, node_address, outside, pod_address},
    traffic::{tcp_call, tcp_server, udp_call, udp_server},
    ways::no_drops,
};

fn with_cluster(work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: true,
        change: &|options| {
            options.packets.ipip_termination = true;
            options.packets.health_probes = true;
            options.packets.dsr = Some(DirectReturn {
                dispatch: DsrDispatch::Ipip {
                    source4: None,
                    source6: None,
                },
                all_services: true,
                icmp_errors: true,
            });
        },
    };
    node::with_cluster("ipip", setup, work);
}

#[test]
fn backends_of_other_nodes_see_clients_and_answer_them_without_a_tunnel_device() {
    with_cluster(|members| {
        let [_, two] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            for member in members {
                member.serve(frontend, TCP, backend);
            }
            let server = tcp_server(&two.pod, backend);
            tcp_call(frontend, 1 << 20).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), outside(2, is_ipv6), "the client's own address");

            for member in members {
                member.serve(frontend, UDP, backend);
            }
            let server = udp_server(&two.pod, backend);
            udp_call(frontend, 1000).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), outside(2, is_ipv6));
        }
        no_drops(members);
    });
}

/// Sends to a service from a socket that probes one of its backends, and reads as much back.
fn probe(from: &Member, service: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    const SIZE: usize = 100_000;

    let family = match service {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let made = socket(family, SocketType::STREAM, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&made, timeout, Some(Duration::from_secs(5)))?;
    }
    from.probe(made.as_fd(), backend);
    connect(&made, &service)?;
    let mut stream = TcpStream::from(made);
    stream.write_all(&vec![7; SIZE])?;
    stream.shutdown(Shutdown::Write)?;
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    assert_eq!(back.len(), SIZE);
    Ok(())
}

#[test]
fn probes_reach_the_backend_that_they_are_for() {
    with_cluster(|members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let address: IpAddr = match is_ipv6 {
                true => "2001:db8:80::1".parse().unwrap(),
                false => "203.0.113.80".parse().unwrap(),
            };
            let service = SocketAddr::from((address, 80));
            let backends = [1, 2].map(|n| SocketAddr::from((pod_address(n, is_ipv6), 80)));
            one.route_to_other(address);
            for member in members {
                member.serve_all(service, TCP, &backends);
            }
            for (member, backend) in members.iter().zip(backends) {
                let server = tcp_server(&member.pod, backend);
                one.netns.run(|| probe(one, service, backend)).unwrap();
                let from = server.join().unwrap().unwrap();
                assert_eq!(
                    from.ip(),
                    node_address(1, is_ipv6),
                    "backend of node {}",
                    member.n
                );
            }
        }
        no_drops(std::slice::from_ref(two));
    });
}
