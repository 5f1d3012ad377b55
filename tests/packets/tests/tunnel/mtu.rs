// SPDX-License-Identifier: Apache-2.0

//! Ways that carry smaller packets than clients and backends think.

use std::net::{IpAddr, SocketAddr};

use crate::{
    network::{add_route_with, fixed_mtu, link},
    node::{self, Member, Setup, TCP, UDP, node_address, outside, pod_address},
    traffic::{tcp_call, tcp_server, udp_call, udp_echo},
    ways::no_drops,
};

const NARROW: u32 = 1300;
const LARGE: usize = 1350;

fn with_cluster(work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: true,
        change: &|_| {},
    };
    node::with_cluster("mtu", setup, |members| {
        work(members);
        no_drops(members);
    });
}

/// Narrows the way from a node to an address.
fn narrow(from: &Member, interface: &str, to: IpAddr, gateway: Option<IpAddr>) {
    from.netns.run(|| {
        let bits = if to.is_ipv6() { 128 } else { 32 };
        let (interface, _) = link(interface);
        add_route_with(interface, (to, bits), gateway, [fixed_mtu(NARROW)]);
    });
}

/// The first datagram is lost, and the error that it caused is the socket's. What comes next is fragmented.
#[track_caller]
pub(crate) fn call_twice(to: SocketAddr) {
    let told = udp_call(to, LARGE).unwrap_err();
    assert_eq!(
        told.raw_os_error(),
        Some(rustix::io::Errno::MSGSIZE.raw_os_error()),
        "{told}"
    );
    udp_call(to, LARGE).unwrap();
}

/// A backend on the second node, behind a narrow way from the first one, is called at this address of the first one.
/// `client` calls from where the client is.
fn reach_backend(members: &[Member; 2], to: SocketAddr, client: impl Fn(&(dyn Fn() + Sync))) {
    let [one, two] = members;
    let is_ipv6 = to.is_ipv6();
    let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
    narrow(one, "under1", backend.ip(), Some(node_address(2, is_ipv6)));

    one.serve(to, UDP, backend);
    let server = udp_echo(&two.pod, backend);
    client(&|| call_twice(to));
    server.join().unwrap().unwrap();

    one.serve(to, TCP, backend);
    let server = tcp_server(&two.pod, backend);
    client(&|| tcp_call(to, 1 << 18).unwrap());
    server.join().unwrap().unwrap();
}

#[test]
fn clients_outside_reach_backends_behind_a_narrow_way() {
    with_cluster(|members| {
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            reach_backend(members, frontend, |call| call());
        }
    });
}

#[test]
fn pods_reach_backends_behind_a_narrow_way() {
    with_cluster(|members| {
        for is_ipv6 in [false, true] {
            let service = SocketAddr::from((outside(99, is_ipv6), 80));
            reach_backend(members, service, |call| members[0].pod.run(call));
        }
    });
}

#[test]
fn backends_reach_clients_behind_a_narrow_way() {
    with_cluster(|members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            narrow(one, "outside", outside(2, is_ipv6), None);

            one.serve(frontend, UDP, backend);
            let server = udp_echo(&two.pod, backend);
            udp_call(frontend, LARGE).unwrap();
            let from = server.join().unwrap().unwrap();
            assert_eq!(from.ip(), node_address(1, is_ipv6));

            one.serve(frontend, TCP, backend);
            let server = tcp_server(&two.pod, backend);
            tcp_call(frontend, 1 << 18).unwrap();
            server.join().unwrap().unwrap();
        }
    });
}

#[test]
fn errors_go_back_by_the_tunnel() {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: false,
        change: &|_| {},
    };
    node::with_cluster("mtu", setup, |members| {
        let [one, two] = members;
        for is_ipv6 in [false, true] {
            // Behind the tunnel: the backend of a client outside, and a client of a service without backends.
            let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
            let backend = SocketAddr::from((pod_address(2, is_ipv6), 80));
            narrow(one, "outside", outside(2, is_ipv6), None);
            one.serve(frontend, UDP, backend);
            let server = udp_echo(&two.pod, backend);
            udp_call(frontend, LARGE).unwrap();
            server.join().unwrap().unwrap();

            let frontend = SocketAddr::from((node::router(1, is_ipv6), 30_081));
            one.serve_all(frontend, TCP, &[]);
            let refused = two.pod.run(|| tcp_call(frontend, 1)).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        }
    });
}
