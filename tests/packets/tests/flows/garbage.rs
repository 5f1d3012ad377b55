// SPDX-License-Identifier: Apache-2.0

//! Noise, most of it behind headers that are nearly right: it does no harm, and what is dropped has a reason.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_programs::{
    Nat46x64, NodeOptions,
    testing::run::{FromTunnel, SkBuff, run_tc},
};

use crate::{
    dsr::*,
    nat46x64,
    packet::*,
    termination,
    to_container::{add_program, leaving},
    tunnel,
};

const CASES: u32 = 4000;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const FROM_OVERLAY: &str = "cil_from_overlay";
const TO_OVERLAY: &str = "cil_to_overlay";
/// Drop reason: the host sends nothing by the tunnel.
const INVALID_IDENTITY: u8 = 171;
/// Protocol numbers of IP in IP.
const IN_IP: [u8; 2] = [4, 41];

/// Addresses that something is known of.
fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    let known = [
        family.pick(P1, "fd00:10:1::63cb"),
        family.local_pod(),
        family.node(),
        family.client(),
        family.remote_pod(),
        family.pick(VIP, "fd00:96::65"),
        family.pick(nat46x64::SERVICE4, &nat46x64::SERVICE6.to_string()),
        termination::service(family).ip(),
        family.pick(P2, &nat46x64::embed(CLIENT).to_string()),
    ];
    proptest::sample::select(known.to_vec())
}

/// How nearly right a packet is.
#[derive(Debug, Clone)]
struct Plausible {
    proto: u8,
    /// Length of the IPv4 header and of the packet; none: as it should be.
    lengths: Option<u8>,
    /// Destination port, if there are ports; none: noise.
    port: Option<u16>,
}

fn plausible() -> impl Strategy<Value = Plausible> {
    let protos = [1, 6, 6, 17, 17, 58, 0, 4, 41, 43, 44, 60, 132];
    let ports = [80, 8080, NODE_PORT, 53];
    let port = proptest::option::of(proptest::sample::select(ports.to_vec()));
    let proto = proptest::sample::select(protos.to_vec());
    (proto, proptest::option::of(any::<u8>()), port).prop_map(|(proto, lengths, port)| Plausible {
        proto,
        lengths,
        port,
    })
}

/// What is behind the Ethernet header: noise at first, then addresses, then fields that select what programs do.
fn packet([source, destination]: [IpAddr; 2], form: Option<&Plausible>, rest: &mut [u8]) {
    let whole = rest.len() as u16;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            rest[12..16].copy_from_slice(&source.octets());
            rest[16..20].copy_from_slice(&destination.octets());
            if let Some(form) = form {
                rest[0] = 0x45 + form.lengths.unwrap_or(0) % 11;
                let length = form.lengths.map_or(whole, |length| 20 + u16::from(length % 20));
                rest[2..4].copy_from_slice(&length.to_be_bytes());
                rest[9] = form.proto;
                if form.lengths.is_none() {
                    // No fragment.
                    rest[6..9].copy_from_slice(&[0, 0, 64]);
                    set_port(form, &mut rest[20..]);
                }
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            if let Some(form) = form {
                rest[0] = 0x60;
                rest[6] = form.proto;
                rest[8..24].copy_from_slice(&source.octets());
                rest[24..40].copy_from_slice(&destination.octets());
                if form.lengths.is_none() {
                    rest[4..6].copy_from_slice(&(whole - 40).to_be_bytes());
                    rest[7] = 64;
                    set_port(form, &mut rest[40..]);
                }
            }
        }
        _ => {}
    }
}

fn set_port(form: &Plausible, transport: &mut [u8]) {
    if let (Some(port), Some(bytes)) = (form.port, transport.get_mut(2..4)) {
        bytes.copy_from_slice(&port.to_be_bytes());
    }
}

/// A header from the other node to this one around a packet.
fn wrap(inside: Vec<u8>, ether: [u8; 2], is_right: bool) -> Vec<u8> {
    let proto = IN_IP[usize::from((ether == IPV6) == is_right)];
    let mut packet = if ether == IPV4 {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 63, proto, 0, 0];
        header[2..4].copy_from_slice(&(20 + inside.len() as u16).to_be_bytes());
        header.extend(Ipv4Addr::new(172, 30, 0, 2).octets());
        header.extend(NODE.octets());
        header
    } else {
        let mut header = vec![0x60, 0, 0, 0, 0, 0, proto, 63];
        header[4..6].copy_from_slice(&(inside.len() as u16).to_be_bytes());
        header.extend("fd00:30::2".parse::<Ipv6Addr>().unwrap().octets());
        header.extend("fd00:30::1".parse::<Ipv6Addr>().unwrap().octets());
        header
    };
    packet.extend(inside);
    packet
}

/// A frame: one in four has a packet inside of another one.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let ether = prop_oneof![
        4 => Just(IPV4),
        4 => Just(IPV6),
        1 => Just([0x08, 0x06]),
        1 => any::<[u8; 2]>(),
    ];
    ether.prop_flat_map(|ether| {
        let family = if ether == IPV6 { V6 } else { V4 };
        let addresses = [address(family), address(family)];
        let form = proptest::option::weighted(0.8, plausible());
        let outside = proptest::option::weighted(0.25, prop::bool::weighted(0.9));
        (Just(ether), addresses, vec(any::<u8>(), 40..200), form, outside).prop_map(
            |(ether, addresses, mut rest, form, outside)| {
                if ether == IPV4 || ether == IPV6 {
                    packet(addresses, form.as_ref(), &mut rest);
                }
                if let Some(is_right) = outside.filter(|_| ether == IPV4 || ether == IPV6) {
                    rest = wrap(rest, ether, is_right);
                }
                let mut frame = vec![0x7e, 0xad, 0xed, 0x74, 0xe4, 0xfc];
                frame.extend(P1_MAC);
                frame.extend(ether);
                frame.extend(rest);
                frame
            },
        )
    })
}

/// How a frame comes to a program.
struct Way {
    program: &'static str,
    context: SkBuff,
    tunnel: Option<FromTunnel>,
}

impl Way {
    fn at(program: &'static str, interface: u32) -> Self {
        Self {
            program,
            context: at(interface),
            tunnel: None,
        }
    }

    fn in_tunnel(node: &PacketNode, program: &'static str, tunnel_id: u32) -> Result<Self, Error> {
        Ok(Self {
            tunnel: Some(node.in_tunnel(program, tunnel_id)?),
            ..Self::at(program, tunnel::DEVICE)
        })
    }

    fn verdict(&self, node: &PacketNode, frame: &[u8]) -> Result<u32, Error> {
        match &self.tunnel {
            None => Ok(node.run(self.program, frame, &self.context)?.verdict),
            Some(tunnel) => Ok(run_tc(tunnel.program(), frame, &self.context, 1)?.verdict),
        }
    }
}

fn ways(node: &PacketNode) -> Result<Vec<Way>, Error> {
    let mut ways = vec![
        Way::at("cil_from_container", P1_IFINDEX),
        Way {
            program: "cil_to_container",
            context: leaving(0, ETH0_IFINDEX),
            tunnel: None,
        },
        Way::at("cil_from_netdev", ETH0_IFINDEX),
        Way::at("cil_to_netdev", ETH0_IFINDEX),
        Way::at("cil_from_host", 4),
        Way::at("cil_to_host", 3),
        Way::at(XDP, ETH0_IFINDEX),
    ];
    if node.has(TO_OVERLAY) {
        ways.push(Way::at(TO_OVERLAY, tunnel::DEVICE));
        ways.push(Way::in_tunnel(node, TO_OVERLAY, 40_001)?);
        // A pod, the remote node, and the host, which sends nothing itself.
        for identity in [40_001, 6, 1] {
            ways.push(Way::in_tunnel(node, FROM_OVERLAY, identity)?);
        }
    }
    Ok(ways)
}

fn failed(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// What became of frames: program, and reason of the drop or verdict.
type Seen = BTreeSet<(&'static str, Result<u32, u8>)>;

/// Runs a frame, and checks that a drop has one event with a reason.
fn check(node: &PacketNode, way: &Way, frame: &[u8], seen: &RefCell<Seen>) -> Result<(), TestCaseError> {
    let program = way.program;
    node.take_events().map_err(failed)?;
    let verdict = way.verdict(node, frame).map_err(failed)?;
    let (drops, others) = if program == XDP {
        (XDP_DROP, [XDP_PASS, XDP_TX])
    } else {
        (SHOT, [0, REDIRECT])
    };
    prop_assert!(
        verdict == drops || others.contains(&verdict),
        "{program}: verdict {verdict}"
    );
    if verdict != drops {
        seen.borrow_mut().insert((program, Ok(verdict)));
        return Ok(());
    }
    let events = node.take_events().map_err(failed)?;
    let reasons: Vec<u8> = events
        .iter()
        .filter(|event| event[0] == 1)
        .map(|event| event[1])
        .collect();
    // Errors that IPv6 would send are rate-limited: the packet ends there.
    let is_answered = frame[12..14] == IPV6 && reasons.is_empty();
    prop_assert!(
        is_answered || reasons.iter().all(|reason| *reason >= 130),
        "{program}: {reasons:?}"
    );
    prop_assert!(is_answered || reasons.len() == 1, "{program}: {reasons:?}");
    seen.borrow_mut()
        .extend(reasons.into_iter().map(|reason| (program, Err(reason))));
    Ok(())
}

/// Runs garbage through all programs with these options, on a node with services as `serve` writes them. Returns what
/// became of it: some of it gets far.
fn drops_garbage(change: fn(&mut NodeOptions), serve: fn(&PacketNode) -> Result<(), Error>) -> Seen {
    let done = with_options(&facts(), change, |node| {
        serve(node)?;
        add_program(node)?;
        let ways = ways(node)?;
        let mut runner = TestRunner::new(Config {
            cases: CASES,
            failure_persistence: None,
            ..Config::default()
        });
        let seen = RefCell::default();
        let result = runner.run(&garbage(), |frame| {
            ways.iter().try_for_each(|way| check(node, way, &frame, &seen))
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        Ok(seen.take())
    });
    done.unwrap()
}

/// Fails if no frame got so far.
#[track_caller]
fn reaches(seen: &Seen, ends: &[(&'static str, Result<u32, u8>)]) {
    for end in ends {
        assert!(seen.contains(end), "no frame reached {end:?}: {seen:?}");
    }
}

#[test]
fn garbage_is_dropped_with_a_reason_or_passes() {
    let seen = drops_garbage(|_| (), |_| Ok(()));
    reaches(&seen, &[("cil_from_netdev", Ok(REDIRECT)), (XDP, Ok(XDP_PASS))]);
}

#[test]
fn garbage_is_dropped_with_direct_return_too() {
    drops_garbage(|options| options.packets.dsr = Some(DSR), |_| Ok(()));
    drops_garbage(
        |options| {
            options.packets.dsr = Some(crate::ipip::IPIP);
            options.packets.sctp = true;
        },
        |_| Ok(()),
    );
}

#[test]
fn garbage_is_dropped_inside_of_other_packets() {
    drops_garbage(
        |options| options.packets.ipip_termination = true,
        |node| each(|family, proto| termination::serve(node, family, proto, 1)),
    );
}

fn translated(options: &mut NodeOptions) {
    options.packets.nat46x64 = Some(Nat46x64 {
        services: true,
        gateway: true,
        prefix: nat46x64::PREFIX,
        mtu: MTU as u16,
    });
}

/// Services of one family with backends of the other one.
fn crossing(node: &PacketNode) -> Result<(), Error> {
    each(|family, proto| {
        let backends = if family == V4 { V6 } else { V4 };
        nat46x64::serve(node, family, proto, backends.remote_pod())?;
        Ok(())
    })
}

#[test]
fn garbage_is_dropped_between_address_families() {
    let seen = drops_garbage(translated, crossing);
    // What cannot be translated.
    reaches(
        &seen,
        &[
            ("cil_from_netdev", Err(nat46x64::NAT46)),
            ("cil_from_netdev", Err(nat46x64::NAT64)),
            ("cil_from_netdev", Ok(REDIRECT)),
        ],
    );
}

#[test]
fn garbage_is_dropped_at_the_tunnel() {
    let seen = drops_garbage(tunnel::tunnel, |_| Ok(()));
    reaches(
        &seen,
        &[
            (FROM_OVERLAY, Ok(REDIRECT)),
            (FROM_OVERLAY, Err(INVALID_IDENTITY)),
            (TO_OVERLAY, Ok(0)),
            (TO_OVERLAY, Err(tunnel::NO_TUNNEL_KEY)),
        ],
    );
    drops_garbage(
        |options| {
            tunnel::tunnel(options);
            translated(options);
            options.packets.ipip_termination = true;
        },
        |node| {
            crossing(node)?;
            each(|family, proto| termination::serve(node, family, proto, 1))
        },
    );
}
