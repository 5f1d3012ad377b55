// SPDX-License-Identifier: Apache-2.0

//! Termination of direct server return by IP in IP: packets of clients arrive inside others, at the node of the backend
//! that the other node has selected.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use run_packets::{
    Error,
    node::{Called, PacketNode, with_options},
};
use skep_bpf_maps::lb::{
    Backend4, Backend6, BackendKey, ReverseNat4, ReverseNat6, ReverseNatKey, Scope, Service4Key, Service6Key,
    ServiceFlags, ServiceValue,
};
use skep_bpf_programs::NodeOptions;
use zerocopy::IntoBytes as _;

use crate::{dsr::*, frame::*, packet::*};

const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const ID: u16 = 7400;
const NO_SERVICE: u8 = 158;
const CONTAINER: &str = "cil_from_container";
const TO_NETWORK: &str = "cil_to_netdev";

fn with_termination(test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let change = |options: &mut NodeOptions| options.packets.ipip_termination = true;
    with_options(&facts(), change, test).unwrap();
}

pub(crate) fn service(family: Family) -> SocketAddr {
    (
        family.pick(Ipv4Addr::new(203, 0, 113, 80), "2001:db8:80::1"),
        PORT,
    )
        .into()
}

/// Writes a service with a backend here, behind `before` others elsewhere.
pub(crate) fn serve(node: &PacketNode, family: Family, proto: u8, before: u16) -> Result<(), Error> {
    let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::ROUTABLE;
    let [services, backends, reverse] = [
        "cilium_lb4_services_v2",
        "cilium_lb4_backends_v3",
        "cilium_lb4_reverse_nat",
    ]
    .map(|name| family.map(name));
    let key = |slot| match service(family).ip() {
        IpAddr::V4(ip) => Service4Key::new(ip, PORT, proto, Scope::External)
            .at(slot)
            .as_bytes()
            .to_vec(),
        IpAddr::V6(ip) => Service6Key::new(ip, PORT, proto, Scope::External)
            .at(slot)
            .as_bytes()
            .to_vec(),
    };
    for slot in 1..=before + 1 {
        let id = u32::from(ID) + u32::from(slot);
        let address = if slot > before {
            family.local_pod()
        } else {
            family.remote_pod()
        };
        let backend = match address {
            IpAddr::V4(ip) => Backend4::new(ip, BACKEND_PORT, proto).as_bytes().to_vec(),
            IpAddr::V6(ip) => Backend6::new(ip, BACKEND_PORT, proto).as_bytes().to_vec(),
        };
        node.write(&backends, BackendKey::new(id).as_bytes(), &backend)?;
        node.write(
            &services,
            &key(slot),
            ServiceValue::slot(id, ID, flags).as_bytes(),
        )?;
    }
    let frontend = match service(family).ip() {
        IpAddr::V4(ip) => ReverseNat4::new(ip, PORT).as_bytes().to_vec(),
        IpAddr::V6(ip) => ReverseNat6::new(ip, PORT).as_bytes().to_vec(),
    };
    node.write(&reverse, ReverseNatKey::new(ID).as_bytes(), &frontend)?;
    node.write(
        &services,
        &key(0),
        ServiceValue::master(before + 1, 0, ID, flags).as_bytes(),
    )
}

/// The packet as the other node sends it.
fn inside(family: Family, frame: &Frame, outside: IpAddr) -> Vec<u8> {
    let mut bytes = frame.bytes();
    let packet = bytes.split_off(14);
    match (family.pick(Ipv4Addr::new(172, 30, 0, 2), "fd00:30::2"), outside) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0x45, 0];
            ip.extend(((20 + packet.len()) as u16).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 63, 4, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let checksum = !fold(sum(&ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            bytes.extend(ip);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend((packet.len() as u16).to_be_bytes());
            bytes.extend([41, 63]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        mixed => panic!("one address family each: {mixed:?}"),
    }
    bytes.extend(packet);
    bytes
}

fn run(node: &PacketNode, frame: &[u8]) -> Result<Called, Error> {
    node.run(TC, frame, &at(ETH0_IFINDEX))
}

#[test]
fn packets_inside_others_reach_the_chosen_backend_and_answers_come_from_the_service() {
    with_termination(|node| {
        each(|family, proto| {
            serve(node, family, proto, 40)?;
            for port in 40_000..40_010 {
                let first = Frame::new(proto, (family.client(), port).into(), service(family));
                for flags in [SYN, ACK] {
                    let frame = first.clone().flags(if proto == TCP { flags } else { 0 });

                    let ran = run(node, &inside(family, &frame, family.local_pod()))?;

                    assert_eq!(ran.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
                    let expected = Frame {
                        destination: (family.local_pod(), BACKEND_PORT).into(),
                        hop_limit: 63,
                        ..frame.clone()
                    };
                    assert_eq!(read_back(&ran), expected);
                    assert_eq!(ran.packet[..6], P2_MAC);
                }

                let sent = Frame {
                    destination: (family.local_pod(), BACKEND_PORT).into(),
                    ..first.clone()
                };
                let mut answer = sent.answer().bytes();
                answer[6..12].copy_from_slice(&P2_MAC);
                let left = node.run(CONTAINER, &answer, &at(P2_IFINDEX))?;
                assert_eq!(left.verdict, REDIRECT, "{:?}", drops(node)?);
                let ran = node.run(TO_NETWORK, &left.packet, &at(ETH0_IFINDEX))?;

                let expected = Frame {
                    hop_limit: 63,
                    ..first.answer()
                };
                assert_eq!(read_back(&ran), expected, "straight to the client");
            }
            Ok(())
        })
    });
}

#[test]
fn another_choice_of_the_other_node_counts() {
    with_termination(|node| {
        each(|family, proto| {
            serve(node, family, proto, 1)?;
            let first = Frame::new(proto, (family.client(), 40_000).into(), service(family));
            // Here, the flow may have any backend.
            for _ in 0..2 {
                let ran = run(node, &first.bytes())?;
                assert_eq!(ran.verdict, REDIRECT);
            }

            let ran = run(node, &inside(family, &first, family.local_pod()))?;

            assert_eq!(read_back(&ran).destination.ip(), family.local_pod());
            Ok(())
        })
    });
}

#[test]
fn the_xdp_program_leaves_them_to_the_tc_program() {
    with_termination(|node| {
        for family in [V4, V6] {
            serve(node, family, TCP, 3)?;
            let first = Frame::new(TCP, (family.client(), 40_000).into(), service(family));
            let frame = inside(family, &first, family.local_pod());
            let ran = node.run(XDP, &frame, &at(ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, ran.packet), (XDP_PASS, frame));
        }
        Ok(())
    });
}

#[test]
fn packets_inside_others_for_nothing_here_are_dropped() {
    with_termination(|node| {
        for family in [V4, V6] {
            serve(node, family, TCP, 3)?;
            let request = Frame::new(TCP, (family.client(), 40_000).into(), service(family));
            // No service has this port, and no slot this backend.
            let mut unknown = request.clone();
            unknown.destination.set_port(81);
            let other = family.pick(P1, "fd00:10:1::63cb");
            for (frame, outside) in [(&unknown, family.local_pod()), (&request, other)] {
                let ran = run(node, &inside(family, frame, outside))?;
                assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![NO_SERVICE]));
            }

            // What is cut off inside.
            let whole = inside(family, &request, family.local_pod());
            let header = if family == V4 { 34 } else { 54 };
            for length in [header, header + 4, header + 19] {
                let ran = run(node, &whole[..length])?;
                assert_eq!(ran.verdict, SHOT, "{length}");
                assert_eq!(drops(node)?.len(), 1);
            }

            // A packet inside another for the pod itself is for the pod.
            let mut direct = request.clone();
            direct.destination = (family.local_pod(), 9).into();
            let ran = run(node, &inside(family, &direct, family.local_pod()))?;
            assert_eq!(
                (ran.verdict, read_back(&ran).destination),
                (REDIRECT, direct.destination)
            );
        }
        Ok(())
    });
}

#[test]
fn packets_for_others_and_without_the_option_stay_as_they_are() {
    with_termination(|node| {
        for family in [V4, V6] {
            let request = Frame::new(TCP, (family.client(), 40_000).into(), service(family));
            for outside in [family.node(), family.remote_pod()] {
                let frame = inside(family, &request, outside);
                let ran = run(node, &frame)?;
                assert_eq!((ran.verdict, ran.packet), (0, frame));
            }
        }
        Ok(())
    });
    with_options(
        &facts(),
        |_| {},
        |node: &PacketNode| {
            for family in [V4, V6] {
                serve(node, family, TCP, 0)?;
                let request = Frame::new(TCP, (family.client(), 40_000).into(), service(family));
                let frame = inside(family, &request, family.local_pod());
                let ran = run(node, &frame)?;
                // What is inside is untouched.
                let header = if family == V4 { 34 } else { 54 };
                assert_eq!(ran.packet[header..], frame[header..]);
            }
            Ok(())
        },
    )
    .unwrap();
}
