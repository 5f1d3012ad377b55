// SPDX-License-Identifier: Apache-2.0

//! Frames with a VLAN tag at an interface of the node. The kernel need not know VLANs: a program tags what the client,
//! or the pod, sends.

use std::{
    net::{IpAddr, UdpSocket},
    os::fd::AsFd as _,
};

use libbpf_rs::TC_EGRESS;
use skep_bpf_programs::{NodeOptions, testing::run::vlan_tagger};

use crate::{
    network::{add_neighbour, link},
    node::{self, Member, Setup, node_address, outside, pod_address, router},
    traffic::{Tap, ping},
    ways::no_drops,
};

const VLAN: u16 = 10;
const VLAN_DISALLOWED: u8 = 182;
const PORT: u16 = 4321;

/// Runs `work` on the node that a client sends tagged frames to.
fn with_client(tag: u16, change: &(dyn Fn(&mut NodeOptions) + Sync), work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: false,
        change,
    };
    node::with_cluster("vlan", setup, |members| {
        let (client, _) = link("client");
        let (_, mac) = members[0].netns.run(|| link("outside"));
        for is_ipv6 in [false, true] {
            add_neighbour(client, outside(1, is_ipv6), mac);
        }
        let tagger = vlan_tagger(tag).unwrap();
        node::attach_program(tagger.as_fd(), client, TC_EGRESS);
        work(members);
    });
}

/// Runs `work` on the node whose pod sends tagged frames.
fn with_pod(tag: u16, change: &(dyn Fn(&mut NodeOptions) + Sync), work: impl FnOnce(&[Member; 2]) + Send) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed: false,
        change,
    };
    node::with_cluster("vlan", setup, |members| {
        let (_, mac) = link("client");
        members[0].netns.run(|| {
            let (outside_link, _) = link("outside");
            for is_ipv6 in [false, true] {
                add_neighbour(outside_link, outside(2, is_ipv6), mac);
            }
        });
        let tagger = vlan_tagger(tag).unwrap();
        let (_, gateway) = members[0].netns.run(|| link("lxc1"));
        members[0].pod.run(|| {
            let (inside, _) = link("pod");
            // Answers are tagged, too: the pod would not see them.
            for is_ipv6 in [false, true] {
                add_neighbour(inside, router(1, is_ipv6), gateway);
            }
            node::attach_program(tagger.as_fd(), inside, TC_EGRESS);
        });
        work(members);
    });
}

/// Packets that the node dropped because of their tag.
fn dropped(node: &Member) -> u64 {
    let drops = node.drops().into_iter();
    drops
        .filter(|(reason, _)| *reason == VLAN_DISALLOWED)
        .map(|(_, count)| count)
        .sum()
}

#[track_caller]
fn check(change: impl Fn(&mut NodeOptions) + Sync, is_allowed: bool) {
    with_client(VLAN, &change, |members| {
        arrives(members, is_allowed);
        if is_allowed {
            no_drops(members);
        }
    });
    with_pod(VLAN, &change, |members| {
        leaves(members, is_allowed);
        if is_allowed {
            no_drops(members);
        }
    });
}

/// Whether the kernel of the node gets what the client sends.
#[track_caller]
fn arrives(members: &[Member; 2], is_allowed: bool) {
    let [one, _] = members;
    for is_ipv6 in [false, true] {
        let tap = Tap::after_programs(&one.netns, is_ipv6);
        let before = dropped(one);
        send(outside(2, is_ipv6), outside(1, is_ipv6));
        let reached = tap.datagrams_to(PORT);
        assert_eq!(reached, if is_allowed { 3 } else { 0 }, "IPv6: {is_ipv6}");
        // The kernel of the client sends other frames, too.
        let dropped = dropped(one) - before;
        assert!(if is_allowed { dropped == 0 } else { dropped >= 3 }, "{dropped}");
    }
}

/// Whether the client gets what the pod sends, as it is: what the node translates is not tagged.
#[track_caller]
fn leaves(members: &[Member; 2], is_allowed: bool) {
    let [one, _] = members;
    for is_ipv6 in [false, true] {
        let tap = Tap::here(is_ipv6);
        let before = dropped(one);
        one.pod.run(|| send(pod_address(1, is_ipv6), outside(2, is_ipv6)));
        let reached = tap.datagrams_from(pod_address(1, is_ipv6));
        assert_eq!(reached, if is_allowed { 3 } else { 0 }, "IPv6: {is_ipv6}");
        // The kernel of the pod sends other frames, too.
        let dropped = dropped(one) - before;
        assert!(if is_allowed { dropped == 0 } else { dropped >= 3 }, "{dropped}");
    }
}

fn send(from: IpAddr, to: IpAddr) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    for _ in 0..3 {
        socket.send_to(b"tagged", (to, PORT)).unwrap();
    }
}

#[test]
fn tagged_packets_are_dropped() {
    check(|_| {}, false);
    check(|options| options.packets.vlans = vec![VLAN - 1, VLAN + 1], false);
}

#[test]
fn those_of_vlans_that_bypass_reach_the_kernel() {
    check(|options| options.packets.vlans = vec![1, 2, 3, 4, VLAN], true);
    check(|options| options.packets.all_vlans = true, true);
}

#[test]
fn those_of_interfaces_with_programs_pass_at_what_carries_them() {
    with_client(VLAN, &|_| {}, |members| {
        members[0].carry("under1", VLAN);
        members[0].carry("outside", VLAN + 1);
        arrives(members, false);
        members[0].carry("outside", VLAN);
        arrives(members, true);
    });
    with_pod(VLAN, &|_| {}, |members| {
        members[0].carry("under1", VLAN);
        leaves(members, false);
        members[0].carry("outside", VLAN);
        leaves(members, true);
    });
}

#[test]
fn a_tag_with_a_priority_alone_is_none() {
    with_client(0, &|_| {}, |members| {
        for is_ipv6 in [false, true] {
            ping(outside(1, is_ipv6), 56).unwrap();
        }
        no_drops(members);
    });
    with_pod(0, &|_| {}, |members| {
        for is_ipv6 in [false, true] {
            let tap = Tap::here(is_ipv6);
            members[0]
                .pod
                .run(|| send(pod_address(1, is_ipv6), outside(2, is_ipv6)));
            let translated = tap.datagrams_from(node_address(1, is_ipv6));
            assert_eq!(translated, 3, "IPv6: {is_ipv6}");
        }
        no_drops(members);
    });
}
