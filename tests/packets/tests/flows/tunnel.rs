// SPDX-License-Identifier: Apache-2.0

//! What programs decide with a tunnel to other nodes, and with networks that are reached without masquerade. What
//! comes out of the tunnel is in the tests `tunnel`: a packet that is run once has no tunnel around it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_maps::{
    ip_masq::IpMasqKey4,
    node::{IDENTITY_REMOTE_NODE, IpcacheKey, IpcacheValue},
};
use skep_bpf_programs::{
    DirectReturn, DsrDispatch, NodeOptions, Tunnel, TunnelProtocol, testing::run::SkBuff,
};
use zerocopy::IntoBytes as _;

use crate::{dsr::*, frame::*, packet::*};

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 142);
const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// An interface of the facts, in the place of the tunnel's.
pub(crate) const DEVICE: u32 = 3;
const DROP: u8 = 1;
const TRACE: u8 = 4;
const TO_OVERLAY: u8 = 4;
const TO_NETWORK: u8 = 11;
pub(crate) const NO_TUNNEL_KEY: u8 = 147;
const IDENTITY_WORLD: u32 = 2;

pub(crate) fn tunnel(options: &mut NodeOptions) {
    options.packets.router4 = ROUTER;
    options.packets.router6 = "fd00:10:1::afcc".parse().unwrap();
    options.packets.tunnel = Some(Tunnel {
        protocol: TunnelProtocol::Vxlan,
        port: 8472,
        device: DEVICE,
        source_ports: (32_768, 60_999),
    });
}

fn packet(source: Side, destination: Side) -> Packet {
    Packet {
        is_tcp: true,
        source,
        destination,
        tcp_flags: 2,
        ttl: 64,
        options: 0,
        payload: Vec::new(),
    }
}

#[test]
fn packets_of_pods_go_to_the_tunnel_or_to_the_network() {
    let frame = packet((P1, 40_000), (REMOTE_POD, 80)).frame(P1_MAC);
    let points = |events: Vec<Vec<u8>>| -> Vec<u8> {
        let traces = events.into_iter().filter(|event| event[0] == TRACE);
        traces.map(|event| event[1]).collect()
    };

    let tunnelled = with_options(&facts(), tunnel, |node| {
        let ran = node.run("cil_from_container", &frame, &at(P1_IFINDEX))?;
        Ok((ran.verdict, ran.packet, points(node.take_events()?)))
    })
    .unwrap();
    let routed = with_node(&facts(), |node| {
        let ran = node.run("cil_from_container", &frame, &at(P1_IFINDEX))?;
        Ok((ran.verdict, ran.packet, points(node.take_events()?)))
    })
    .unwrap();

    assert_eq!(tunnelled, (REDIRECT, frame, vec![TO_OVERLAY]));
    assert_eq!((routed.0, routed.2), (REDIRECT, vec![TO_NETWORK]));
    let ttl = 22;
    assert_eq!(routed.1[ttl], 63, "one hop further");
}

#[test]
fn node_ports_have_the_address_of_cilium_host_behind_the_tunnel() {
    let frame = packet((CLIENT, 40_000), (NODE, NODE_PORT)).frame(CLIENT_MAC);
    // Nothing would tell a backend behind the tunnel which service was asked for.
    let directly = |options: &mut NodeOptions| {
        tunnel(options);
        options.packets.dsr = Some(DirectReturn {
            dispatch: DsrDispatch::IpOption,
            all_services: true,
            icmp_errors: false,
        });
    };
    for change in [tunnel, directly] {
        let done = with_options(&facts(), change, |node| {
            let ran = node.run("cil_from_netdev", &frame, &at(ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, REDIRECT);
            let (source, backend) = read(&ran.packet).expect("right checksums");
            assert_eq!((source, backend.0), ((ROUTER, 40_000), REMOTE_POD));
            Ok(())
        });
        done.unwrap();
    }
}

/// What is before a frame in the tunnel: Ethernet, IPv4, UDP, VXLAN.
const OUTER: usize = 14 + 20 + 8 + 8;
const PEER: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);
const PEER_MAC: [u8; 6] = [0x76, 0x24, 0x05, 0x16, 0xd4, 0xf3];
const PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;

fn router(family: Family) -> IpAddr {
    family.pick(ROUTER, "fd00:10:1::afcc")
}

/// Reads what the XDP program encapsulated: source port and tunnel id, and the frame inside.
#[track_caller]
fn unpack(packet: &[u8], ecn: u8) -> (u16, u32, &[u8]) {
    let (outer, inside) = packet.split_at(OUTER);
    let number = |at: usize| u16::from_be_bytes([outer[at], outer[at + 1]]);
    assert_eq!(outer[..6], PEER_MAC);
    assert_eq!(outer[6..12], [0x3a, 0x11, 0x4e, 0xee, 0xf2, 0xb2]);
    assert_eq!(outer[12..16], [8, 0, 0x45, ecn]);
    assert_eq!(usize::from(number(16)), packet.len() - 14);
    assert_eq!(outer[20..24], [0, 0, 64, 17], "may be fragmented, hop limit, UDP");
    assert_eq!(fold(sum(&outer[14..34])), 0xffff, "checksum of the IP header");
    assert_eq!(
        (&outer[26..30], &outer[30..34]),
        (&NODE.octets()[..], &PEER.octets()[..])
    );
    assert_eq!((number(36), number(40)), (8472, 0), "port, no checksum");
    assert_eq!(usize::from(number(38)), packet.len() - 34);
    assert_eq!(outer[42..46], [8, 0, 0, 0]);
    let id = u32::from_be_bytes([0, outer[46], outer[47], outer[48]]);
    assert_eq!(outer[49], 0);
    (number(34), id, inside)
}

#[test]
fn the_xdp_program_encapsulates_packets_for_backends_behind_the_tunnel() {
    let done = with_options(&facts(), tunnel, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let (request, mut ports) = (request(family, proto), BTreeSet::new());
            for n in 0..8 {
                let mut frame = request.clone();
                frame.source.set_port(40_000 + n);
                let sent = frame.bytes();

                let ran = node.run(XDP, &sent, &at(ETH0_IFINDEX))?;

                assert_eq!(ran.verdict, XDP_TX);
                let (port, id, inside) = unpack(&ran.packet, 0);
                assert_eq!(id, IDENTITY_WORLD);
                assert!(PORTS.contains(&port), "{port}");
                ports.insert(port);
                assert_eq!(inside[..14], sent[..14], "link header of the client's frame");
                let expected = Frame {
                    source: (router(family), 40_000 + n).into(),
                    destination: backend(family, proto),
                    hop_limit: 63,
                    ..frame.clone()
                };
                assert_eq!(Frame::read(inside).unwrap(), expected);

                // Packets of a flow have one source port, as receivers keep their order by it.
                let again = node.run(XDP, &sent, &at(ETH0_IFINDEX))?;
                assert_eq!(unpack(&again.packet, 0).0, port);
            }
            assert!(ports.len() > 4, "{ports:?}");
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn encapsulated_packets_tell_of_congestion() {
    let done = with_options(&facts(), tunnel, |node| {
        for ecn in 0..4 {
            for family in [V4, V6] {
                let mut frame = request(family, UDP).bytes();
                if family == V4 {
                    frame[15] = ecn;
                    frame[24..26].fill(0);
                    let checksum = !fold(sum(&frame[14..34]));
                    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
                } else {
                    frame[15] |= ecn << 4;
                }
                let ran = node.run(XDP, &frame, &at(ETH0_IFINDEX))?;
                let (_, _, inside) = unpack(&ran.packet, ecn);
                Frame::read(inside).unwrap();
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn the_xdp_program_leaves_what_it_cannot_encapsulate_to_the_tc_program() {
    let done = with_options(&facts(), tunnel, |node| {
        each(|family, proto| {
            let passed = |frame: Frame, why: &str| {
                node.forget_flows()?;
                let ran = receive(node, XDP, &frame)?;
                assert_eq!((ran.verdict, ran.metadata.len()), (XDP_PASS, 0), "{why}");
                assert_eq!(read_back(&ran), frame, "{why}: as it came");
                Ok::<_, Error>(())
            };
            let headers = if family == V4 { 20 } else { 40 } + if proto == TCP { 20 } else { 8 };
            let fits = request(family, proto).payload(MTU - (OUTER - 14) - 14 - headers);
            let ran = receive(node, XDP, &fits)?;
            assert_eq!((ran.verdict, ran.packet.len()), (XDP_TX, 14 + MTU));
            let mut large = fits;
            large.payload.push(0);
            passed(large, "the kernel fragments the packet outside")?;
            passed(request(family, proto).hop_limit(1), "the last hop")?;

            // IPv6 between nodes.
            let key = IpcacheKey::host(family.remote_pod());
            let known = node.entries("cilium_ipcache_v2")?.remove(key.as_bytes()).unwrap();
            let peer: IpAddr = "fd00:30::2".parse().unwrap();
            let value = IpcacheValue::new(40_001).with_tunnel_endpoint(peer);
            node.write("cilium_ipcache_v2", key.as_bytes(), value.as_bytes())?;
            passed(request(family, proto), "the checksum of UDP")?;
            node.write("cilium_ipcache_v2", key.as_bytes(), &known)
        })
    });
    done.unwrap();
}

#[test]
fn replies_to_clients_behind_the_tunnel_are_encapsulated_at_xdp() {
    let done = with_options(&facts(), tunnel, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            // A backend that has another way than its client.
            let client = family.pick(Ipv4Addr::new(10, 2, 0, 99), "fd00:10:2::99");
            let key = IpcacheKey::host(client);
            let value = IpcacheValue::new(40_002).with_tunnel_endpoint(PEER.into());
            node.write("cilium_ipcache_v2", key.as_bytes(), value.as_bytes())?;
            let key = IpcacheKey::host(family.remote_pod());
            let known = node.entries("cilium_ipcache_v2")?.remove(key.as_bytes()).unwrap();
            node.write(
                "cilium_ipcache_v2",
                key.as_bytes(),
                IpcacheValue::new(40_001).as_bytes(),
            )?;
            let asked = Frame::new(proto, (client, 40_000).into(), node_port(family, proto));
            let forwarded = read_back(&receive(node, XDP, &asked)?);
            assert_eq!(forwarded.source.ip(), family.node());

            let ran = receive(node, XDP, &forwarded.answer())?;

            assert_eq!(ran.verdict, XDP_TX);
            let (_, id, inside) = unpack(&ran.packet, 0);
            assert_eq!(id, IDENTITY_REMOTE_NODE);
            let expected = Frame {
                hop_limit: 63,
                ..asked.answer()
            };
            assert_eq!(Frame::read(inside).unwrap(), expected);
            node.write("cilium_ipcache_v2", key.as_bytes(), &known)
        })
    });
    done.unwrap();
}

#[test]
fn packets_without_a_tunnel_around_them_are_dropped() {
    let frame = packet((REMOTE_POD, 40_000), (P1, 80)).frame(CLIENT_MAC);
    let done = with_options(&facts(), tunnel, |node| {
        for program in ["cil_from_overlay", "cil_to_overlay"] {
            let ran = node.run(program, &frame, &at(DEVICE))?;
            assert_eq!(ran.verdict, SHOT, "{program}");
            let events = node.take_events()?;
            let drops: Vec<_> = events.iter().filter(|event| event[0] == DROP).collect();
            assert_eq!(drops.len(), 1, "{program}");
            assert_eq!(drops[0][1], NO_TUNNEL_KEY, "{program}");
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn networks_of_the_ip_masq_agent_are_reached_without_masquerade() {
    let agent = |options: &mut NodeOptions| options.packets.ip_masq_agent = true;
    let frame = packet((P1, 40_000), (WORLD, 80)).frame(P1_MAC);
    let done = with_options(&facts(), agent, |node| {
        let source = || {
            let ran = node.run("cil_to_netdev", &frame, &at(ETH0_IFINDEX))?;
            Ok::<_, Error>(read(&ran.packet).expect("right checksums").0.0)
        };
        assert_eq!(source()?, NODE);

        node.forget_flows()?;
        let key = IpMasqKey4::new(Ipv4Addr::new(203, 0, 113, 0), 24);
        node.write("cilium_ipmasq_v4", key.as_bytes(), &[0])?;
        assert_eq!(source()?, P1);

        node.delete("cilium_ipmasq_v4", key.as_bytes())?;
        assert_eq!(source()?, NODE);
        Ok(())
    });
    done.unwrap();
}

#[test]
fn events_at_interfaces_of_the_node_say_which_packets_are_of_the_tunnel() {
    /// Of the mark: a packet of the tunnel.
    const OVERLAY: u32 = 0x400;
    const CT_HEADER: u8 = 135;
    let change = |options: &mut NodeOptions| {
        tunnel(options);
        options.trace_aggregation = 0;
    };
    // Flags of the traces and drops since the last call.
    let flags = |node: &PacketNode| -> Result<Vec<u8>, Error> {
        let events = node.take_events()?.into_iter();
        Ok(events
            .filter_map(|event| match event[0] {
                TRACE => Some(event[27]),
                DROP => Some(event[36]),
                _ => None,
            })
            .collect())
    };
    let with = |change: &(dyn Fn(&mut NodeOptions) + Sync), expected: [u8; 2], is_mine: bool| {
        let done = with_options(&facts(), change, |node| {
            for (family, expected) in [V4, V6].into_iter().zip(expected) {
                let mut frame = Frame::new(
                    UDP,
                    (family.node(), 40_000).into(),
                    (family.client(), if is_mine { 8472 } else { 8473 }).into(),
                );
                node.take_events()?;
                let leaving = SkBuff {
                    mark: OVERLAY,
                    ..at(ETH0_IFINDEX)
                };
                node.run("cil_to_netdev", &frame.bytes(), &leaving)?;
                assert_eq!(flags(node)?, [expected], "{family:?}");

                (frame.source, frame.destination) = (
                    (family.client(), 40_000).into(),
                    (family.node(), frame.destination.port()).into(),
                );
                receive(node, TC, &frame)?;
                assert_eq!(flags(node)?, [expected], "{family:?}");
            }
            Ok(())
        });
        done.unwrap();
    };
    with(&change, [4, 5], true);
    with(&change, [0, 1], false);
    with(&|options| options.trace_aggregation = 0, [0, 1], true);

    // One that ends before its header says, where it is received; pods' packets are not of the tunnel.
    let done = with_options(&facts(), change, |node| {
        let mut frame = Frame::new(UDP, (CLIENT, 40_000).into(), (NODE, 8472).into()).bytes();
        frame[14 + 2] = 0x7f;
        node.take_events()?;
        node.run(TC, &frame, &at(ETH0_IFINDEX))?;
        let events = node.take_events()?;
        let dropped = events.iter().find(|event| event[0] == DROP).unwrap();
        assert_eq!((dropped[1], dropped[36]), (CT_HEADER, 4));

        let frame = Frame::new(UDP, (P1, 40_000).into(), (CLIENT, 8472).into()).bytes();
        node.run("cil_from_container", &frame, &at(P1_IFINDEX))?;
        let flags = flags(node)?;
        assert!(
            !flags.is_empty() && flags.iter().all(|flags| *flags == 0),
            "{flags:?}"
        );
        Ok(())
    });
    done.unwrap();
}
