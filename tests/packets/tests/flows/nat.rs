// SPDX-License-Identifier: Apache-2.0

//! Which ports translated sources get.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};

use crate::{dsr::*, frame::*, packet::*};

const UDP_NODE_PORT: u16 = 30_053;
/// Seconds on the clock of maps, in an entry of `cilium_ct4_global`: until when it lives.
const LIFETIME: std::ops::Range<usize> = 32..36;
/// Flags of the entry: both sides have closed.
const FLAGS: usize = 36;
const CLOSED: u8 = 3;

/// Sends the first packet of a flow to the node port, and returns the port that it goes on with.
fn translated_port(node: &PacketNode, program: &str, client: Side, is_tcp: bool) -> Result<u16, Error> {
    let packet = Packet {
        is_tcp,
        source: client,
        destination: (NODE, if is_tcp { NODE_PORT } else { UDP_NODE_PORT }),
        tcp_flags: 2,
        ttl: 64,
        options: 0,
        payload: Vec::new(),
    };
    let ran = node.run(program, &packet.frame(CLIENT_MAC), &at(ETH0_IFINDEX))?;
    let (source, backend) = read(&ran.packet).expect("right checksums");
    assert_eq!((source.0, backend.0), (NODE, REMOTE_POD), "{program}");
    Ok(source.1)
}

#[test]
fn ports_of_processes_on_the_node_are_not_taken() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            let source = |proto| {
                node.forget_flows()?;
                let ran = receive(node, program, &request(family, proto))?;
                Ok::<_, Error>(read_back(&ran).source)
            };
            let at = SocketAddr::from((family.node(), 40_000));
            for proto in [TCP, UDP] {
                assert_eq!(source(proto)?, at, "{program}: the client's port");
            }
            for address in [family.pick(Ipv4Addr::UNSPECIFIED, "::"), family.node()] {
                let _listener = TcpListener::bind((address, 40_000))?;
                let socket = UdpSocket::bind((address, 40_000))?;
                for proto in [TCP, UDP] {
                    assert_ne!(source(proto)?.port(), 40_000, "{program} {address} {proto}");
                }
                socket.connect(backend(family, UDP))?;
                assert_ne!(
                    source(UDP)?.port(),
                    40_000,
                    "{program} {address}: to that backend"
                );
            }
            Ok(())
        })
    });
    done.unwrap();
}

/// Changes the entry of each connection.
fn change_connections(node: &PacketNode, change: impl Fn(&mut [u8])) -> Result<(), Error> {
    for (key, mut entry) in node.entries("cilium_ct4_global")? {
        change(&mut entry);
        node.write("cilium_ct4_global", &key, &entry)?;
    }
    Ok(())
}

#[test]
fn ports_of_expired_flows_are_taken_and_those_of_live_ones_are_not() {
    let other: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    let done = with_node(&facts(), |node| {
        for program in ["cil_from_netdev", XDP] {
            node.forget_flows()?;
            assert_eq!(translated_port(node, program, (CLIENT, 40_010), true)?, 40_010);
            assert_ne!(translated_port(node, program, (other, 40_010), true)?, 40_010);

            node.forget_flows()?;
            assert_eq!(translated_port(node, program, (CLIENT, 40_010), true)?, 40_010);
            change_connections(node, |entry| {
                entry[LIFETIME].copy_from_slice(&1_u32.to_ne_bytes())
            })?;
            assert_eq!(translated_port(node, program, (other, 40_010), true)?, 40_010);

            let translations = node.entries("cilium_snat_v4_external")?;
            assert_eq!(translations.len(), 2, "both entries of the expired flow are gone");
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn ports_of_flows_that_are_not_tracked_are_not_taken() {
    let other: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    let done = with_node(&facts(), |node| {
        assert_eq!(
            translated_port(node, "cil_from_netdev", (CLIENT, 40_010), true)?,
            40_010
        );
        for (key, _) in node.entries("cilium_ct4_global")? {
            node.delete("cilium_ct4_global", &key)?;
        }
        assert_ne!(
            translated_port(node, "cil_from_netdev", (other, 40_010), true)?,
            40_010
        );
        Ok(())
    });
    done.unwrap();
}

#[test]
fn closed_connections_give_their_ports_when_there_are_few() {
    let other: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    // As many ports as are tried.
    let few = |options: &mut skep_bpf_programs::NodeOptions| options.packets.nat_ports = (40_000, 40_003);
    let done = run_packets::node::with_options(&facts(), few, |node| {
        let mut taken: Vec<u16> = (40_000..=40_003)
            .map(|port| translated_port(node, "cil_from_netdev", (CLIENT, port), true))
            .collect::<Result<_, _>>()?;
        taken.sort_unstable();
        assert_eq!(taken, [40_000, 40_001, 40_002, 40_003]);
        let packet = Packet {
            is_tcp: true,
            source: (other, 40_000),
            destination: (NODE, NODE_PORT),
            tcp_flags: 2,
            ttl: 64,
            options: 0,
            payload: Vec::new(),
        };
        node.take_signals()?;
        let full = node.run("cil_from_netdev", &packet.frame(CLIENT_MAC), &at(ETH0_IFINDEX))?;
        assert_eq!(full.verdict, SHOT, "all ports carry live connections");
        let signals = node.take_signals()?;
        assert_eq!(signals.len(), 1, "the agent gets a signal");
        assert_eq!(signals[0][..8], [0; 8], "that NAT is full, of IPv4");

        change_connections(node, |entry| entry[FLAGS] |= CLOSED)?;
        let port = translated_port(node, "cil_from_netdev", (other, 40_000), true)?;
        assert!((40_000..=40_003).contains(&port), "{port}");
        Ok(())
    });
    done.unwrap();
}

/// The map, and which of its entries are deleted.
type Loss = (&'static str, fn(&[u8]) -> bool);

const fn is_forward(key: &[u8]) -> bool {
    key[13] & 1 == 0
}

/// Whichever entry of a connection a map evicts, packets pass in both directions as before, and the entry is restored. The
/// service in the egress entry is restored by the client's next packet.
#[test]
fn connections_survive_the_loss_of_an_entry() {
    let losses: [(&str, Loss, bool); 5] = [
        (
            "forward half, client sends",
            ("cilium_snat_v4_external", is_forward),
            true,
        ),
        (
            "forward half, backend sends",
            ("cilium_snat_v4_external", is_forward),
            false,
        ),
        (
            "reverse half, client sends",
            ("cilium_snat_v4_external", |key| !is_forward(key)),
            true,
        ),
        ("service entry", ("cilium_ct4_global", |key| key[13] == 4), true),
        ("egress entry", ("cilium_ct4_global", |key| key[13] == 0), true),
    ];
    let done = with_node(&facts(), |node| {
        for program in ["cil_from_netdev", XDP] {
            for (what, (map, is_lost), client_sends) in losses {
                let case = format!("{program}: {what}");
                node.forget_flows()?;
                let client = (CLIENT, 40_020);
                let mut packet = Packet {
                    is_tcp: true,
                    source: client,
                    destination: (NODE, NODE_PORT),
                    tcp_flags: 2,
                    ttl: 64,
                    options: 0,
                    payload: Vec::new(),
                };
                let run = |packet: &Packet| {
                    let ran = node.run(program, &packet.frame(CLIENT_MAC), &at(ETH0_IFINDEX))?;
                    assert!(
                        [REDIRECT, XDP_TX].contains(&ran.verdict),
                        "{case}: verdict {}",
                        ran.verdict
                    );
                    Ok::<_, Error>(read(&ran.packet).expect("right checksums"))
                };
                let (source, backend) = run(&packet)?;
                run(&answer(true, backend, source, &[]))?;
                packet.tcp_flags = 0x10;
                run(&packet)?;
                let keys = |map: &str| {
                    let entries = node.entries(map)?;
                    Ok::<Vec<Vec<u8>>, Error>(entries.into_keys().collect())
                };
                let before = [keys(map)?, keys("cilium_snat_v4_external")?];
                let lost: Vec<Vec<u8>> = keys(map)?.into_iter().filter(|key| is_lost(key)).collect();
                assert_eq!(lost.len(), 1, "{case}: {:?}", keys(map)?);
                node.delete(map, &lost[0])?;

                if client_sends {
                    assert_eq!(run(&packet)?, (source, backend), "{case}");
                }
                let mut reply = answer(true, backend, source, &[]);
                reply.tcp_flags = 0x10;
                assert_eq!(run(&reply)?, ((NODE, NODE_PORT), client), "{case}");
                assert_eq!(run(&packet)?, (source, backend), "{case}");
                let after = [keys(map)?, keys("cilium_snat_v4_external")?];
                assert_eq!(before, after, "{case}: the same entries");
            }
        }
        Ok(())
    });
    done.unwrap();
}
