// SPDX-License-Identifier: Apache-2.0

//! Direct server return by IP options: at the node that clients send to, and at that of the backend.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use run_packets::{
    Error,
    node::{Called, PacketNode, with_options},
};
use skep_bpf_programs::{DirectReturn, DsrDispatch, NodeOptions};

use crate::{frame::*, packet::*};

pub(crate) const TC: &str = "cil_from_netdev";
pub(crate) const XDP_PASS: u32 = 2;
const UDP_NODE_PORT: u16 = 30_053;
const AFFINITY_NODE_PORT: u16 = 30_085;
const INVALID: u8 = 134;
pub(crate) const TOO_LARGE: u8 = 136;
const EXTENSION_HEADER: u8 = 156;
pub(crate) const TTL_EXCEEDED: u8 = 196;
const NAT_ADDRESS: std::ops::Range<usize> = 0..16;
pub(crate) const ENTRY_FLAGS: usize = 36;
const NAT_PORT: std::ops::Range<usize> = 40..42;
pub(crate) const NODE_PORT_FLAG: u8 = 1 << 5;
const DSR_FLAG: u8 = 1 << 7;
/// `flags2` of a service: forward by direct return.
const SERVICE_FLAGS2: usize = 9;
const SERVICE_DSR: u8 = 1 << 7;
pub(crate) const MTU: usize = 1500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

pub(crate) use Family::{V4, V6};

impl Family {
    pub(crate) fn pick(self, v4: Ipv4Addr, v6: &str) -> IpAddr {
        match self {
            V4 => v4.into(),
            V6 => v6.parse::<Ipv6Addr>().unwrap().into(),
        }
    }

    pub(crate) fn node(self) -> IpAddr {
        self.pick(NODE, "fd00:30::1")
    }

    pub(crate) fn client(self) -> IpAddr {
        self.pick(CLIENT, "fd00:30::3")
    }

    pub(crate) fn remote_pod(self) -> IpAddr {
        self.pick(REMOTE_POD, "fd00:10:2::10")
    }

    pub(crate) fn local_pod(self) -> IpAddr {
        self.pick(P2, "fd00:10:1::325")
    }

    pub(crate) fn map(self, v4: &str) -> String {
        match self {
            V4 => v4.to_owned(),
            V6 => v4.replace('4', "6"),
        }
    }

    /// What tells the service's address to the backend's node.
    pub(crate) fn option(self, service: SocketAddr, proto: u8) -> Vec<u8> {
        match service.ip() {
            IpAddr::V4(address) => {
                let mut option = vec![0x9a, 8];
                option.extend(service.port().to_le_bytes());
                option.extend(u32::from(address).to_le_bytes());
                option
            }
            IpAddr::V6(address) => {
                let mut header = vec![proto, 2, 0x1b, 20];
                header.extend(address.octets());
                header.extend(service.port().to_be_bytes());
                header.extend([0, 0]);
                header
            }
        }
    }
}

pub(crate) const DSR: DirectReturn = DirectReturn {
    dispatch: DsrDispatch::IpOption,
    all_services: true,
    icmp_errors: false,
};

pub(crate) fn with_dsr(dsr: DirectReturn, test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let change = |options: &mut NodeOptions| options.packets.dsr = Some(dsr);
    with_options(&facts(), change, test).unwrap();
}

/// Each program at an interface of the node, with what it returns for packets that it sends on.
pub(crate) fn everywhere(
    node: &PacketNode,
    test: impl Fn(&str, u32, Family) -> Result<(), Error>,
) -> Result<(), Error> {
    for family in [V4, V6] {
        for (program, sends) in [(TC, REDIRECT), (XDP, XDP_TX)] {
            node.forget_flows()?;
            test(program, sends, family)?;
        }
    }
    Ok(())
}

/// Each family of clients with each protocol.
pub(crate) fn each(test: impl Fn(Family, u8) -> Result<(), Error>) -> Result<(), Error> {
    for family in [V4, V6] {
        for proto in [TCP, UDP] {
            test(family, proto)?;
        }
    }
    Ok(())
}

pub(crate) fn receive(node: &PacketNode, program: &str, frame: &Frame) -> Result<Called, Error> {
    node.run(program, &frame.bytes(), &at(ETH0_IFINDEX))
}

#[track_caller]
pub(crate) fn read_back(ran: &Called) -> Frame {
    Frame::read(&ran.packet).unwrap_or_else(|wrong| panic!("{wrong}: {:02x?}", ran.packet))
}

/// Reasons of the drops since the last call.
pub(crate) fn drops(node: &PacketNode) -> Result<Vec<u8>, Error> {
    let events = node.take_events()?;
    Ok(events
        .iter()
        .filter(|event| event[0] == 1)
        .map(|event| event[1])
        .collect())
}

pub(crate) fn node_port(family: Family, proto: u8) -> SocketAddr {
    let port = if proto == TCP { NODE_PORT } else { UDP_NODE_PORT };
    (family.node(), port).into()
}

pub(crate) fn backend(family: Family, proto: u8) -> SocketAddr {
    (family.remote_pod(), if proto == TCP { 80 } else { 5353 }).into()
}

pub(crate) fn request(family: Family, proto: u8) -> Frame {
    Frame::new(proto, (family.client(), 40_000).into(), node_port(family, proto))
}

/// Entries of flows, by the flags of their keys.
pub(crate) fn flows(node: &PacketNode, family: Family) -> Result<Vec<(u8, Vec<u8>)>, Error> {
    let mut found = Vec::new();
    for map in ["cilium_ct4_global", "cilium_ct_any4_global"] {
        for (key, entry) in node.entries(&family.map(map))? {
            found.push((*key.last().unwrap(), entry));
        }
    }
    Ok(found)
}

#[test]
fn requests_keep_their_source_and_tell_the_service() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, sends, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let first = request(family, proto);

                let ran = receive(node, program, &first)?;

                assert_eq!(ran.verdict, sends, "{program} {family:?}");
                let option = family.option(first.destination, proto);
                let expected = Frame {
                    destination: backend(family, proto),
                    hop_limit: 63,
                    ..first.clone().extension(&option)
                };
                assert_eq!(read_back(&ran), expected, "{program}");
                if program == TC {
                    assert_eq!(ran.mark & 0xf00, 0x300, "no other source");
                }

                // Of TCP only the first packet tells it.
                let next = first.clone().flags(if proto == TCP { ACK } else { 0 });
                let ran = receive(node, program, &next)?;
                assert_eq!(ran.verdict, sends);
                let option = if proto == TCP { Vec::new() } else { option };
                let expected = Frame {
                    flags: next.flags,
                    ..expected.extension(&option)
                };
                assert_eq!(read_back(&ran), expected, "{program}");

                let entries = flows(node, family)?;
                assert_eq!(entries.len(), 1, "the service's alone: {entries:?}");
                assert_eq!(entries[0].0, 4);
                assert!(node.entries(&family.map("cilium_snat_v4_external"))?.is_empty());
            }
            Ok(())
        })
    });
}

#[test]
fn backends_of_this_node_need_no_option() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            // Port 8080 of the second pod.
            let frame = Frame::new(
                TCP,
                (family.client(), 40_000).into(),
                (family.node(), 30_081).into(),
            );

            let ran = receive(node, program, &frame)?;

            let seen = read_back(&ran);
            assert_eq!(seen.destination, (family.local_pod(), 8080).into(), "{program}");
            assert_eq!(seen.extension, [0; 0]);
            let entries = flows(node, family)?;
            let outgoing = entries.iter().find(|(flags, _)| *flags == 0).unwrap();
            assert_eq!(outgoing.1[ENTRY_FLAGS], NODE_PORT_FLAG);
            Ok(())
        })
    });
}

#[test]
fn clients_with_affinity_keep_their_backend() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            let mut backends: Vec<IpAddr> = Vec::new();
            for port in 40_000..40_016 {
                let frame = Frame::new(
                    TCP,
                    (family.client(), port).into(),
                    (family.node(), AFFINITY_NODE_PORT).into(),
                );
                let seen = read_back(&receive(node, program, &frame)?);
                assert_eq!(
                    seen.extension.is_empty(),
                    seen.destination.ip() == family.local_pod()
                );
                backends.push(seen.destination.ip());
            }
            backends.dedup();
            assert_eq!(backends.len(), 1, "{program}: {backends:?}");
            Ok(())
        })
    });
}

#[test]
fn tables_say_which_backend_a_client_gets() {
    let change = |options: &mut NodeOptions| {
        options.packets.dsr = Some(DSR);
        options.packets.maglev = true;
    };
    // The service with affinity has a backend in the second pod and one on the other node.
    let tables = [
        ("cilium_lb4_maglev", [0, 0x1f], 3_u32),
        ("cilium_lb6_maglev", [0, 0x48], 11),
    ];
    let test = |node: &PacketNode| {
        for (map, service, remote) in tables {
            let size = skep_bpf_programs::PacketHash::default().table_size as usize;
            node.write(map, &service, &remote.to_ne_bytes().repeat(size))?;
        }
        everywhere(node, |program, _, family| {
            for port in 40_000..40_016 {
                node.forget_flows()?;
                let client = (family.client(), port).into();
                let frame = Frame::new(TCP, client, (family.node(), AFFINITY_NODE_PORT).into());
                let seen = read_back(&receive(node, program, &frame)?);
                assert_eq!(seen.destination.ip(), family.remote_pod(), "{program}");
                assert_eq!(seen.extension, family.option(frame.destination, TCP));
            }
            Ok(())
        })
    };
    with_options(&facts(), change, test).unwrap();
}

#[test]
fn options_of_clients_stay_behind_the_service() {
    with_dsr(DSR, |node| {
        for (program, sends) in [(TC, REDIRECT), (XDP, XDP_TX)] {
            node.forget_flows()?;
            let own = [1, 1, 1, 0];
            let frame = request(V4, TCP).extension(&own);
            let ran = receive(node, program, &frame)?;
            assert_eq!(ran.verdict, sends);
            let mut expected = V4.option(frame.destination, TCP);
            expected.extend(own);
            assert_eq!(read_back(&ran).extension, expected);

            // 60 bytes of header at most.
            node.forget_flows()?;
            drops(node)?;
            let ran = receive(node, program, &request(V4, TCP).extension(&[1; 36]))?;
            assert_eq!(ran.verdict, if program == TC { SHOT } else { XDP_DROP });
            assert_eq!(drops(node)?, [INVALID]);
        }
        Ok(())
    });
}

#[test]
fn hop_by_hop_options_stay_first() {
    with_dsr(DSR, |node| {
        for program in [TC, XDP] {
            let mut frame = request(V6, UDP).extension(&[UDP, 0, 1, 4, 0, 0, 0, 0]).bytes();
            frame[14 + 6] = 0;
            drops(node)?;
            let ran = node.run(program, &frame, &at(ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, if program == TC { SHOT } else { XDP_DROP });
            assert_eq!(drops(node)?, [EXTENSION_HEADER], "{program}");
        }
        Ok(())
    });
}

/// A datagram that fits without the option.
pub(crate) fn large(family: Family) -> Frame {
    let header = if family == V4 { 20 } else { 40 };
    request(family, UDP).payload(MTU - header - 8)
}

#[test]
fn packets_that_the_option_makes_too_large_are_dropped() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, sends, family| {
            drops(node)?;
            let option = family.option(node_port(family, UDP), UDP).len();
            let mut frame = large(family);

            let ran = receive(node, program, &frame)?;

            if program == TC {
                assert_eq!(ran.verdict, SHOT);
                assert_eq!(drops(node)?, [TOO_LARGE]);
            } else {
                assert_eq!(ran.verdict, XDP_PASS, "the tc program's");
                assert_eq!(read_back(&ran), frame, "as it came");
                assert_eq!(ran.metadata, [0; 0]);
            }

            frame.payload.truncate(frame.payload.len() - option);
            let ran = receive(node, program, &frame)?;
            assert_eq!(ran.verdict, sends, "{program} {family:?}");
            assert_eq!(ran.packet.len(), 14 + MTU);
            Ok(())
        })
    });
}

#[test]
fn clients_hear_of_packets_that_are_too_large() {
    let dsr = DirectReturn {
        icmp_errors: true,
        ..DSR
    };
    with_dsr(dsr, |node| {
        for family in [V4, V6] {
            let frame = large(family);

            let ran = receive(node, TC, &frame)?;

            assert_eq!(ran.verdict, REDIRECT);
            let sent = frame.bytes();
            let mtu = if family == V4 { MTU - 8 } else { MTU - 24 };
            assert_too_large(&ran.packet, &sent, mtu);
        }
        Ok(())
    });
}

#[test]
fn packets_out_of_hops_go_no_further() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            drops(node)?;
            let frame = request(family, TCP).hop_limit(1);
            let ran = receive(node, program, &frame)?;
            match (program, family) {
                (TC, V6) => {
                    assert_eq!(ran.verdict, REDIRECT);
                    assert_eq!(ran.packet[14 + 40], 3, "time exceeded");
                    assert_eq!(
                        ran.packet[14 + 40 + 8 + 24..][..16],
                        frame.bytes()[14 + 24..][..16],
                        "to the service"
                    );
                }
                (XDP, V6) => {
                    assert_eq!(ran.verdict, XDP_PASS);
                    assert_eq!(read_back(&ran), frame);
                }
                _ => assert_eq!(drops(node)?, [TTL_EXCEEDED]),
            }
            Ok(())
        })
    });
}

/// Sets or clears the mode of the services of a protocol.
fn set_mode(node: &PacketNode, proto: u8, is_dsr: bool) -> Result<(), Error> {
    for (map, at) in [("cilium_lb4_services_v2", 8), ("cilium_lb6_services_v2", 20)] {
        for (key, mut value) in node.entries(map)? {
            if key[at] == proto {
                value[SERVICE_FLAGS2] = value[SERVICE_FLAGS2] & !SERVICE_DSR | u8::from(is_dsr) << 7;
                node.write(map, &key, &value)?;
            }
        }
    }
    Ok(())
}

#[test]
fn services_say_which_mode_they_have() {
    let by_service = DirectReturn {
        all_services: false,
        ..DSR
    };
    with_dsr(by_service, |node| {
        for (direct, through) in [(TCP, UDP), (UDP, TCP)] {
            set_mode(node, direct, true)?;
            set_mode(node, through, false)?;
            everywhere(node, |program, sends, family| {
                let frame = request(family, direct);
                let ran = receive(node, program, &frame)?;
                assert_eq!(ran.verdict, sends);
                let seen = read_back(&ran);
                assert_eq!(seen.source, frame.source, "{program}");
                assert_eq!(seen.extension, family.option(frame.destination, direct));

                let frame = request(family, through);
                let ran = receive(node, program, &frame)?;
                assert_eq!(ran.verdict, sends);
                let seen = read_back(&ran);
                assert_eq!(seen.source.ip(), family.node(), "{program}");
                assert_eq!(seen.extension, [0; 0]);
                Ok(())
            })?;
        }
        Ok(())
    });
}

/// The service that a client asked another node for.
pub(crate) fn service(family: Family) -> SocketAddr {
    let address = family.pick(Ipv4Addr::new(192, 0, 2, 10), "2001:db8:1::10");
    (address, 443).into()
}

/// What another node sends to a backend in the second pod.
pub(crate) fn dispatched(family: Family, proto: u8) -> Frame {
    let pod = (family.local_pod(), 8080).into();
    Frame::new(proto, (family.client(), 40_000).into(), pod).extension(&family.option(service(family), proto))
}

/// What the client gets of an answer.
fn answered(node: &PacketNode, to: &Frame) -> Result<Frame, Error> {
    let sent = node.run("cil_from_container", &to.answer().bytes(), &at(P2_IFINDEX))?;
    assert_eq!(sent.verdict, REDIRECT);
    let left = node.run("cil_to_netdev", &sent.packet, &at(ETH0_IFINDEX))?;
    assert_eq!(left.verdict, 0);
    Ok(read_back(&left))
}

#[test]
fn backends_answer_from_the_service() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let first = dispatched(family, proto);

                let ran = receive(node, TC, &first)?;

                assert_eq!(ran.verdict, REDIRECT);
                let seen = read_back(&ran);
                assert_eq!(
                    seen,
                    first.clone().hop_limit(63),
                    "the pod gets it with the option"
                );
                let entries = flows(node, family)?;
                let (_, entry) = entries
                    .iter()
                    .find(|(_, entry)| entry[ENTRY_FLAGS] & DSR_FLAG != 0)
                    .unwrap();
                let address = &entry[NAT_ADDRESS];
                match service(family).ip() {
                    IpAddr::V4(service) => assert_eq!(address[12..], service.octets()),
                    IpAddr::V6(service) => assert_eq!(*address, service.octets()),
                }
                assert_eq!(entry[NAT_PORT], 443_u16.to_be_bytes());

                assert_eq!(answered(node, &first)?.source, service(family));
                if proto == TCP {
                    let next = first.clone().flags(ACK).extension(&[]);
                    assert_eq!(receive(node, TC, &next)?.verdict, REDIRECT);
                    assert_eq!(answered(node, &next)?.source, service(family));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn what_the_load_balancer_tells_is_what_the_backend_reads() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let asked = request(family, proto);
                let told = read_back(&receive(node, program, &asked)?);
                let at_backend = dispatched(family, proto).extension(&told.extension);
                receive(node, TC, &at_backend)?;
                assert_eq!(
                    answered(node, &at_backend)?.source,
                    asked.destination,
                    "{program}"
                );
            }
            Ok(())
        })
    });
}

#[test]
fn clients_that_turn_to_the_backend_itself_get_its_answers() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let through = dispatched(family, proto);
                receive(node, TC, &through)?;
                assert_eq!(answered(node, &through)?.source, service(family));

                let direct = through.clone().extension(&[]);
                receive(node, TC, &direct)?;
                assert_eq!(answered(node, &direct)?.source, direct.destination, "{proto}");

                receive(node, TC, &through)?;
                assert_eq!(answered(node, &through)?.source, service(family), "and back");
            }
        }
        Ok(())
    });
}

#[test]
fn a_connection_that_was_closed_begins_anew() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            let first = dispatched(family, TCP);
            receive(node, TC, &first)?;
            receive(node, TC, &first.clone().extension(&[]).flags(FIN | ACK))?;
            let mut other = first.clone();
            let elsewhere = (service(family).ip(), 444).into();
            other.extension = family.option(elsewhere, TCP);
            receive(node, TC, &other)?;
            assert_eq!(answered(node, &other)?.source, elsewhere);
        }
        Ok(())
    });
}

#[test]
fn processes_of_the_node_answer_from_the_service() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            let mut frame = dispatched(family, TCP);
            frame.destination = (family.node(), 8443).into();

            let ran = receive(node, TC, &frame)?;

            assert_eq!(ran.verdict, 0, "the kernel's");
            assert_eq!(read_back(&ran), frame);
            let answer = node.run("cil_to_netdev", &frame.answer().bytes(), &at(ETH0_IFINDEX))?;
            assert_eq!(read_back(&answer).source, service(family));
        }
        Ok(())
    });
}

#[test]
fn options_are_left_alone_without_direct_return() {
    with_options(
        &facts(),
        |_| (),
        |node| {
            for family in [V4, V6] {
                node.forget_flows()?;
                let frame = dispatched(family, TCP);
                receive(node, TC, &frame)?;
                assert_eq!(answered(node, &frame)?.source, frame.destination);
            }
            Ok(())
        },
    )
    .unwrap();
}

fn near_options() -> impl Strategy<Value = (Family, Vec<u8>)> {
    let mutate = |family: Family, right: Vec<u8>| {
        (Just(right), vec((0_usize..24, any::<u8>()), 1..4)).prop_map(move |(mut option, changes)| {
            for (at, byte) in changes {
                let at = at % option.len();
                option[at] = byte;
            }
            (family, option)
        })
    };
    prop_oneof![
        mutate(V4, V4.option(service(V4), TCP)),
        mutate(V6, V6.option(service(V6), TCP)),
        vec(any::<u8>(), 40).prop_map(|noise| (V4, noise)),
    ]
}

#[test]
fn broken_options_tell_nothing() {
    with_dsr(DSR, |node| {
        let mut runner = TestRunner::new(Config {
            cases: 1000,
            failure_persistence: None,
            ..Config::default()
        });
        let result = runner.run(&near_options(), |(family, option)| {
            let failed = |error: Error| TestCaseError::fail(error.to_string());
            node.forget_flows().map_err(failed)?;
            let mut frame = dispatched(family, TCP);
            frame.extension = option.clone();
            let bytes = frame.bytes();
            let ran = node.run(TC, &bytes, &at(ETH0_IFINDEX)).map_err(failed)?;
            prop_assert!([0, SHOT, REDIRECT].contains(&ran.verdict));
            let right = family.option(service(family), TCP);
            let fixed = if family == V4 { 0..2 } else { 1..4 };
            let is_told = option[fixed.clone()] == right[fixed];
            let told = flows(node, family)
                .map_err(failed)?
                .iter()
                .any(|(_, entry)| entry[ENTRY_FLAGS] & DSR_FLAG != 0);
            // Other headers may follow that are not there.
            prop_assert!(!told || is_told, "{option:02x?}");
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        Ok(())
    });
}
