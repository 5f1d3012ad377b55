// SPDX-License-Identifier: Apache-2.0

//! Pings that do not fit into a packet.

use crate::{
    network::{add_route, link},
    node::{self, Member, Setup, node_address, outside, pod_address, router},
    traffic::ping,
    ways::no_drops,
};

/// Of data: of two packets by one byte, over IPv4 and IPv6, and of many.
const SIZES: [usize; 6] = [56, 1423, 1453, 1473, 3000, 60_000];

fn ping_all(members: &[Member; 2]) {
    let [one, two] = members;
    for is_ipv6 in [false, true] {
        // The way back from the client to the pod, which is masqueraded.
        let bits = if is_ipv6 { 128 } else { 32 };
        let (source, gateway) = (node_address(1, is_ipv6), outside(1, is_ipv6));
        add_route(link("client").0, source, bits, Some(gateway), None);
        for size in SIZES {
            let here = [router(1, is_ipv6), node_address(1, is_ipv6)];
            let there = [pod_address(2, is_ipv6), node_address(2, is_ipv6)];
            let beyond = [outside(2, is_ipv6)];
            for to in here.into_iter().chain(there).chain(beyond) {
                let got = one.pod.run(|| ping(to, size));
                assert!(
                    got.is_ok(),
                    "the pod to {to}, {size} bytes: {got:?}, {:?} {:?}",
                    one.drops(),
                    two.drops()
                );
            }
            for to in [pod_address(1, is_ipv6), pod_address(2, is_ipv6)] {
                let got = one.netns.run(|| ping(to, size));
                assert!(
                    got.is_ok(),
                    "the node to {to}, {size} bytes: {got:?}, {:?} {:?}",
                    one.drops(),
                    two.drops()
                );
            }
            // A client.
            ping(outside(1, is_ipv6), size).unwrap();
        }
    }
    no_drops(members);
}

fn with_cluster(is_routed: bool, change: &(dyn Fn(&mut skep_bpf_programs::NodeOptions) + Sync)) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed,
        change,
    };
    node::with_cluster("pings", setup, ping_all);
}

#[test]
fn pings_of_any_size_are_answered() {
    with_cluster(true, &|_| {});
}

#[test]
fn pings_of_any_size_are_answered_through_the_tunnel() {
    with_cluster(false, &|_| {});
}

#[test]
fn pings_of_any_size_are_answered_with_xdp() {
    with_cluster(true, &|options| options.packets.xdp = true);
}

#[test]
fn pings_of_any_size_are_answered_through_the_stack() {
    with_cluster(true, &|options| options.packets.legacy_routing = true);
}
