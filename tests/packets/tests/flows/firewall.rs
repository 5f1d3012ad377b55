// SPDX-License-Identifier: Apache-2.0

//! Policies of the host: packets to and from the node, audit mode.

use std::{net::SocketAddr, os::fd::AsRawFd as _};

use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_maps::{
    MapSizes,
    endpoint::{Endpoint, LxcKey, LxcValue, endpoint_flags, lxc_flags},
    policy::{POLICIES, POLICY_STATIC_BITS, PolicyEntry, PolicyKey},
};
use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::{KernelMap, RawMap as _};
use skep_datapath_monitor_events::event::Event;
use zerocopy::{IntoBytes as _, network_endian::U16};

use crate::{dsr::drops, frame::*, packet::*};

const HOST: u16 = 77;
const CILIUM_HOST: u32 = 4;
const SSH: u16 = 22;
const REMOTE_PORT: u16 = 443;
const DNS: u16 = 53;
const PROXY: U16 = U16::new(10_053);

fn key(direction: u8, port: u16) -> PolicyKey {
    PolicyKey {
        prefix_len: POLICY_STATIC_BITS + 24,
        identity: 0,
        direction,
        proto: TCP,
        port: U16::new(port),
    }
}

/// The host may be reached at one port, and reach one, and another one by a proxy.
fn restrict(node: &PacketNode, flags: u8) -> Result<(), Error> {
    let policy = KernelMap::create(
        &POLICIES
            .inner_spec("cilium_policy_v2", &MapSizes::default())
            .unwrap(),
    )?;
    let allow = |proxy_port| PolicyEntry {
        proxy_port,
        flags: 24 << 3,
        auth: 0,
        precedence: 0xffff_ff01,
        cookie: 0,
    };
    for (key, proxy_port) in [
        (key(0, SSH), U16::ZERO),
        (key(1, REMOTE_PORT), U16::ZERO),
        (key(1, DNS), PROXY),
    ] {
        let failed = policy.update(key.as_bytes(), allow(proxy_port).as_bytes());
        assert!(failed.is_empty(), "{failed:?}");
    }
    let descriptor = policy.fd().unwrap().as_raw_fd();
    node.write(
        "skep_policies",
        &u32::from(HOST).to_ne_bytes(),
        &descriptor.to_ne_bytes(),
    )?;
    write_host(node, flags)
}

fn write_host(node: &PacketNode, flags: u8) -> Result<(), Error> {
    let host = Endpoint {
        id: HOST,
        identity: 1,
        flags,
        verdicts: 3,
        ..Endpoint::default()
    };
    node.write("skep_endpoints", &CILIUM_HOST.to_ne_bytes(), host.as_bytes())
}

fn with_firewall(test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let change = |options: &mut skep_bpf_programs::NodeOptions| {
        options.trace_aggregation = 3;
        options.packets.host_firewall = true;
        options.packets.cilium_host = CILIUM_HOST;
    };
    let done = with_options(&facts(), change, move |node| {
        let address = LxcValue {
            flags: lxc_flags::HOST,
            ..LxcValue::default()
        };
        node.write(
            "cilium_lxc",
            LxcKey::new(NODE.into()).as_bytes(),
            address.as_bytes(),
        )?;
        test(node)
    });
    done.unwrap();
}

/// Whether a packet from outside to the node passes.
fn arrives(node: &PacketNode, frame: &Frame) -> Result<bool, Error> {
    Ok(node
        .run("cil_from_netdev", &frame.bytes(), &at(ETH0_IFINDEX))?
        .verdict
        != SHOT)
}

fn leaves(node: &PacketNode, frame: &Frame) -> Result<bool, Error> {
    Ok(node
        .run("cil_to_netdev", &frame.bytes(), &at(ETH0_IFINDEX))?
        .verdict
        != SHOT)
}

fn to_node(port: u16) -> Frame {
    Frame::new(
        TCP,
        SocketAddr::new(CLIENT.into(), 40_000),
        SocketAddr::new(NODE.into(), port),
    )
}

fn from_node(port: u16) -> Frame {
    Frame::new(
        TCP,
        SocketAddr::new(NODE.into(), 20_000),
        SocketAddr::new(CLIENT.into(), port),
    )
}

/// Verdict events: endpoint, verdict, whether ingress, whether audited.
fn verdicts(node: &PacketNode) -> Result<Vec<(u16, i32, bool, bool)>, Error> {
    let events = node.take_events()?;
    let verdicts = events.iter().filter_map(|bytes| match Event::decode(bytes) {
        Ok(Event::PolicyVerdict(event)) => Some((
            event.header.source,
            event.verdict,
            event.flags & 3 == 1,
            event.flags & 0x40 != 0,
        )),
        _ => None,
    });
    Ok(verdicts.collect())
}

#[test]
fn the_policy_of_the_host_decides_in_both_directions_and_replies_pass() {
    with_firewall(|node| {
        restrict(node, 0)?;
        let allowed = to_node(SSH);

        assert!(arrives(node, &allowed)?);
        assert!(!arrives(node, &to_node(23))?);
        assert!(leaves(node, &allowed.answer())?, "a reply");
        assert!(leaves(node, &from_node(REMOTE_PORT))?);
        assert!(!leaves(node, &from_node(80))?);
        assert!(arrives(node, &from_node(REMOTE_PORT).answer())?, "a reply");
        assert_eq!(
            verdicts(node)?,
            [
                (HOST, 0, true, false),
                (HOST, -133, true, false),
                (HOST, 0, false, false),
                (HOST, -133, false, false)
            ]
        );
        Ok(())
    });
}

#[test]
fn flows_of_an_open_policy_go_on_when_it_closes() {
    with_firewall(|node| {
        write_host(node, endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS)?;
        let (there, out) = (to_node(23), from_node(80));
        assert!(arrives(node, &there)? && leaves(node, &out)?);

        restrict(node, 0)?;

        assert!(leaves(node, &there.answer())? && arrives(node, &out.answer())?);
        assert!(
            !arrives(node, &there)?,
            "packets of requests are decided about anew"
        );
        Ok(())
    });
}

#[test]
fn without_a_policy_everything_passes() {
    with_firewall(|node| {
        assert!(arrives(node, &to_node(23))? && leaves(node, &from_node(80))?);
        assert_eq!(verdicts(node)?, []);
        Ok(())
    });
}

#[test]
fn pods_need_the_policy_of_the_host_to_reach_it() {
    with_firewall(|node| {
        restrict(node, 0)?;
        let to = |port| {
            let frame = Frame::new(
                TCP,
                SocketAddr::new(P1.into(), 40_000),
                SocketAddr::new(NODE.into(), port),
            );
            node.run("cil_from_container", &frame.bytes(), &at(P1_IFINDEX))
        };

        assert_ne!(to(SSH)?.verdict, SHOT);
        assert_eq!(to(23)?.verdict, SHOT);
        Ok(())
    });
}

#[test]
fn what_is_audited_passes_with_an_event() {
    with_firewall(|node| {
        restrict(node, endpoint_flags::AUDIT)?;

        assert!(arrives(node, &to_node(23))?);

        assert_eq!(verdicts(node)?, [(HOST, 0, true, true)]);
        Ok(())
    });
}

#[test]
fn frames_that_policies_do_not_cover_are_dropped_while_one_is_enforced() {
    with_firewall(|node| {
        let mut frame = to_node(23).bytes();
        frame[12..14].copy_from_slice(&[0x88, 0xcc]);
        let passes =
            || Ok::<_, Error>(node.run("cil_from_netdev", &frame, &at(ETH0_IFINDEX))?.verdict != SHOT);
        assert!(passes()?);

        restrict(node, 0)?;

        assert!(!passes()?);
        Ok(())
    });
}

#[test]
fn queries_of_the_host_go_to_the_proxy_and_those_of_the_proxy_to_the_server() {
    with_firewall(|node| {
        restrict(node, 0)?;
        let sent = |mark| {
            let context = SkBuff {
                mark,
                ..at(ETH0_IFINDEX)
            };
            node.run("cil_to_netdev", &from_node(DNS).bytes(), &context)
        };
        // Port of the proxy, as on the wire.
        let to_proxy = u32::from(u16::from_ne_bytes(PROXY.to_bytes())) << 16 | 0x200;
        for _ in 0..2 {
            let redirected = sent(0)?;
            assert_eq!((redirected.verdict, redirected.mark), (REDIRECT, to_proxy));
        }
        // Of the host's identity.
        assert_eq!(sent(1 << 16 | 0xb00)?.verdict, 0, "passes");

        let context = SkBuff {
            mark: to_proxy,
            ..at(CILIUM_HOST)
        };
        let query = from_node(DNS).bytes();
        assert_eq!(node.run("cil_to_host", &query, &context)?.verdict, SHOT);
        assert_eq!(drops(node)?, [178], "there is no socket of a proxy");
        Ok(())
    });
}
