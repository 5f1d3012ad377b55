// SPDX-License-Identifier: Apache-2.0

//! Answers from a service that have to leave by another interface than those from its backend.

use std::net::{IpAddr, SocketAddr};

use crate::{
    network::{add_address, add_route_with, add_rule, fixed_mtu, from, in_table, link},
    node::{self, Member, Setup, TCP, UDP, node_address, outside, pod_address},
    traffic::{tcp_call, tcp_server, udp_call, udp_echo},
    ways::no_drops,
};

const TABLE: u32 = 100;

/// The service, and a client that is not on a network of the node.
fn addresses(is_ipv6: bool) -> (IpAddr, IpAddr) {
    let [service, client] = match is_ipv6 {
        true => ["2001:db8:80::1", "2001:db8:18::2"],
        false => ["203.0.113.80", "198.18.0.2"],
    };
    (service.parse().unwrap(), client.parse().unwrap())
}

/// The routes of the first node lead to the client by the other node, but for packets from the service.
fn with_rules(mtu: Option<u32>, work: impl Fn(&Member, SocketAddr) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: true,
        change: &|_| {},
    };
    node::with_cluster("elsewhere", setup, move |members| {
        let [one, _] = members;
        for is_ipv6 in [false, true] {
            let bits = if is_ipv6 { 128 } else { 32 };
            let (service, client) = addresses(is_ipv6);
            let (index, _) = link("client");
            add_address(index, client, bits);
            add_route_with(index, (service, bits), Some(outside(1, is_ipv6)), [from(client)]);
            one.netns.run(|| {
                let (under, _) = link("under1");
                add_route_with(under, (client, bits), Some(node_address(2, is_ipv6)), []);
                let (right, _) = link("outside");
                let attributes = mtu.map(fixed_mtu).into_iter().chain([in_table(TABLE)]);
                add_route_with(right, (client, bits), Some(outside(2, is_ipv6)), attributes);
                add_rule(service, TABLE);
            });
            work(one, (service, 80).into());
        }
        no_drops(members);
    });
}

/// Backends on the first node: a pod, and a process of the node.
fn backends(one: &Member, is_ipv6: bool) -> [(&skep_bpf_sys::testing::Pod, SocketAddr); 2] {
    [
        (&one.pod, (pod_address(1, is_ipv6), 8080).into()),
        (&one.netns, (outside(1, is_ipv6), 8080).into()),
    ]
}

#[test]
fn answers_leave_by_the_interface_that_the_routes_have_for_the_service() {
    with_rules(None, |one, service| {
        for (place, backend) in backends(one, service.is_ipv6()) {
            one.serve(service, TCP, backend);
            let server = tcp_server(place, backend);
            tcp_call(service, 1 << 18).unwrap();
            let (_, client) = addresses(service.is_ipv6());
            assert_eq!(server.join().unwrap().unwrap().ip(), client);

            one.serve(service, UDP, backend);
            let server = udp_echo(place, backend);
            udp_call(service, 1000).unwrap();
            assert_eq!(server.join().unwrap().unwrap().ip(), client);
        }
    });
}

#[test]
fn backends_hear_that_answers_do_not_fit_there() {
    with_rules(Some(1300), |one, service| {
        for (place, backend) in backends(one, service.is_ipv6()) {
            one.serve(service, TCP, backend);
            let server = tcp_server(place, backend);
            tcp_call(service, 1 << 18).unwrap();
            server.join().unwrap().unwrap();

            one.serve(service, UDP, backend);
            let server = udp_echo(place, backend);
            udp_call(service, 1350).unwrap();
            server.join().unwrap().unwrap();
        }
    });
}
