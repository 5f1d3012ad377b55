// SPDX-License-Identifier: Apache-2.0

//! Packets that run out of hops behind the tunnel: programs tell senders of IPv6.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use skep_bpf_sys::testing::Pod;

use crate::{
    network::set,
    node::{self, Member, Setup, TCP, UDP, outside, pod_address, router},
    traffic::{Errors, tcp_call, udp_call, udp_server},
    ways::no_drops,
};

/// The type of ICMPv6.
const TIME_EXCEEDED: u8 = 3;

fn with_cluster(work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: false,
        change: &|_| {},
    };
    node::with_cluster("hops", setup, |members| {
        work(members);
        no_drops(members);
    });
}

/// What a pod sends from now on gets no further than one hop: the next node delivers it, or does not.
fn one_hop(pod: &Pod) {
    pod.run(|| set("ipv6/conf/pod/hop_limit", "1"));
}

/// The pod hears from the first node that its packet between these did not get there.
#[track_caller]
fn assert_told(errors: &Errors, source: IpAddr, destination: SocketAddr) {
    let error = errors.next().unwrap();
    assert_eq!((error.from, error.kind), (router(1, true), TIME_EXCEEDED));
    assert_eq!(error.source.ip(), source);
    assert_eq!(error.destination, destination, "as it was sent");
}

#[test]
fn pods_hear_that_packets_to_pods_are_out_of_hops() {
    with_cluster(|[_, two]| {
        let to = SocketAddr::from((pod_address(1, true), 80));
        let errors = Errors::new(&two.pod);
        one_hop(&two.pod);

        let called = two.pod.run(|| tcp_call(to, 1)).unwrap_err();

        assert_eq!(called.kind(), io::ErrorKind::HostUnreachable);
        assert_told(&errors, pod_address(2, true), to);
    });
}

#[test]
fn pods_hear_that_packets_to_services_are_out_of_hops() {
    with_cluster(|[one, two]| {
        let errors = Errors::new(&two.pod);
        one_hop(&two.pod);
        // The backend is on the node of the service, and behind the tunnel.
        for n in [1, 2] {
            let service = SocketAddr::from((router(1, true), 30_080));
            one.serve(service, TCP, (pod_address(n, true), 80).into());

            let called = two.pod.run(|| tcp_call(service, 1)).unwrap_err();

            assert_eq!(called.kind(), io::ErrorKind::HostUnreachable);
            assert_told(&errors, pod_address(2, true), service);
        }
    });
}

#[test]
fn backends_hear_that_answers_are_out_of_hops() {
    with_cluster(|[one, two]| {
        let frontend = SocketAddr::from((outside(1, true), 30_080));
        let backend = SocketAddr::from((pod_address(2, true), 80));
        one.serve(frontend, UDP, backend);
        let errors = Errors::new(&two.pod);
        one_hop(&two.pod);

        let server = udp_server(&two.pod, backend);
        udp_call(frontend, 10).unwrap_err();

        let client = server.join().unwrap().unwrap();
        assert_eq!(client.ip(), router(1, true));
        assert_told(&errors, backend.ip(), client);
    });
}
