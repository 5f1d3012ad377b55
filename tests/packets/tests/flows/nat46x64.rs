// SPDX-License-Identifier: Apache-2.0

//! NAT46 and NAT64: services whose backends are of the other address family, and the gateway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use run_packets::{
    Error,
    node::{Called, PacketNode, with_options},
};
use skep_bpf_maps::lb::{
    Backend6, BackendKey, ReverseNat6, ReverseNatKey, Scope, Service4Key, Service6Key, ServiceFlags,
    ServiceValue,
};
use skep_bpf_programs::{Nat46x64, NodeOptions};
use zerocopy::IntoBytes as _;

use crate::{dsr::*, frame::*, packet::*};

pub(crate) const PREFIX: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
pub(crate) const SERVICE4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 46);
pub(crate) const SERVICE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x46, 0, 0, 0, 0, 1);
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
pub(crate) const NAT46: u8 = 187;
pub(crate) const NAT64: u8 = 188;
const CONTAINER: &str = "cil_from_container";

pub(crate) fn embed(address: Ipv4Addr) -> Ipv6Addr {
    let mut octets = PREFIX.octets();
    octets[12..].copy_from_slice(&address.octets());
    octets.into()
}

fn with_nat(services: bool, gateway: bool, test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    with_ports((32_768, 65_535), services, gateway, test);
}

fn with_ports(
    ports: (u16, u16),
    services: bool,
    gateway: bool,
    test: impl Fn(&PacketNode) -> Result<(), Error> + Send,
) {
    let change = |options: &mut NodeOptions| {
        options.packets.nat_ports = ports;
        options.packets.nat46x64 = (services || gateway).then_some(Nat46x64 {
            services,
            gateway,
            prefix: PREFIX,
            mtu: MTU as u16,
        });
    };
    with_options(&facts(), change, test).unwrap();
}

fn in_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => embed(address),
        IpAddr::V6(address) => address,
    }
}

/// Writes a service whose clients are of `family`, as the reconciler does.
pub(crate) fn serve(
    node: &PacketNode,
    family: Family,
    proto: u8,
    backend: IpAddr,
) -> Result<SocketAddr, Error> {
    let id = 7000 + u16::from(proto) + if family == V4 { 1000 } else { 0 };
    let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::ROUTABLE;
    let crossing = flags | ServiceFlags::NAT46X64;
    let (frontend, master): (IpAddr, _) = match family {
        V4 => {
            let key = Service4Key::new(SERVICE4, PORT, proto, Scope::External);
            let value = ServiceValue::master(1, 0, id, crossing);
            node.write("cilium_lb4_services_v2", key.as_bytes(), value.as_bytes())?;
            (SERVICE4.into(), flags)
        }
        V6 => (SERVICE6.into(), crossing),
    };
    let backend_id = u32::from(id);
    let key = Service6Key::new(in_ipv6(frontend), PORT, proto, Scope::External);
    let value = ServiceValue::slot(backend_id, id, master);
    node.write("cilium_lb6_services_v2", key.at(1).as_bytes(), value.as_bytes())?;
    let value = Backend6::new(in_ipv6(backend), BACKEND_PORT, proto);
    let backend_key = BackendKey::new(backend_id);
    node.write("cilium_lb6_backends_v3", backend_key.as_bytes(), value.as_bytes())?;
    let value = ReverseNat6::new(in_ipv6(frontend), PORT);
    let id_key = ReverseNatKey::new(id);
    node.write("cilium_lb6_reverse_nat", id_key.as_bytes(), value.as_bytes())?;
    let value = ServiceValue::master(1, 0, id, master);
    node.write("cilium_lb6_services_v2", key.as_bytes(), value.as_bytes())?;
    Ok((frontend, PORT).into())
}

fn other(family: Family) -> Family {
    if family == V4 { V6 } else { V4 }
}

fn ask(family: Family, proto: u8, service: SocketAddr) -> Frame {
    Frame::new(proto, (family.client(), 40_000).into(), service)
}

#[test]
fn requests_and_answers_change_their_family() {
    with_nat(true, false, |node| {
        each(|family, proto| {
            let backends = other(family);
            let service = serve(node, family, proto, backends.remote_pod())?;
            let first = ask(family, proto, service);

            let ran = receive(node, TC, &first)?;

            assert_eq!(ran.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
            let sent = read_back(&ran);
            assert_eq!(sent.source.ip(), backends.node());
            assert!(sent.source.port() >= 32_768);
            let expected = Frame {
                source: sent.source,
                destination: (backends.remote_pod(), BACKEND_PORT).into(),
                hop_limit: 63,
                ..first.clone()
            };
            assert_eq!(sent, expected);
            assert_eq!(ran.mark & 0xf00, 0x300, "its source is settled");

            let ran = receive(node, TC, &sent.answer())?;

            assert_eq!(ran.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
            let expected = Frame {
                hop_limit: 63,
                ..first.answer()
            };
            assert_eq!(read_back(&ran), expected);

            // The flow keeps its port.
            let next = receive(node, TC, &first.clone().flags(if proto == TCP { ACK } else { 0 }))?;
            assert_eq!(read_back(&next).source, sent.source);
            Ok(())
        })
    });
}

#[test]
fn backends_of_this_node_answer_clients_of_the_other_family() {
    with_nat(true, false, |node| {
        each(|family, proto| {
            let backends = other(family);
            let service = serve(node, family, proto, backends.local_pod())?;
            let first = ask(family, proto, service);

            let ran = receive(node, TC, &first)?;

            assert_eq!(ran.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
            let came = read_back(&ran);
            let source: IpAddr = match family {
                V4 => embed(CLIENT).into(),
                V6 => NODE.into(),
            };
            assert_eq!(came.source.ip(), source);
            assert_eq!(came.destination, (backends.local_pod(), BACKEND_PORT).into());
            assert_eq!(ran.packet[..6], P2_MAC);

            let mut answer = came.answer().bytes();
            answer[6..12].copy_from_slice(&P2_MAC);
            let ran = node.run(CONTAINER, &answer, &at(P2_IFINDEX))?;

            assert_eq!(ran.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
            let expected = Frame {
                hop_limit: 63,
                ..first.answer()
            };
            assert_eq!(read_back(&ran), expected);
            Ok(())
        })
    });
}

#[test]
fn the_xdp_program_leaves_them_to_the_tc_program() {
    with_nat(true, false, |node| {
        each(|family, proto| {
            let service = serve(node, family, proto, other(family).remote_pod())?;
            let first = ask(family, proto, service);

            let ran = receive(node, XDP, &first)?;
            assert_eq!((ran.verdict, &ran.packet), (XDP_PASS, &first.bytes()));
            let sent = read_back(&receive(node, TC, &first)?);
            let answer = sent.answer();
            let ran = receive(node, XDP, &answer)?;
            assert_eq!((ran.verdict, &ran.packet), (XDP_PASS, &answer.bytes()));
            let ran = receive(node, TC, &answer)?;
            assert_eq!(read_back(&ran).destination, first.source);
            Ok(())
        })
    });
}

#[test]
fn without_the_option_nothing_changes_its_family() {
    with_nat(false, false, |node| {
        each(|family, proto| {
            let service = serve(node, family, proto, other(family).remote_pod())?;
            let first = ask(family, proto, service);

            let ran = receive(node, TC, &first)?;

            assert_eq!((ran.verdict, ran.packet), (0, first.bytes()));
            Ok(())
        })
    });
}

#[test]
fn a_port_of_the_node_belongs_to_one_flow_of_either_family() {
    with_ports((40_000, 40_001), true, false, |node| {
        let service = serve(node, V6, UDP, V4.remote_pod())?;
        let crossing = read_back(&receive(node, TC, &ask(V6, UDP, service))?);
        assert_eq!(crossing.source.ip(), V4.node());

        // A flow of IPv4 alone to the same backend address gets the other port, the last one.
        let service4 = node_port(V4, UDP);
        let plain = |port| Frame::new(UDP, (V4.client(), port).into(), service4);
        let backend_port = backend(V4, UDP).port();
        let crossing_there = {
            let value = Backend6::new(embed(REMOTE_POD), backend_port, UDP);
            node.write(
                "cilium_lb6_backends_v3",
                BackendKey::new(u32::from(7000 + u16::from(UDP))).as_bytes(),
                value.as_bytes(),
            )?;
            node.forget_flows()?;
            read_back(&receive(node, TC, &ask(V6, UDP, service))?)
        };
        let first = read_back(&receive(node, TC, &plain(1000))?);
        assert_eq!(first.destination, crossing_there.destination);
        assert_ne!(first.source.port(), crossing_there.source.port());
        let none = receive(node, TC, &plain(1001))?;
        assert_eq!(none.verdict, SHOT);
        let mut second = ask(V6, UDP, service);
        second.source.set_port(41_000);
        assert_eq!(receive(node, TC, &second)?.verdict, SHOT);

        // Each gets its own answers.
        let answer = receive(node, TC, &crossing_there.answer())?;
        assert_eq!(read_back(&answer).destination, ask(V6, UDP, service).source);
        let answer = receive(node, TC, &first.answer())?;
        assert_eq!(read_back(&answer).destination, plain(1000).source);
        Ok(())
    });
}

fn run(node: &PacketNode, packet: &Raw) -> Result<Called, Error> {
    node.run(TC, &packet.frame(), &at(ETH0_IFINDEX))
}

const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

#[test]
fn the_gateway_carries_ipv4_over_ipv6() {
    with_nat(false, true, |node| {
        for proto in [TCP, UDP, SCTP] {
            let source: SocketAddr = (CLIENT, 1234).into();
            let first = Frame::new(proto, source, (WORLD, 443).into());

            let ran = receive(node, TC, &first)?;

            assert_eq!(ran.verdict, REDIRECT, "{proto}: {:?}", drops(node)?);
            let sent = read_back(&ran);
            let expected = Frame {
                source: (embed(CLIENT), 1234).into(),
                destination: (embed(WORLD), 443).into(),
                hop_limit: 63,
                ..first.clone()
            };
            assert_eq!(sent, expected);

            let ran = receive(node, TC, &sent.clone())?;
            assert_eq!(ran.verdict, REDIRECT, "{proto}: {:?}", drops(node)?);
            let back = read_back(&ran);
            assert_eq!(
                back,
                Frame {
                    hop_limit: 62,
                    ..first
                }
            );
        }
        assert_eq!(
            node.entries("cilium_snat_v6_external")?.len(),
            0,
            "it has no state"
        );
        Ok(())
    });
}

#[test]
fn what_the_cluster_has_does_not_pass_the_gateway() {
    with_nat(false, true, |node| {
        for destination in [NODE, Ipv4Addr::new(224, 0, 0, 5), Ipv4Addr::BROADCAST, REMOTE_POD] {
            let frame = Frame::new(UDP, (CLIENT, 1234).into(), (destination, 9).into());
            let ran = receive(node, TC, &frame)?;
            assert_eq!(ran.packet[12..14], [8, 0], "{destination}");
        }
        Ok(())
    });
}

#[test]
fn echo_messages_pass_the_gateway() {
    with_nat(false, true, |node| {
        for (kind4, kind6) in [(8, 128), (0, 129)] {
            let message = vec![kind4, 0, 0, 0, 0x12, 0x34, 0, 1, 1, 2, 3];
            let echo = Raw::icmp(CLIENT.into(), WORLD.into(), message.clone());

            let ran = run(node, &echo)?;

            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            let (source, destination, sent) = read_icmp(&ran.packet);
            assert_eq!((source, destination), (embed(CLIENT).into(), embed(WORLD).into()));
            assert_eq!((sent[0], &sent[4..]), (kind6, &message[4..]));

            let ran = node.run(TC, &ran.packet, &at(ETH0_IFINDEX))?;
            let (source, destination, back) = read_icmp(&ran.packet);
            assert_eq!((source, destination), (CLIENT.into(), WORLD.into()));
            assert_eq!((back[0], &back[4..]), (kind4, &message[4..]));
        }
        Ok(())
    });
}

/// Type, code and the four bytes behind the checksum.
type Message = (u8, u8, [u8; 4]);

#[track_caller]
fn check_error(node: &PacketNode, family: Family, message: Message, expected: Option<Message>) {
    let (from, to): (IpAddr, IpAddr) = match family {
        V4 => (WORLD.into(), CLIENT.into()),
        V6 => (embed(WORLD).into(), embed(CLIENT).into()),
    };
    let caused = Frame::new(TCP, (to, 1234).into(), (from, 443).into());
    let mut bytes = vec![message.0, message.1, 0, 0];
    bytes.extend(message.2);
    bytes.extend(&caused.bytes()[14..]);
    let error = Raw::icmp(from, to, bytes);

    let ran = run(node, &error).unwrap();

    let reasons = drops(node).unwrap();
    let Some((kind, code, rest)) = expected else {
        assert_eq!(ran.verdict, SHOT, "{message:?}");
        assert_eq!(reasons, [if family == V4 { NAT46 } else { NAT64 }]);
        return;
    };
    assert_eq!(ran.verdict, REDIRECT, "{message:?}: {reasons:?}");
    let (_, _, sent) = read_icmp(&ran.packet);
    assert_eq!(
        (sent[0], sent[1], &sent[4..8]),
        (kind, code, &rest[..]),
        "{message:?}"
    );
    // Inside is what its sender knows, checksums included.
    let mut inside = ran.packet[..14].to_vec();
    inside[12..14].copy_from_slice(if family == V4 { &[0x86, 0xdd] } else { &[8, 0] });
    inside.extend(&sent[8..]);
    let inside = Frame::read(&inside).unwrap_or_else(|wrong| panic!("{wrong} inside {message:?}"));
    let ends: (IpAddr, IpAddr) = match family {
        V4 => (embed(CLIENT).into(), embed(WORLD).into()),
        V6 => (CLIENT.into(), WORLD.into()),
    };
    let expected = Frame {
        source: (ends.0, 1234).into(),
        destination: (ends.1, 443).into(),
        ..caused
    };
    assert_eq!(inside, expected);
}

#[test]
fn errors_pass_the_gateway_with_the_packet_in_them() {
    with_nat(false, true, |node| {
        let mtu = |mtu: u16| {
            let [high, low] = mtu.to_be_bytes();
            [0, 0, high, low]
        };
        let none = [0; 4];
        // RFC 7915 4.2.
        let of4 = [
            ((3, 0, none), Some((1, 0, none))),
            ((3, 1, none), Some((1, 0, none))),
            ((3, 2, none), Some((4, 1, [0, 0, 0, 6]))),
            ((3, 3, none), Some((1, 4, none))),
            ((3, 4, mtu(1400)), Some((2, 0, mtu(1420)))),
            ((3, 4, mtu(0)), Some((2, 0, mtu(1280)))),
            ((3, 9, none), Some((1, 1, none))),
            ((3, 13, none), Some((1, 1, none))),
            ((3, 14, none), None),
            ((3, 15, none), Some((1, 1, none))),
            ((11, 1, none), Some((3, 1, none))),
            ((12, 0, [8, 0, 0, 0]), Some((4, 0, [0, 0, 0, 7]))),
            ((12, 0, [4, 0, 0, 0]), None),
            ((12, 1, none), None),
        ];
        for (message, expected) in of4 {
            check_error(node, V4, message, expected);
        }
        // RFC 7915 5.2.
        let of6 = [
            ((1, 0, none), Some((3, 1, none))),
            ((1, 1, none), Some((3, 10, none))),
            ((1, 4, none), Some((3, 3, none))),
            ((1, 5, none), None),
            ((2, 0, mtu(1400)), Some((3, 4, mtu(1380)))),
            ((2, 0, mtu(100)), Some((3, 4, mtu(1260)))),
            ((3, 0, none), Some((11, 0, none))),
            ((4, 0, [0, 0, 0, 24]), Some((12, 0, [16, 0, 0, 0]))),
            ((4, 0, [0, 0, 0, 41]), None),
            ((4, 1, none), Some((3, 2, none))),
            ((4, 2, none), None),
        ];
        for (message, expected) in of6 {
            check_error(node, V6, message, expected);
        }
        Ok(())
    });
}

#[test]
fn errors_of_routers_behind_the_service_reach_clients() {
    with_nat(true, false, |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let service = serve(node, family, TCP, other(family).remote_pod())?;
            let first = ask(family, TCP, service);
            let sent = read_back(&receive(node, TC, &first)?);
            let router = other(family).pick(Ipv4Addr::new(172, 30, 0, 9), "fd00:30::9");
            let mut bytes = match family {
                V4 => vec![2, 0, 0, 0, 0, 0, 5, 120],
                V6 => vec![3, 4, 0, 0, 0, 0, 5, 120],
            };
            bytes.extend(&sent.bytes()[14..]);
            let error = Raw::icmp(router, sent.source.ip(), bytes);

            let ran = run(node, &error)?;

            let (source, destination, error) = read_icmp(&ran.packet);
            assert_eq!(destination, family.client(), "{:?}", drops(node)?);
            let (expected_source, kind, mtu): (IpAddr, _, u16) = match family {
                V4 => (NODE.into(), (3, 4), 1380),
                V6 => (embed(Ipv4Addr::new(172, 30, 0, 9)).into(), (2, 0), 1420),
            };
            assert_eq!((source, (error[0], error[1])), (expected_source, kind));
            assert_eq!(error[6..8], mtu.to_be_bytes());
            let mut inside = first.bytes()[..14].to_vec();
            inside.extend(&error[8..]);
            let inside = Frame::read(&inside).unwrap_or_else(|wrong| panic!("{wrong} inside: {error:02x?}"));
            assert_eq!(
                (inside.source, inside.destination),
                (first.source, first.destination)
            );
        }
        Ok(())
    });
}

#[test]
fn packets_that_become_too_large_are_answered() {
    with_nat(true, true, |node| {
        let service = serve(node, V4, UDP, V6.remote_pod())?;
        // 20 bytes more than fit.
        let fits = ask(V4, UDP, service).payload(MTU - 40 - 8);
        assert_eq!(receive(node, TC, &fits)?.verdict, REDIRECT);
        let large = ask(V4, UDP, service).payload(MTU - 40 - 8 + 1);
        for frame in [
            large,
            Frame::new(UDP, (CLIENT, 1).into(), (WORLD, 2).into()).payload(MTU - 28),
        ] {
            let ran = receive(node, TC, &frame)?;

            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            let (source, destination, error) = read_icmp(&ran.packet);
            assert_eq!((source, destination), (frame.destination.ip(), frame.source.ip()));
            assert_eq!((error[0], error[1]), (3, 4));
            assert_eq!(error[6..8], (MTU as u16 - 20).to_be_bytes());
        }

        // Without "don't fragment", no error is sent.
        let mut silent = Raw::new(CLIENT.into(), WORLD.into(), UDP, vec![0; MTU - 20]);
        silent.fragment = 0;
        assert_eq!(run(node, &silent)?.verdict, SHOT);
        assert_eq!(drops(node)?, [NAT46]);
        Ok(())
    });
}

#[test]
fn clients_of_ipv4_get_no_error_of_ipv6() {
    with_nat(true, true, |node| {
        let service = serve(node, V4, UDP, V6.remote_pod())?;
        for to in [service, (WORLD, 2).into()] {
            let frame = Frame::new(UDP, (CLIENT, 1).into(), to).hop_limit(1);

            assert_eq!(receive(node, TC, &frame)?.verdict, SHOT, "{to}");

            assert_eq!(drops(node)?, [TTL_EXCEEDED], "{to}");
        }
        Ok(())
    });
}

/// A UDP datagram between two addresses; without a checksum if `checksum` is false.
fn datagram(source: IpAddr, destination: IpAddr, length: usize, checksum: bool) -> Vec<u8> {
    let frame = Frame::new(UDP, (source, 5).into(), (destination, 6).into()).payload(length);
    let header = if source.is_ipv4() { 34 } else { 54 };
    let mut bytes = frame.bytes()[header..].to_vec();
    if !checksum {
        bytes[6..8].fill(0);
    }
    bytes
}

#[test]
fn headers_keep_what_both_families_have() {
    with_nat(false, true, |node| {
        let (client, world) = (IpAddr::from(CLIENT), IpAddr::from(WORLD));
        // Options go, the class of traffic stays.
        let mut packet = Raw::new(client, world, UDP, datagram(client, world, 100, true));
        packet.tos = 0xb9;
        packet.options = vec![1, 1, 148, 4, 0, 0, 0, 0];
        let ran = run(node, &packet)?;
        assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
        assert_eq!(ran.packet[14..16], [0x6b, 0x90]);
        read_back(&ran);

        // Extension headers go, too; the packet may be fragmented on its way if it is small.
        let (client6, world6) = (IpAddr::from(embed(CLIENT)), IpAddr::from(embed(WORLD)));
        for (length, may_be_fragmented) in [(100, true), (1300, false)] {
            let mut packet = Raw::new(client6, world6, UDP, datagram(client6, world6, length, true));
            packet.tos = 0xb9;
            packet.options = vec![17, 0, 1, 4, 0, 0, 0, 0];
            let ran = run(node, &packet)?;
            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            assert_eq!(ran.packet[15], 0xb9);
            assert_eq!(ran.packet[20] & 0x40 == 0, may_be_fragmented);
            read_back(&ran);
        }

        // IPv6 has no datagrams without a checksum.
        for length in [0, 1, 7, 248, 249, 255, 256, 1000, 1400] {
            let packet = Raw::new(client, world, UDP, datagram(client, world, length, false));
            let ran = run(node, &packet)?;
            assert_eq!(ran.verdict, REDIRECT, "{length}: {:?}", drops(node)?);
            assert_eq!(read_back(&ran).payload.len(), length);
        }
        Ok(())
    });
}

#[test]
fn fragments_stay_fragments() {
    with_nat(false, true, |node| {
        let (client, world) = (IpAddr::from(CLIENT), IpAddr::from(WORLD));
        let whole = datagram(client, world, 192, true);
        let mut together = Vec::new();
        for (offset, part) in [(0, &whole[..96]), (96, &whole[96..])] {
            let more = if offset == 0 { 0x2000 } else { 0 };
            let mut packet = Raw::new(client, world, UDP, part.to_vec());
            packet.fragment = more | (offset / 8);

            let ran = run(node, &packet)?;

            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            let sent = &ran.packet[14..];
            assert_eq!((sent[6], sent[40]), (44, UDP));
            let field = u16::from_be_bytes([sent[42], sent[43]]);
            assert_eq!((field & 0xfff8, field & 1 != 0), (offset, offset == 0));
            assert_eq!(sent[44..48], [0, 0, 0x12, 0x34]);
            together.extend(&sent[48..]);

            let ran = node.run(TC, &ran.packet, &at(ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            let back = &ran.packet[14..];
            assert_eq!(fold(sum(&back[..20])), 0xffff);
            assert_eq!(back[4..8], packet.packet()[4..8], "id, flags, offset");
            assert_eq!(&back[20..], part);
        }
        let total = pseudo(UDP, embed(CLIENT).into(), embed(WORLD).into(), together.len()) + sum(&together);
        assert_eq!(fold(total), 0xffff, "checksum of the datagram");
        Ok(())
    });
}

#[test]
fn what_cannot_be_translated_is_dropped() {
    with_nat(true, true, |node| {
        let (client, world) = (IpAddr::from(CLIENT), IpAddr::from(WORLD));
        let (client6, world6) = (IpAddr::from(embed(CLIENT)), IpAddr::from(embed(WORLD)));
        let udp = datagram(client, world, 100, true);
        let source_routed = |pointer| Raw {
            options: vec![131, 7, pointer, 192, 0, 2, 1, 0],
            ..Raw::new(client, world, UDP, udp.clone())
        };
        assert_eq!(
            run(node, &source_routed(8))?.verdict,
            REDIRECT,
            "it has been everywhere"
        );
        let fragment = |payload: Vec<u8>, proto| Raw {
            fragment: 0x2000,
            ..Raw::new(client, world, proto, payload)
        };
        let of_icmp =
            |kind: u8, from: IpAddr, to: IpAddr| Raw::icmp(from, to, vec![kind, 0, 0, 0, 0, 0, 0, 0]);
        let routed = |left| Raw {
            options: vec![17, 0, 0, left, 0, 0, 0, 0],
            ..Raw::new(client6, world6, UDP, datagram(client6, world6, 8, true))
        };
        let mut with_routing = routed(1).frame();
        with_routing[20] = 43;
        let foreign = Raw::new(V6.client(), world6, UDP, datagram(V6.client(), world6, 8, true));
        let mut short = Raw::new(client, world, UDP, udp.clone()).frame();
        short[16..18].copy_from_slice(&10_u16.to_be_bytes());
        let dropped = [
            (short, NAT46),
            (source_routed(4).frame(), NAT46),
            (fragment(datagram(client, world, 88, false), UDP).frame(), NAT46),
            (of_icmp(13, client, world).frame(), NAT46),
            (of_icmp(130, client6, world6).frame(), NAT64),
            (with_routing, NAT64),
            (foreign.frame(), NAT64),
        ];
        for (n, (frame, reason)) in dropped.into_iter().enumerate() {
            let ran = node.run(TC, &frame, &at(ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![reason]), "packet {n}");
        }
        Ok(())
    });
}
