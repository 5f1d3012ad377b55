// SPDX-License-Identifier: Apache-2.0

//! Echo messages in fragments have flows as others have; what is dropped leaves nothing in the map of fragments.

use std::net::{IpAddr, Ipv4Addr};

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};

use crate::{dsr::*, frame::*, packet::*, to_container::closed};

const CONTAINER: &str = "cil_from_container";
const TO_NETDEV: &str = "cil_to_netdev";
const FIRST: usize = 1448;
const POLICY: u8 = 133;
const INVALID: u8 = 134;
const HEADER: u8 = 135;
const NOT_FOUND: u8 = 175;

fn p1(family: Family) -> IpAddr {
    family.pick(P1, "fd00:10:1::63cb")
}

fn world(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(203, 0, 113, 5), "2001:db8:ffff::5")
}

fn kinds(family: Family) -> (u8, u8) {
    match family {
        V4 => (8, 0),
        V6 => (128, 129),
    }
}

/// A fragment of an ICMP message: `more` follow.
fn fragment(source: IpAddr, destination: IpAddr, data: &[u8], offset: usize, more: bool) -> Vec<u8> {
    let offset = offset as u16;
    match source {
        IpAddr::V4(_) => {
            let mut packet = Raw::new(source, destination, 1, data.to_vec());
            packet.fragment = (u16::from(more) << 13) | (offset / 8);
            packet.frame()
        }
        IpAddr::V6(_) => {
            let mut payload = vec![58, 0];
            payload.extend((offset | u16::from(more)).to_be_bytes());
            payload.extend([0, 0, 0x12, 0x34]);
            payload.extend(data);
            Raw::new(source, destination, 44, payload).frame()
        }
    }
}

/// An ICMP message of 3000 bytes in fragments.
fn fragments(source: IpAddr, destination: IpAddr, kind: u8, id: u16) -> Vec<Vec<u8>> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(id.to_be_bytes());
    message.resize(3000, 0x5a);
    let message = Raw::icmp(source, destination, message).payload;
    let mut frames = Vec::new();
    for (n, data) in message.chunks(FIRST).enumerate() {
        let offset = n * FIRST;
        let more = offset + data.len() < message.len();
        frames.push(fragment(source, destination, data, offset, more));
    }
    frames
}

/// Source, destination, type and id of the message; its checksum must be right.
#[track_caller]
fn join(frames: &[Vec<u8>]) -> (IpAddr, IpAddr, u8, u16) {
    let mut whole = frames[0].clone();
    let header = if whole[12..14] == [8, 0] { 34 } else { 54 };
    whole.truncate(header);
    for frame in frames {
        whole.extend(&frame[header + if header == 54 { 8 } else { 0 }..]);
    }
    let length = whole.len() - header;
    if header == 34 {
        whole[16..18].copy_from_slice(&((20 + length) as u16).to_be_bytes());
        whole[20..22].fill(0);
        whole[24..26].fill(0);
        let checksum = !fold(sum(&whole[14..34]));
        whole[24..26].copy_from_slice(&checksum.to_be_bytes());
    } else {
        whole[18..20].copy_from_slice(&(length as u16).to_be_bytes());
        whole[20] = 58;
    }
    let (source, destination, message) = read_icmp(&whole);
    (
        source,
        destination,
        message[0],
        u16::from_be_bytes([message[4], message[5]]),
    )
}

/// Runs a program on each fragment, which must have this verdict.
#[track_caller]
fn pass(node: &PacketNode, at_: (&str, u32), frames: &[Vec<u8>], verdict: u32) -> Vec<Vec<u8>> {
    let (program, ifindex) = at_;
    let run = |frame: &Vec<u8>| {
        let ran = node.run(program, frame, &at(ifindex)).unwrap();
        assert_eq!(ran.verdict, verdict, "{program}: {:?}", drops(node).unwrap());
        ran.packet
    };
    frames.iter().map(run).collect()
}

fn remembered(node: &PacketNode, family: Family) -> Result<usize, Error> {
    let map = match family {
        V4 => "cilium_ipv4_frag_datagrams",
        V6 => "cilium_ipv6_frag_datagrams",
    };
    Ok(node.entries(map)?.len())
}

#[test]
fn pods_ping_pods_nodes_and_the_world_with_messages_of_any_size() {
    let done = with_node(&facts(), |node| {
        for (family, id) in [(V4, 0x1234), (V6, 0x1234), (V4, 0), (V6, 0)] {
            node.forget_flows()?;
            let (request, reply) = kinds(family);
            let from_p1 = |to, kind| fragments(p1(family), to, kind, id);

            let sent = pass(
                node,
                (CONTAINER, P1_IFINDEX),
                &from_p1(family.local_pod(), request),
                REDIRECT,
            );
            assert_eq!(join(&sent), (p1(family), family.local_pod(), request, id));
            let back = fragments(family.local_pod(), p1(family), reply, id);
            pass(node, (CONTAINER, P2_IFINDEX), &back, REDIRECT);

            pass(node, (CONTAINER, P1_IFINDEX), &from_p1(family.node(), request), 0);
            let back = fragments(family.remote_pod(), p1(family), request, id);
            pass(node, (TC, ETH0_IFINDEX), &back, REDIRECT);
            pass(
                node,
                (CONTAINER, P1_IFINDEX),
                &from_p1(family.remote_pod(), reply),
                REDIRECT,
            );

            let sent = pass(
                node,
                (CONTAINER, P1_IFINDEX),
                &from_p1(family.remote_pod(), request),
                REDIRECT,
            );
            let left = pass(node, (TO_NETDEV, ETH0_IFINDEX), &sent, 0);
            assert_eq!(join(&left), (p1(family), family.remote_pod(), request, id));

            let sent = pass(
                node,
                (CONTAINER, P1_IFINDEX),
                &from_p1(world(family), request),
                REDIRECT,
            );
            let left = pass(node, (TO_NETDEV, ETH0_IFINDEX), &sent, 0);
            let (source, destination, kind, there) = join(&left);
            assert_eq!(
                (source, destination, kind),
                (family.node(), world(family), request)
            );
            let back = fragments(world(family), family.node(), reply, there);
            // XDP leaves them to tc.
            let back = pass(node, (XDP, ETH0_IFINDEX), &back, XDP_PASS);
            let came = pass(node, (TC, ETH0_IFINDEX), &back, REDIRECT);
            assert_eq!(join(&came), (world(family), p1(family), reply, id));

            pass(
                node,
                (TC, ETH0_IFINDEX),
                &fragments(world(family), family.node(), request, id),
                0,
            );
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn later_fragments_are_of_the_message_whose_first_one_came() {
    let done = with_node(&facts(), |node| {
        for family in [V4, V6] {
            let (request, _) = kinds(family);
            let frames = fragments(p1(family), family.local_pod(), request, 7);
            let ran = node.run(CONTAINER, &frames[1], &at(P1_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![NOT_FOUND]));
            let back = fragments(family.remote_pod(), p1(family), request, 7);
            let ran = node.run(TC, &back[1], &at(ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![NOT_FOUND]));
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn what_is_dropped_is_not_remembered() {
    let done = with_node(&facts(), |node| {
        for family in [V4, V6] {
            let (request, reply) = kinds(family);
            let dropped = |program: &str, ifindex: u32, frame: &[u8], reason: u8| {
                let ran = node.run(program, frame, &at(ifindex))?;
                let what = format!("{program} {family:?} {frame:02x?}");
                assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![reason]), "{what}");
                assert_eq!(remembered(node, family)?, 0, "{what}");
                assert_eq!(flows(node, family)?.len(), 0, "{what}");
                Ok::<_, Error>(())
            };
            node.forget_flows()?;
            let kinds: &[u8] = match family {
                // Unreachable, redirect, router advertisement, time exceeded, timestamp.
                V4 => &[3, 5, 9, 11, 13],
                // Errors, router and neighbour discovery.
                V6 => &[1, 2, 3, 4, 133, 134, 135, 136, 137],
            };
            for kind in kinds {
                let sent = fragments(p1(family), family.local_pod(), *kind, 7);
                dropped(CONTAINER, P1_IFINDEX, &sent[0], INVALID)?;
                let came = fragments(family.remote_pod(), p1(family), *kind, 7);
                dropped(TC, ETH0_IFINDEX, &came[0], INVALID)?;
                // XDP drops none.
                let ran = node.run(XDP, &came[0], &at(ETH0_IFINDEX))?;
                assert_eq!((ran.verdict, remembered(node, family)?), (XDP_PASS, 0));
            }
            for kind in [request, reply] {
                // Too short for an id.
                let cut = fragment(p1(family), family.local_pod(), &[kind, 0, 0, 0], 0, true);
                dropped(CONTAINER, P1_IFINDEX, &cut, INVALID)?;
            }
            // Ports, and no flags.
            let mut tcp = Raw::new(
                p1(family),
                family.local_pod(),
                TCP,
                vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1],
            );
            tcp.fragment = 0x2000;
            if family == V4 {
                dropped(CONTAINER, P1_IFINDEX, &tcp.frame(), HEADER)?;
            }
        }
        // By a policy. The sender's flow is there, as of messages in one packet.
        closed(node)?;
        for family in [V4, V6] {
            let (request, _) = kinds(family);
            let sent = fragments(p1(family), family.local_pod(), request, 7);
            let ran = node.run(CONTAINER, &sent[0], &at(P1_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![POLICY]));
            assert_eq!(remembered(node, family)?, 0);
            let ran = node.run(CONTAINER, &sent[1], &at(P1_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![NOT_FOUND]));
        }
        Ok(())
    });
    done.unwrap();
}
