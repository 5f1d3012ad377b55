// SPDX-License-Identifier: Apache-2.0

//! Random packets: what comes back is what a client expects.

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

use crate::packet::*;

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
