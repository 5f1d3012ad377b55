// SPDX-License-Identifier: Apache-2.0

//! ICMP errors about packets of clients outside to services: clients know the service only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use run_packets::{
    Error,
    node::{Called, PacketNode, with_node},
};

use crate::{dsr::*, frame::*, packet::*};

/// Of a pod on the node: TCP.
const LOCAL_NODE_PORT: u16 = 30_081;

/// Port unreachable, time exceeded, too large: type, code and the four bytes behind the checksum.
pub(crate) fn messages(family: Family) -> [[u8; 8]; 3] {
    let mtu = [5, 120];
    match family {
        V4 => [
            [3, 3, 0, 0, 0, 0, 0, 0],
            [11, 0, 0, 0, 0, 0, 0, 0],
            [3, 4, 0, 0, 0, 0, mtu[0], mtu[1]],
        ],
        V6 => [
            [1, 4, 0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
            [2, 0, 0, 0, 0, 0, mtu[0], mtu[1]],
        ],
    }
}

pub(crate) fn router(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(198, 51, 100, 9), "2001:db8:9::9")
}

/// An error about a packet, as that came to its sender.
pub(crate) fn about(packet: &[u8], message: [u8; 8], from: IpAddr, to: IpAddr) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes.extend(&packet[14..]);
    Raw::icmp(from, to, bytes).frame()
}

/// What leaves of an error that the second pod sends.
pub(crate) fn leaves(node: &PacketNode, error: &[u8]) -> Result<Called, Error> {
    let sent = node.run("cil_from_container", error, &at(P2_IFINDEX))?;
    assert_eq!(sent.verdict, REDIRECT, "{:?}", drops(node)?);
    let left = node.run("cil_to_netdev", &sent.packet, &at(ETH0_IFINDEX))?;
    assert_eq!(left.verdict, 0);
    Ok(left)
}

/// Source and destination of an error, its first eight bytes but for the checksum, and the packet in it.
#[track_caller]
pub(crate) fn read_error(ran: &Called) -> (IpAddr, IpAddr, [u8; 8], Frame) {
    let (source, destination, message) = read_icmp(&ran.packet);
    let mut inside = ran.packet[..14].to_vec();
    inside.extend(&message[8..]);
    let inside = Frame::read(&inside).unwrap_or_else(|wrong| panic!("{wrong} inside: {message:02x?}"));
    let mut head: [u8; 8] = message[..8].try_into().unwrap();
    head[2..4].fill(0);
    (source, destination, head, inside)
}

#[test]
fn backends_of_the_node_are_unknown_to_clients() {
    let done = with_node(&facts(), |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let service = SocketAddr::from((family.node(), LOCAL_NODE_PORT));
            let asked = Frame::new(TCP, (family.client(), 40_000).into(), service);
            let delivered = receive(node, TC, &asked)?.packet;
            let inside = asked.clone().hop_limit(63);
            for message in messages(family) {
                let error = about(&delivered, message, family.local_pod(), family.client());
                let left = leaves(node, &error)?;
                let expected = (service.ip(), family.client(), message, inside.clone());
                assert_eq!(read_error(&left), expected);
                assert_eq!(left.mark & 0xf00, 0x300, "no other source");

                // What is between the node and the backend has its own address.
                let error = about(&delivered, message, router(family), family.client());
                let left = node.run("cil_to_netdev", &error, &at(ETH0_IFINDEX))?;
                let expected = (router(family), family.client(), message, inside.clone());
                assert_eq!(read_error(&left), expected);
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn backends_of_other_nodes_are_unknown_to_clients() {
    let done = with_node(&facts(), |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let asked = request(family, proto);
            let forwarded = receive(node, TC, &asked)?.packet;
            let inside = asked.clone().hop_limit(63);
            for message in messages(family) {
                for (from, seen, verdict) in [
                    (family.remote_pod(), family.node(), REDIRECT),
                    (router(family), router(family), 0),
                ] {
                    let error = about(&forwarded, message, from, family.node());
                    let ran = node.run(TC, &error, &at(ETH0_IFINDEX))?;
                    assert_eq!(ran.verdict, verdict, "{:?}", drops(node)?);
                    let expected = (seen, family.client(), message, inside.clone());
                    assert_eq!(read_error(&ran), expected);
                }
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn direct_return_does_not_show_how_the_backend_was_told_of_the_service() {
    with_dsr(DSR, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let told = dispatched(family, proto);
            let delivered = receive(node, TC, &told)?.packet;
            let inside = Frame {
                destination: service(family),
                ..told.clone().hop_limit(63).extension(&[])
            };
            for message in messages(family) {
                let error = about(&delivered, message, family.local_pod(), family.client());
                let left = leaves(node, &error)?;
                let expected = (service(family).ip(), family.client(), message, inside.clone());
                assert_eq!(read_error(&left), expected, "{family:?} {proto}");
                assert_eq!(left.packet.len(), error.len() - told.extension.len());
            }

            // Errors that say how long the packet inside is keep it as it was (RFC 4884).
            let mut message = messages(family)[0];
            message[if family == V4 { 5 } else { 4 }] = 32;
            let error = about(&delivered, message, family.local_pod(), family.client());
            let inside = inside.extension(&told.extension);
            let expected = (service(family).ip(), family.client(), message, inside);
            assert_eq!(read_error(&leaves(node, &error)?), expected);
            Ok(())
        })
    });
}

#[test]
fn options_of_clients_stay_in_the_packet_inside() {
    with_dsr(DSR, |node| {
        let own = [1, 1, 1, 0];
        let told = dispatched(V4, UDP);
        let mut extension = told.extension.clone();
        extension.extend(own);
        let told = told.extension(&extension);
        let delivered = receive(node, TC, &told)?.packet;
        let message = messages(V4)[0];
        let left = leaves(node, &about(&delivered, message, V4.local_pod(), V4.client()))?;
        let (.., inside) = read_error(&left);
        assert_eq!(inside.extension, own);
        assert_eq!(inside.destination, service(V4));
        Ok(())
    });
}

#[test]
fn short_quotes_are_translated_as_far_as_they_go() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let told = dispatched(family, TCP);
            let delivered = receive(node, TC, &told)?.packet;
            // Ports and sequence number (RFC 792), without the checksum.
            let header = if family == V4 { 20 } else { 40 };
            let quoted = &delivered[..14 + header + told.extension.len() + 8];
            let message = messages(family)[0];
            let left = leaves(node, &about(quoted, message, family.local_pod(), family.client()))?;
            let (source, _, message) = read_icmp(&left.packet);
            assert_eq!(source, service(family).ip());
            let expected = Frame {
                destination: service(family),
                ..told.hop_limit(63).extension(&[])
            };
            // Lengths are those of the whole packet.
            assert_eq!(message[8..], expected.bytes()[14..][..header + 8]);
        }
        Ok(())
    });
}

#[test]
fn errors_about_packets_to_pods_themselves_stay_as_they_are() {
    with_dsr(DSR, |node| {
        each(|family, proto| {
            let direct = dispatched(family, proto).extension(&[]);
            let told = dispatched(family, proto);
            for before in [vec![], vec![told]] {
                node.forget_flows()?;
                for frame in before {
                    receive(node, TC, &frame)?;
                }
                let delivered = receive(node, TC, &direct)?.packet;
                for message in messages(family) {
                    let error = about(&delivered, message, family.local_pod(), family.client());
                    let left = leaves(node, &error)?;
                    let inside = direct.clone().hop_limit(63);
                    let expected = (family.local_pod(), family.client(), message, inside);
                    assert_eq!(read_error(&left), expected, "{family:?} {proto}");
                }
            }
            Ok(())
        })
    });
}
