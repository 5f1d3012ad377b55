// SPDX-License-Identifier: Apache-2.0

//! Direct server return by IP in IP: packets reach the backend's node as the client sent them, inside others.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use run_packets::node::Called;
use skep_bpf_programs::{DirectReturn, DsrDispatch};

use crate::{dsr::*, frame::*, packet::*};

pub(crate) const IPIP: DirectReturn = DirectReturn {
    dispatch: DsrDispatch::Ipip {
        source4: None,
        source6: None,
    },
    ..DSR
};

/// Source, destination and hop limit outside, and what is inside.
#[track_caller]
fn unpack(family: Family, ran: &Called) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let packet = &ran.packet[14..];
    if family == V4 {
        assert_eq!(ran.packet[12..14], [8, 0]);
        assert_eq!((packet[0], packet[9]), (0x45, 4));
        assert_eq!(fold(sum(&packet[..20])), 0xffff, "checksum outside");
        assert_eq!(packet[2..4], (packet.len() as u16).to_be_bytes());
        let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        (address(12), address(16), packet[8], packet[20..].to_vec())
    } else {
        assert_eq!(ran.packet[12..14], [0x86, 0xdd]);
        assert_eq!((packet[0] >> 4, packet[6]), (6, 41));
        assert_eq!(packet[4..6], ((packet.len() - 40) as u16).to_be_bytes());
        let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
        (address(8), address(24), packet[7], packet[40..].to_vec())
    }
}

#[test]
fn packets_travel_as_the_client_sent_them() {
    with_dsr(IPIP, |node| {
        everywhere(node, |program, sends, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                for flags in [SYN, ACK] {
                    let frame = request(family, proto).flags(if proto == TCP { flags } else { 0 });

                    let ran = receive(node, program, &frame)?;

                    assert_eq!(ran.verdict, sends, "{program} {family:?}");
                    let (source, destination, hops, inside) = unpack(family, &ran);
                    assert_eq!(source, family.node(), "{program}");
                    assert_eq!(destination, family.remote_pod());
                    assert_eq!(hops, 64);
                    assert_eq!(inside, frame.bytes()[14..], "{program} {proto}");
                }
                assert_eq!(flows(node, family)?.len(), 1, "the service's alone");
                assert!(node.entries(&family.map("cilium_snat_v4_external"))?.is_empty());
            }
            // Not even the last hop is taken from it.
            let frame = request(family, TCP).hop_limit(1);
            let (.., inside) = unpack(family, &receive(node, program, &frame)?);
            assert_eq!(inside, frame.bytes()[14..]);
            Ok(())
        })
    });
}

#[test]
fn sources_are_of_the_network_and_differ_by_flow() {
    for (bits4, bits6) in [(16, 64), (28, 120), (32, 128), (0, 0)] {
        let networks = (
            Ipv4Addr::new(198, 18, 0, 0),
            "2001:db8:5::".parse::<Ipv6Addr>().unwrap(),
        );
        let dsr = DirectReturn {
            dispatch: DsrDispatch::Ipip {
                source4: Some((networks.0, bits4)),
                source6: Some((networks.1, bits6)),
            },
            ..DSR
        };
        with_dsr(dsr, |node| {
            for (program, family) in [(TC, V4), (TC, V6), (XDP, V4), (XDP, V6)] {
                let mut sources = HashSet::new();
                for port in 40_000..40_032 {
                    node.forget_flows()?;
                    let mut frame = request(family, TCP);
                    frame.source.set_port(port);
                    let (source, ..) = unpack(family, &receive(node, program, &frame)?);
                    let (again, ..) = unpack(family, &receive(node, program, &frame.flags(ACK))?);
                    assert_eq!(source, again, "of one flow");
                    let is_inside = match source {
                        IpAddr::V4(source) => {
                            let differ = u32::from(source) ^ u32::from(networks.0);
                            differ.checked_shr(32 - u32::from(bits4)).unwrap_or(0) == 0
                        }
                        IpAddr::V6(source) => {
                            let differ = u128::from(source) ^ u128::from(networks.1);
                            differ.checked_shr(128 - u32::from(bits6)).unwrap_or(0) == 0
                        }
                    };
                    assert!(is_inside, "{source}");
                    sources.insert(source);
                }
                let least = if bits4 == 32 { 1 } else { 8 };
                assert!(
                    sources.len() >= least && (bits4 < 32 || sources.len() == 1),
                    "{sources:?}"
                );
            }
            Ok(())
        });
    }
}

#[test]
fn backends_of_this_node_get_plain_packets() {
    with_dsr(IPIP, |node| {
        everywhere(node, |program, _, family| {
            let frame = Frame::new(
                TCP,
                (family.client(), 40_000).into(),
                (family.node(), 30_081).into(),
            );
            let seen = read_back(&receive(node, program, &frame)?);
            assert_eq!(seen.destination, (family.local_pod(), 8080).into(), "{program}");
            let entries = flows(node, family)?;
            let outgoing = entries.iter().find(|(flags, _)| *flags == 0).unwrap();
            assert_eq!(outgoing.1[ENTRY_FLAGS], NODE_PORT_FLAG);
            Ok(())
        })
    });
}

#[test]
fn every_packet_must_fit() {
    with_dsr(IPIP, |node| {
        everywhere(node, |program, sends, family| {
            let growth = if family == V4 { 20 } else { 40 };
            let header = growth + 20;
            receive(node, program, &request(family, TCP))?;
            drops(node)?;
            let frame = request(family, TCP).flags(ACK).payload(MTU - header);

            let ran = receive(node, program, &frame)?;

            if program == TC {
                assert_eq!(ran.verdict, SHOT);
                assert_eq!(drops(node)?, [TOO_LARGE]);
            } else {
                assert_eq!(ran.verdict, XDP_PASS);
                assert_eq!(read_back(&ran), frame);
            }
            let ran = receive(node, program, &frame.payload(MTU - header - growth))?;
            assert_eq!(ran.verdict, sends);
            assert_eq!(ran.packet.len(), 14 + MTU);
            Ok(())
        })
    });
}

#[test]
fn clients_hear_how_much_fits_inside() {
    let dsr = DirectReturn {
        icmp_errors: true,
        ..IPIP
    };
    with_dsr(dsr, |node| {
        for family in [V4, V6] {
            let growth = if family == V4 { 20 } else { 40 };
            let frame = large(family);
            let ran = receive(node, TC, &frame)?;
            assert_eq!(ran.verdict, REDIRECT);
            let icmp = &ran.packet[14 + growth..];
            assert_eq!(icmp[..2], if family == V4 { [3, 4] } else { [2, 0] });
            assert_eq!(icmp[6..8], ((MTU - growth) as u16).to_be_bytes());
            assert_eq!(icmp[8..], frame.bytes()[14..][..icmp.len() - 8]);
        }
        Ok(())
    });
}
