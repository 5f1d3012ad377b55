// SPDX-License-Identifier: Apache-2.0

//! SCTP: has ports, which cannot be changed, and no checksum over addresses.

use std::net::{IpAddr, SocketAddr};

use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_programs::NodeOptions;

use crate::{dsr::*, frame::*, packet::*};

const UNKNOWN_PROTOCOL: u8 = 137;
const L4_CHECKSUM: u8 = 154;
const NO_MAPPING: u8 = 167;
/// Backends that the facts do not have.
const BACKEND: u32 = 0x60;

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Adds a service with one backend, where clients outside may use it.
fn serve(node: &PacketNode, service: SocketAddr, backend: SocketAddr) -> Result<(), Error> {
    let (services, backends, reverse) = if service.is_ipv4() {
        (
            "cilium_lb4_services_v2",
            "cilium_lb4_backends_v3",
            "cilium_lb4_reverse_nat",
        )
    } else {
        (
            "cilium_lb6_services_v2",
            "cilium_lb6_backends_v3",
            "cilium_lb6_reverse_nat",
        )
    };
    let id = [0x70, service.port() as u8];
    let backend_id = BACKEND + u32::from(service.port());
    for slot in [0_u16, 1] {
        let mut key = octets(service.ip());
        key.extend(service.port().to_be_bytes());
        key.extend(slot.to_ne_bytes());
        key.extend([SCTP, 0, 0, 0]);
        let mut value = if slot == 0 { 0 } else { backend_id }.to_ne_bytes().to_vec();
        value.extend([1 - slot as u8, 0, id[0], id[1], 0x42, 0, 0, 0]);
        node.write(services, &key, &value)?;
    }
    let mut value = octets(backend.ip());
    value.extend(backend.port().to_be_bytes());
    value.extend([SCTP, 0, 0, 0, 0, 0]);
    node.write(backends, &backend_id.to_ne_bytes(), &value)?;
    let mut value = octets(service.ip());
    value.extend(service.port().to_be_bytes());
    node.write(reverse, &id, &value)
}

fn with_sctp(test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let change = |options: &mut NodeOptions| options.packets.sctp = true;
    with_options(&facts(), change, test).unwrap();
}

#[test]
fn services_translate_addresses_and_keep_ports() {
    with_sctp(|node| {
        for family in [V4, V6] {
            serve(
                node,
                (family.node(), 30_100).into(),
                (family.remote_pod(), 30_100).into(),
            )?;
        }
        everywhere(node, |program, sends, family| {
            let frame = Frame::new(
                SCTP,
                (family.client(), 40_000).into(),
                (family.node(), 30_100).into(),
            );

            let ran = receive(node, program, &frame)?;

            assert_eq!(ran.verdict, sends, "{program} {family:?}");
            let seen = read_back(&ran);
            assert_eq!(seen.source, (family.node(), 40_000).into());
            assert_eq!(seen.destination, (family.remote_pod(), 30_100).into());
            assert_eq!(seen.payload, frame.payload);

            let answer = receive(node, program, &seen.answer())?;
            assert_eq!(answer.verdict, sends);
            let seen = read_back(&answer);
            assert_eq!(seen.source, frame.destination, "{program}");
            assert_eq!(seen.destination, frame.source);
            Ok(())
        })
    });
}

#[test]
fn ports_that_would_change_are_dropped() {
    with_sctp(|node| {
        for family in [V4, V6] {
            serve(
                node,
                (family.node(), 30_100).into(),
                (family.remote_pod(), 30_100).into(),
            )?;
            serve(
                node,
                (family.node(), 30_101).into(),
                (family.remote_pod(), 9_000).into(),
            )?;
        }
        everywhere(node, |program, _, family| {
            let to = |from: u16, port: u16| {
                Frame::new(SCTP, (family.client(), from).into(), (family.node(), port).into())
            };
            let dropped = if program == TC { SHOT } else { XDP_DROP };
            drops(node)?;
            let ran = receive(node, program, &to(40_000, 30_101))?;
            assert_eq!(ran.verdict, dropped);
            assert_eq!(drops(node)?, [L4_CHECKSUM], "{program}: the port of the backend");

            // It is not one of translated packets.
            let ran = receive(node, program, &to(1_000, 30_100))?;
            assert_eq!(ran.verdict, dropped);
            assert_eq!(drops(node)?, [NO_MAPPING], "{program}: the port of the client");
            Ok(())
        })
    });
}

#[test]
fn pods_reach_services() {
    with_sctp(|node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let service = SocketAddr::new(family.pick(VIP, "fd00:96::101"), 9_100);
            serve(node, service, (family.local_pod(), 9_100).into())?;
            let pod = family.pick(P1, "fd00:10:1::63cb");
            let frame = Frame::new(SCTP, (pod, 40_000).into(), service);

            let sent = node.run("cil_from_container", &frame.bytes(), &at(P1_IFINDEX))?;

            assert_eq!(sent.verdict, REDIRECT, "{family:?}");
            let seen = read_back(&sent);
            assert_eq!(seen.destination, (family.local_pod(), 9_100).into());
            let back = node.run("cil_from_container", &seen.answer().bytes(), &at(P2_IFINDEX))?;
            assert_eq!(back.verdict, REDIRECT);
            assert_eq!(read_back(&back).source, service);
        }
        Ok(())
    });
}

#[test]
fn without_the_setting_it_is_unknown() {
    with_node(&facts(), |node| {
        for family in [V4, V6] {
            let pod = family.pick(P1, "fd00:10:1::63cb");
            let frame = Frame::new(SCTP, (pod, 40_000).into(), (family.local_pod(), 9_100).into());
            drops(node)?;
            let sent = node.run("cil_from_container", &frame.bytes(), &at(P1_IFINDEX))?;
            assert_eq!(sent.verdict, SHOT);
            assert_eq!(drops(node)?, [UNKNOWN_PROTOCOL]);
        }
        Ok(())
    })
    .unwrap();
}
