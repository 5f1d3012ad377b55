// SPDX-License-Identifier: Apache-2.0

//! A pod that reaches itself through a service.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{
    node::{self, Member, Setup, TCP, UDP, pod_address},
    traffic::{tcp_call, tcp_server, udp_call, udp_server},
    ways::no_drops,
};

const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 42, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
];

fn with_pod(work: impl Fn(&Member, SocketAddr, IpAddr) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: true,
        change: &|_| {},
    };
    node::with_cluster("itself", setup, move |members| {
        let [one, _] = members;
        for (is_ipv6, loopback) in [(false, LOOPBACK[0]), (true, LOOPBACK[1])] {
            let address: IpAddr = match is_ipv6 {
                true => "2001:db8:80::1".parse().unwrap(),
                false => "203.0.113.80".parse().unwrap(),
            };
            work(one, (address, 80).into(), loopback);
        }
        no_drops(members);
    });
}

fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[test]
fn connections_come_back() {
    with_pod(|one, service, loopback| {
        let own = pod_address(1, service.is_ipv6());
        for bound in [own, unspecified(service)] {
            one.serve(service, TCP, (own, 8080).into());
            let server = tcp_server(&one.pod, (bound, 8080).into());
            one.pod.run(|| tcp_call(service, 1 << 18)).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), loopback, "{service}");
        }
    });
}

#[test]
fn datagrams_come_back_from_servers_that_bind_an_address_and_that_bind_none() {
    with_pod(|one, service, loopback| {
        let own = pod_address(1, service.is_ipv6());
        for bound in [own, unspecified(service)] {
            one.serve(service, UDP, (own, 8053).into());
            let server = udp_server(&one.pod, (bound, 8053).into());
            one.pod.run(|| udp_call(service, 1000)).unwrap();
            assert_eq!(
                server.join().unwrap().unwrap().ip(),
                loopback,
                "{service}, {bound}"
            );
        }
    });
}

#[test]
fn errors_about_datagrams_to_a_port_that_nobody_has_come_back() {
    with_pod(|one, service, _| {
        let own = pod_address(1, service.is_ipv6());
        one.serve(service, UDP, (own, 8054).into());
        let refused = one.pod.run(|| udp_call(service, 10)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{service}");
    });
}
