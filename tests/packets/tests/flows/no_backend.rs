// SPDX-License-Identifier: Apache-2.0

//! Errors about services without backends.

use std::net::{IpAddr, Ipv4Addr};

use run_packets::{Error, node::with_node};

use crate::{dsr::*, frame::*, packet::*};

const CONTAINER: &str = "cil_from_container";
const RATE_LIMITED: u8 = 198;
/// Errors at an interface at once, at most.
const BURST: usize = 1000;
const TOS: u8 = 0x28;

/// A UDP datagram of this size to a service without backends.
fn datagram(family: Family, size: usize) -> Raw {
    let source: IpAddr = family.pick(P1, "fd00:10:1::63cb");
    let service = family.pick(Ipv4Addr::new(10, 96, 1, 105), "fd00:96::105");
    let mut payload = vec![0x9c, 0x40, 0, 80];
    payload.extend([0x50; 16]);
    // An ACK of TCP.
    payload[12..14].copy_from_slice(&[0x50, 0x10]);
    payload.resize(size, 0x5a);
    let mut packet = Raw::new(source, service, TCP, payload);
    packet.tos = TOS;
    packet
}

#[test]
fn little_of_the_packet_is_quoted_and_its_tos_is_kept() {
    let done = with_node(&facts(), |node| {
        for (family, header, at_most) in [(V4, 20, 64), (V6, 40, 1232)] {
            for size in [20, 30, 200, 1400] {
                let packet = datagram(family, size);
                let frame = packet.frame();
                let ran = node.run(CONTAINER, &frame, &at(P1_IFINDEX))?;
                assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);

                let (source, destination, message) = read_icmp(&ran.packet);
                assert_eq!((source, destination), (packet.destination, packet.source));
                // The frame's length, as of Cilium.
                let quoted = frame.len().min(at_most);
                assert_eq!(message.len(), 8 + quoted, "{family:?} {size}");
                assert_eq!(ran.packet.len(), 14 + header + message.len());
                let same = quoted.min(frame.len() - 14);
                assert_eq!(message[8..8 + same], frame[14..14 + same]);
                let tos = match family {
                    V4 => ran.packet[15],
                    V6 => ran.packet[14] << 4 | ran.packet[15] >> 4,
                };
                assert_eq!(tos, if family == V4 { TOS } else { 0 });
                assert!(drops(node)?.is_empty());
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn above_the_rate_packets_are_dropped_with_an_event() {
    let done = with_node(&facts(), |node| {
        let frame = datagram(V6, 20).frame();
        let mut answers = 0;
        let dropped = loop {
            let ran = node.run(CONTAINER, &frame, &at(P1_IFINDEX))?;
            if ran.verdict == SHOT {
                break drops(node)?;
            }
            answers += 1;
            assert!(answers <= 2 * BURST, "no limit");
        };
        assert_eq!(dropped, [RATE_LIMITED]);
        // IPv4 has none.
        let ran = node.run(CONTAINER, &datagram(V4, 20).frame(), &at(P1_IFINDEX))?;
        assert_eq!(ran.verdict, REDIRECT);
        Ok::<_, Error>(())
    });
    done.unwrap();
}
