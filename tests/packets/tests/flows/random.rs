// SPDX-License-Identifier: Apache-2.0

//! Packets that nobody recorded: what comes back is what a client expects, and garbage does no harm.

use std::net::Ipv6Addr;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_programs::PacketHash;

use crate::{
    packet::*,
    to_container::{add_program, leaving},
};

fn failed(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn packets() -> impl Strategy<Value = Packet> {
    let ports = (1_u16.., 1_u16..);
    let rest = (any::<bool>(), 2_u8.., 0_u8..=10, vec(any::<u8>(), 0..600));
    (ports, rest).prop_map(
        |((source, destination), (is_tcp, ttl, options, payload))| Packet {
            is_tcp,
            source: (P1, source),
            destination: (P2, destination),
            tcp_flags: 2,
            ttl,
            options,
            payload,
        },
    )
}

fn check(node: &PacketNode, cases: u32, test: impl Fn(&PacketNode, Packet) -> Result<(), TestCaseError>) {
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&packets(), |packet| test(node, packet))
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn answers_of_pods_come_back_as_they_were_asked() {
    let done = with_node(&facts()[..1], |node| {
        check(node, 256, |node, packet| {
            node.forget_flows().map_err(failed)?;
            let sent = node
                .run("cil_from_container", &packet.frame(P1_MAC), &at(P1_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(sent.verdict, REDIRECT);
            prop_assert_eq!(read(&sent.packet)?, (packet.source, packet.destination));
            prop_assert_eq!(sent.packet[22], packet.ttl - 1);

            let back = answer(packet.is_tcp, packet.destination, packet.source, &packet.payload);
            let received = node
                .run("cil_from_container", &back.frame(P2_MAC), &at(P2_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(received.verdict, REDIRECT);
            prop_assert_eq!(read(&received.packet)?, (packet.destination, packet.source));
            Ok(())
        });
        Ok(())
    });
    done.unwrap();
}

#[test]
fn answers_of_backends_come_from_the_service() {
    let done = with_node(&facts(), |node| {
        check(node, 256, |node, packet| {
            node.forget_flows().map_err(failed)?;
            let packet = Packet {
                is_tcp: true,
                destination: (VIP, 80),
                ..packet
            };
            let sent = node
                .run("cil_from_container", &packet.frame(P1_MAC), &at(P1_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(sent.verdict, REDIRECT);
            let (source, backend) = read(&sent.packet)?;
            prop_assert_eq!((source, backend.0), (packet.source, P2));

            let back = answer(true, backend, source, &packet.payload);
            let received = node
                .run("cil_from_container", &back.frame(P2_MAC), &at(P2_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(received.verdict, REDIRECT);
            prop_assert_eq!(read(&received.packet)?, ((VIP, 80), packet.source));
            Ok(())
        });
        Ok(())
    });
    done.unwrap();
}

#[test]
fn answers_of_backends_elsewhere_come_from_the_node_port() {
    come_from_the_node_port("cil_from_netdev", REDIRECT);
}

#[test]
fn answers_come_from_the_node_port_at_xdp() {
    come_from_the_node_port(XDP, XDP_TX);
}

fn come_from_the_node_port(program: &str, sends: u32) {
    let done = with_node(&facts(), |node| {
        check(node, 256, |node, packet| {
            node.forget_flows().map_err(failed)?;
            let packet = Packet {
                is_tcp: true,
                source: (CLIENT, packet.source.1),
                destination: (NODE, NODE_PORT),
                ..packet
            };
            let sent = node
                .run(program, &packet.frame(CLIENT_MAC), &at(ETH0_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(sent.verdict, sends);
            let (source, backend) = read(&sent.packet)?;
            prop_assert_eq!((source.0, backend.0), (NODE, REMOTE_POD));
            prop_assert!(source.1 >= 32_768, "no port of a service or of a process");

            let back = answer(true, backend, source, &packet.payload);
            let received = node
                .run(program, &back.frame(CLIENT_MAC), &at(ETH0_IFINDEX))
                .map_err(failed)?;
            prop_assert_eq!(received.verdict, sends);
            prop_assert_eq!(read(&received.packet)?, ((NODE, NODE_PORT), packet.source));
            Ok(())
        });
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

/// The kernel's `jhash_3words` of source, ports and protocol, as BPF programs read them.
fn packet_hash(source: Side, destination: u16, seed: u32) -> u32 {
    let word = |port: u16| u32::from(u16::from_ne_bytes(port.to_be_bytes()));
    let start = 0xdead_beef_u32.wrapping_add(12).wrapping_add(seed);
    let mut a = start.wrapping_add(u32::from_ne_bytes(source.0.octets()));
    let mut b = start.wrapping_add(word(destination) << 16 | word(source.1));
    let mut c = start.wrapping_add(6);
    for (x, y, by) in [
        (2, 1, 14),
        (0, 2, 11),
        (1, 0, 25),
        (2, 1, 16),
        (0, 2, 4),
        (1, 0, 14),
        (2, 1, 24),
    ] {
        let mut words = [a, b, c];
        words[x] = (words[x] ^ words[y]).wrapping_sub(words[y].rotate_left(by));
        [a, b, c] = words;
    }
    c
}

#[test]
fn maglev_tables_say_which_backend_a_client_gets() {
    // Service of the node port; backends on the other node, and in the second pod.
    const SERVICE: [u8; 2] = [0, 15];
    const REMOTE: u32 = 3;
    const LOCAL: u32 = 4;
    let hash = PacketHash::default();
    let done = with_options(
        &facts(),
        |options| options.packets.maglev = true,
        |node| {
            check(node, 64, |node, packet| {
                let packet = Packet {
                    is_tcp: true,
                    source: (CLIENT, packet.source.1),
                    destination: (NODE, NODE_PORT),
                    ..packet
                };
                let index = packet_hash(packet.source, NODE_PORT, hash.seeds[0]) % hash.table_size;
                let mut table = vec![REMOTE; hash.table_size as usize];
                table[index as usize] = LOCAL;
                let table: Vec<u8> = table.iter().flat_map(|id| id.to_ne_bytes()).collect();
                node.write("cilium_lb4_maglev", &SERVICE, &table)
                    .map_err(failed)?;
                for program in [XDP, "cil_from_netdev"] {
                    node.forget_flows().map_err(failed)?;
                    let frame = packet.frame(CLIENT_MAC);
                    let sent = node.run(program, &frame, &at(ETH0_IFINDEX)).map_err(failed)?;
                    prop_assert_eq!(read(&sent.packet)?.1, (P2, 8080), "{}", program);
                }
                Ok(())
            });
            Ok(())
        },
    );
    done.unwrap();
}

/// A frame of noise, most of it behind headers that are nearly right.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let ether = prop_oneof![
        4 => Just([0x08, 0x00]),
        4 => Just([0x86, 0xdd]),
        1 => Just([0x08, 0x06]),
        1 => any::<[u8; 2]>(),
    ];
    let addresses = prop_oneof![Just(P1), Just(P2), Just(VIP), Just(NODE), Just(REMOTE_POD)];
    (
        ether,
        addresses.clone(),
        addresses,
        vec(any::<u8>(), 40..200),
        any::<bool>(),
        any::<[u8; 2]>(),
    )
        .prop_map(|(ether, source, destination, mut rest, is_plausible, choice)| {
            if ether == [0x08, 0x00] {
                rest[12..16].copy_from_slice(&source.octets());
                rest[16..20].copy_from_slice(&destination.octets());
            }
            if is_plausible {
                let protocols = [1, 6, 17, 58, 0, 43, 44, 60, 132];
                let proto = protocols[usize::from(choice[0]) % protocols.len()];
                if ether == [0x08, 0x00] {
                    rest[0] = 0x45 + choice[1] % 11;
                    rest[2..4].copy_from_slice(&(20 + u16::from(choice[1] % 20)).to_be_bytes());
                    rest[9] = proto;
                } else {
                    rest[0] = 0x60;
                    rest[6] = proto;
                    rest[8..24].copy_from_slice(&Ipv6Addr::new(0xfd00, 0x10, 1, 0, 0, 0, 0, 0x63cb).octets());
                    rest[24..40].copy_from_slice(&Ipv6Addr::new(0xfd00, 0x10, 1, 0, 0, 0, 0, 0x325).octets());
                }
            }
            let mut frame = vec![0x7e, 0xad, 0xed, 0x74, 0xe4, 0xfc];
            frame.extend(P1_MAC);
            frame.extend(ether);
            frame.extend(rest);
            frame
        })
}

#[test]
fn garbage_is_dropped_with_a_reason_or_passes() {
    drops_garbage(|_| ());
}

#[test]
fn garbage_is_dropped_with_direct_return_too() {
    drops_garbage(|options| options.packets.dsr = Some(crate::dsr::DSR));
    drops_garbage(|options| {
        options.packets.dsr = Some(crate::ipip::IPIP);
        options.packets.sctp = true;
    });
}

fn drops_garbage(change: fn(&mut skep_bpf_programs::NodeOptions)) {
    let done = with_options(&facts(), change, |node| {
        add_program(node)?;
        let mut runner = TestRunner::new(Config {
            cases: 4000,
            failure_persistence: None,
            ..Config::default()
        });
        let ways = [
            ("cil_from_container", at(P1_IFINDEX)),
            ("cil_to_container", leaving(0, ETH0_IFINDEX)),
            ("cil_from_netdev", at(ETH0_IFINDEX)),
            ("cil_to_netdev", at(ETH0_IFINDEX)),
            ("cil_from_host", at(4)),
            ("cil_to_host", at(3)),
            (XDP, at(ETH0_IFINDEX)),
        ];
        let result = runner.run(&garbage(), |frame| {
            for (program, context) in &ways {
                let program = *program;
                node.take_events().map_err(failed)?;
                let ran = node.run(program, &frame, context).map_err(failed)?;
                let (drops, others) = if program == XDP {
                    (XDP_DROP, [2, XDP_TX])
                } else {
                    (SHOT, [0, REDIRECT])
                };
                prop_assert!(
                    ran.verdict == drops || others.contains(&ran.verdict),
                    "{program}: verdict {}",
                    ran.verdict
                );
                if ran.verdict != drops {
                    continue;
                }
                let events = node.take_events().map_err(failed)?;
                let reasons: Vec<u8> = events
                    .iter()
                    .filter(|event| event[0] == 1)
                    .map(|event| event[1])
                    .collect();
                // Errors that IPv6 would send are rate-limited: the packet ends there.
                let is_answered = frame[12..14] == [0x86, 0xdd] && reasons.is_empty();
                prop_assert!(
                    is_answered || reasons.iter().all(|reason| *reason >= 130),
                    "{program}: {reasons:?}"
                );
                prop_assert!(is_answered || reasons.len() == 1, "{program}: {reasons:?}");
            }
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        Ok(())
    });
    done.unwrap();
}
