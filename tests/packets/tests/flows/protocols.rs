// SPDX-License-Identifier: Apache-2.0

//! IP protocols without ports: flows like others with `enable-extended-ip-protocols`, dropped without.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_programs::NodeOptions;

use crate::{dsr::*, frame::*, packet::*};

const GRE: u8 = 47;
const ESP: u8 = 50;
const UNKNOWN_PROTOCOL: u8 = 137;
const FRAGMENT_NOT_FOUND: u8 = 175;
const CONTAINER: &str = "cil_from_container";
/// Offset of the protocol in the key of a flow, before its flags.
const KEY_PROTO: [usize; 2] = [12, 36];

fn with_protocols(test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let change = |options: &mut NodeOptions| options.packets.extended_protocols = true;
    with_options(&facts(), change, test).unwrap();
}

fn sender(family: Family) -> IpAddr {
    family.pick(P1, "fd00:10:1::63cb")
}

/// What is behind the IP header is no port.
fn frame(family: Family, proto: u8, to: IpAddr) -> Frame {
    Frame::new(
        proto,
        (sender(family), 0x2000).into(),
        SocketAddr::new(to, 0x0800),
    )
}

/// Flows of a protocol: keys, of both address families.
fn keys(node: &PacketNode, family: Family, proto: u8) -> Result<Vec<Vec<u8>>, Error> {
    let entries = node.entries(&family.map("cilium_ct_any4_global"))?;
    let at = KEY_PROTO[usize::from(family == V6)];
    Ok(entries.into_keys().filter(|key| key[at] == proto).collect())
}

#[test]
fn pods_reach_each_other_and_flows_have_no_ports() {
    with_protocols(|node| {
        for family in [V4, V6] {
            // SCTP has ports with a setting of its own only.
            for proto in [GRE, ESP, SCTP] {
                node.forget_flows()?;
                let first = frame(family, proto, family.local_pod());

                let sent = node.run(CONTAINER, &first.bytes(), &at(P1_IFINDEX))?;

                assert_eq!(sent.verdict, REDIRECT, "{family:?} {proto}: {:?}", drops(node)?);
                assert_eq!(
                    sent.packet[34..],
                    first.bytes()[34..],
                    "only the hop limit and MAC addresses change"
                );
                let keys = keys(node, family, proto)?;
                assert_eq!(keys.len(), 2, "{family:?} {proto}");
                for key in keys {
                    let proto_at = KEY_PROTO[usize::from(family == V6)];
                    assert_eq!(key[proto_at - 4..proto_at], [0; 4], "ports of {key:?}");
                }
                let back = node.run(CONTAINER, &first.answer().bytes(), &at(P2_IFINDEX))?;
                assert_eq!(back.verdict, REDIRECT);
            }
        }
        Ok(())
    });
}

#[test]
fn they_leave_the_node_as_they_are() {
    let world = |family: Family| family.pick(Ipv4Addr::new(203, 0, 113, 5), "2001:db8:ffff::5");
    with_protocols(|node| {
        for family in [V4, V6] {
            let sent = frame(family, GRE, world(family)).bytes();

            let ran = node.run("cil_to_netdev", &sent, &at(ETH0_IFINDEX))?;

            assert_eq!(
                (ran.verdict, ran.packet),
                (0, sent),
                "{family:?}: {:?}",
                drops(node)?
            );
            let nat = node.entries(&family.map("cilium_snat_v4_external"))?;
            assert!(nat.is_empty(), "{nat:?}");
            // UDP is masqueraded there.
            let ran = node.run(
                "cil_to_netdev",
                &frame(family, UDP, world(family)).bytes(),
                &at(ETH0_IFINDEX),
            )?;
            assert_eq!(read_back(&ran).source.ip(), family.node());
        }
        Ok(())
    });
}

#[test]
fn fragments_are_of_the_flow_of_the_first_one() {
    with_protocols(|node| {
        // More fragments follow; the second one, 8 bytes further.
        let [first, second] = [[0x20, 0], [0, 1]].map(|fragment| {
            let mut bytes = frame(V4, GRE, P2.into()).bytes();
            bytes[20..22].copy_from_slice(&fragment);
            bytes
        });
        drops(node)?;
        let alone = node.run(CONTAINER, &second, &at(P1_IFINDEX))?;
        assert_eq!((alone.verdict, drops(node)?), (SHOT, vec![FRAGMENT_NOT_FOUND]));
        for fragment in [first, second] {
            let ran = node.run(CONTAINER, &fragment, &at(P1_IFINDEX))?;
            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
        }
        Ok(())
    });
}

#[test]
fn without_the_setting_they_are_dropped() {
    with_node(&facts(), |node| {
        for family in [V4, V6] {
            drops(node)?;
            let ran = node.run(
                CONTAINER,
                &frame(family, GRE, family.local_pod()).bytes(),
                &at(P1_IFINDEX),
            )?;
            assert_eq!(
                (ran.verdict, drops(node)?),
                (SHOT, vec![UNKNOWN_PROTOCOL]),
                "{family:?}"
            );
        }
        Ok(())
    })
    .unwrap();
}
