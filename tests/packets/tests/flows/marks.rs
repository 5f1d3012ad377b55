// SPDX-License-Identifier: Apache-2.0

//! Packets that the node sends to pods by `cilium_host`: whose they are, by their marks and their addresses.

use std::net::{IpAddr, Ipv4Addr};

use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_programs::{NodeOptions, testing::run::SkBuff};

use crate::{
    dsr::*,
    frame::*,
    packet::*,
    to_container::{add_program, closed, events, leaving},
};

const PROGRAM: &str = "cil_from_host";
const CILIUM_HOST: u32 = 4;
const INGRESS_PROXY: u32 = 0x0a00;
const EGRESS_PROXY: u32 = 0x0b00;
const HOST: u32 = 0x0c00;
const IDENTITY: u32 = 0x0f00;
const PROXY_TO_WORLD: u32 = 0x0800;
/// An identity, and it in a mark.
const SENDER: u32 = 0x4321;
const MARKED: u32 = SENDER << 16;
const P1_IDENTITY: u32 = 3211;
const HOST_IDENTITY: u32 = 1;
/// Kinds of events, and points of traces.
const TRACE: u8 = 4;
const TO_ENDPOINT: u8 = 0;
const FROM_PROXY: u8 = 6;
const FROM_HOST: u8 = 7;
const POLICY: u8 = 133;
const UNROUTABLE: u8 = 151;
const PLAINTEXT: u8 = 3;

fn sent(mark: u32) -> SkBuff {
    SkBuff {
        mark,
        ifindex: CILIUM_HOST,
        ..SkBuff::default()
    }
}

fn world(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(203, 0, 113, 5), "2001:db8:ffff::5")
}

fn frame(family: Family, source: IpAddr) -> Vec<u8> {
    Frame::new(TCP, (source, 40_000).into(), (family.local_pod(), 80).into()).bytes()
}

/// Packets that were counted as such that came without encryption.
fn counted(node: &PacketNode) -> Result<u64, Error> {
    let metrics = node.entries("cilium_metrics")?;
    let of_cpus = |value: &Vec<u8>| -> u64 {
        let cpus = value.chunks(16);
        cpus.map(|cpu| u64::from_ne_bytes(cpu[..8].try_into().unwrap()))
            .sum()
    };
    let counters = metrics.iter().filter(|(key, _)| key[0] == PLAINTEXT);
    Ok(counters.map(|(_, value)| of_cpus(value)).sum())
}

#[test]
fn the_sender_is_in_the_mark_or_known_by_its_address() {
    let change = |options: &mut NodeOptions| options.trace_aggregation = 0;
    let done = with_options(&facts(), change, |node| {
        for family in [V4, V6] {
            let unknown = if family == V4 { 9 } else { 10 };
            let pod = family.pick(P1, "fd00:10:1::63cb");
            let of_others = [0, 0x200, 0x300, 0x400, 0x500, 0x700, 0x800, 0x900, 0xd00, 0xe00];
            let mut cases = vec![
                (INGRESS_PROXY | MARKED, world(family), SENDER, SENDER),
                (EGRESS_PROXY | MARKED, world(family), SENDER, SENDER),
                (IDENTITY | MARKED, world(family), SENDER, SENDER),
                (IDENTITY | MARKED, pod, SENDER, SENDER),
                (HOST, family.node(), HOST_IDENTITY, HOST_IDENTITY),
                (HOST, pod, HOST_IDENTITY, P1_IDENTITY),
                (IDENTITY | 2 << 16, pod, 2, P1_IDENTITY),
                (INGRESS_PROXY | 8 << 16, pod, 8, P1_IDENTITY),
            ];
            for mark in of_others {
                cases.push((mark | MARKED, pod, unknown, P1_IDENTITY));
                cases.push((mark | MARKED, world(family), unknown, unknown));
                // Others may have the host's address.
                cases.push((mark | MARKED, family.node(), unknown, unknown));
            }
            for (mark, source, at_first, identity) in cases {
                let what = format!("{mark:#x} {source}");
                node.forget_flows()?;
                events(node)?;
                let before = counted(node)?;

                let ran = node.run(PROGRAM, &frame(family, source), &sent(mark))?;

                assert_eq!((ran.verdict, ran.mark), (REDIRECT, 0), "{what}");
                let is_from_proxy = matches!(mark & 0xf00, INGRESS_PROXY | EGRESS_PROXY);
                let point = if is_from_proxy { FROM_PROXY } else { FROM_HOST };
                let expected = [(TRACE, point, at_first), (TRACE, TO_ENDPOINT, identity)];
                assert_eq!(events(node)?, expected, "{what}");
                assert_eq!(counted(node)? - before, u64::from(!is_from_proxy), "{what}");
                for (_, entry) in flows(node, family)? {
                    assert_eq!(entry[44..48], identity.to_ne_bytes(), "{what}");
                }
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn the_ingress_proxy_has_asked_the_policy() {
    let done = with_node(&facts(), |node| {
        closed(node)?;
        let statistics = node.entries("cilium_policystats")?;
        for (mark, passes) in [(INGRESS_PROXY, true), (EGRESS_PROXY, false), (IDENTITY, false)] {
            for family in [V4, V6] {
                node.forget_flows()?;
                drops(node)?;
                let ran = node.run(PROGRAM, &frame(family, world(family)), &sent(mark | MARKED))?;
                let expected = if passes {
                    (REDIRECT, vec![])
                } else {
                    (SHOT, vec![POLICY])
                };
                assert_eq!((ran.verdict, drops(node)?), expected, "{mark:#x}");
                assert_eq!(flows(node, family)?.len(), if passes { 2 } else { 0 });
                if passes {
                    assert_eq!(node.entries("cilium_policystats")?, statistics);
                }
            }
        }
        // The program at the pod's interface learns of it.
        add_program(node)?;
        for family in [V4, V6] {
            node.forget_flows()?;
            let mark = INGRESS_PROXY | MARKED;
            let ran = node.run(PROGRAM, &frame(family, world(family)), &sent(mark))?;
            assert_eq!((ran.verdict, ran.mark), (REDIRECT, mark));
            let ran = node.run("cil_to_container", &ran.packet, &leaving(ran.mark, 0))?;
            assert_eq!((ran.verdict, drops(node)?), (0, vec![]));
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn only_packets_of_proxies_leave_for_the_world() {
    let done = with_node(&facts(), |node| {
        for (mark, is_proxy) in [
            (INGRESS_PROXY | MARKED, true),
            (EGRESS_PROXY | MARKED, true),
            (IDENTITY | MARKED, false),
            (0, false),
        ] {
            for family in [V4, V6] {
                let out = Frame::new(TCP, (family.node(), 40_000).into(), (world(family), 80).into());
                let ran = node.run(PROGRAM, &out.bytes(), &sent(mark))?;
                let expected = if is_proxy {
                    (0, PROXY_TO_WORLD, vec![])
                } else {
                    (SHOT, 0, vec![UNROUTABLE])
                };
                assert_eq!((ran.verdict, ran.mark, drops(node)?), expected, "{mark:#x}");
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn only_an_identity_in_the_mark_says_who_sends_to_the_host() {
    let change = |options: &mut NodeOptions| options.trace_aggregation = 0;
    let done = with_options(&facts(), change, |node| {
        for (mark, identity) in [
            (IDENTITY | MARKED, SENDER),
            (HOST, 0),
            (EGRESS_PROXY | MARKED, 0),
            (0x400, 0),
        ] {
            let frame = frame(V4, P1.into());
            events(node)?;
            let ran = node.run("cil_to_host", &frame, &sent(mark))?;
            assert_eq!((ran.verdict, ran.mark), (0, mark));
            assert_eq!(events(node)?, [(TRACE, 3, identity)]);
        }
        Ok(())
    });
    done.unwrap();
}
