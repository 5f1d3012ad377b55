// SPDX-License-Identifier: Apache-2.0

//! Packets and bytes in entries of flows.

use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_maps::conntrack::{CtEntry, key_flags};
use skep_bpf_programs::NodeOptions;
use zerocopy::FromBytes as _;

use crate::{
    dsr::*,
    frame::*,
    mtu::{full, larger},
    packet::*,
};

const SERVICE: u8 = key_flags::SERVICE;
const INGRESS: u8 = key_flags::INGRESS;
const EGRESS: u8 = 0;

fn accounting(options: &mut NodeOptions) {
    options.packets.ct_accounting = true;
}

/// Packets and bytes of entries, by the flags of their keys; without those of ICMP errors.
fn counted(node: &PacketNode, family: Family) -> Result<Vec<(u8, u64, u64)>, Error> {
    let mut counted: Vec<_> = flows(node, family)?
        .into_iter()
        .filter(|(flags, _)| flags & key_flags::RELATED == 0)
        .map(|(flags, entry)| {
            let entry = CtEntry::read_from_bytes(&entry).unwrap();
            (flags, entry.packets, entry.bytes)
        })
        .collect();
    counted.sort_unstable();
    Ok(counted)
}

fn length(frame: &Frame) -> u64 {
    frame.bytes().len() as u64
}

#[test]
fn entries_of_services_count_requests_and_those_of_backends_replies_too() {
    let done = with_options(&facts(), accounting, |node| {
        for program in [TC, XDP] {
            each(|family, proto| {
                node.forget_flows()?;
                let first = request(family, proto);
                let forwarded = read_back(&receive(node, program, &first)?);
                let expected = [(EGRESS, 1, length(&first)), (SERVICE, 1, length(&first))];
                assert_eq!(counted(node, family)?, expected, "{program} {family:?}");

                let second = request(family, proto).flags(ACK).payload(100);
                receive(node, program, &second)?;
                let bytes = length(&first) + length(&second);
                let expected = [(EGRESS, 2, bytes), (SERVICE, 2, bytes)];
                assert_eq!(counted(node, family)?, expected, "{program} {family:?}");

                let answer = forwarded.answer().payload(50);
                receive(node, program, &answer)?;
                let expected = [(EGRESS, 3, bytes + length(&answer)), (SERVICE, 2, bytes)];
                assert_eq!(counted(node, family)?, expected, "{program} {family:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn entries_of_both_pods_count_both_directions() {
    let pods = |family: Family| (family.pick(P1, "fd00:10:1::63cb"), family.local_pod());
    let done = with_options(&facts(), accounting, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let (from, to) = pods(family);
            let first = Frame::new(proto, (from, 40_000).into(), (to, 8080).into());
            node.run("cil_from_container", &first.bytes(), &at(P1_IFINDEX))?;
            let answer = first.answer().payload(20);
            node.run("cil_from_container", &answer.bytes(), &at(P2_IFINDEX))?;

            let bytes = length(&first) + length(&answer);
            let expected = [(EGRESS, 2, bytes), (INGRESS, 2, bytes)];
            assert_eq!(counted(node, family)?, expected, "{family:?}");

            // A connection that begins anew counts anew.
            if proto == TCP {
                let reset = first.clone().flags(4);
                node.run("cil_from_container", &reset.bytes(), &at(P1_IFINDEX))?;
                node.run("cil_from_container", &first.bytes(), &at(P1_IFINDEX))?;
                let expected = [(EGRESS, 1, length(&first)), (INGRESS, 1, length(&first))];
                assert_eq!(counted(node, family)?, expected, "{family:?}");
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn direct_return_counts_at_the_node_of_the_backend() {
    let change = |options: &mut NodeOptions| {
        accounting(options);
        options.packets.dsr = Some(DSR);
    };
    let done = with_options(&facts(), change, |node| {
        let first = Frame::new(UDP, CLIENT_SIDE.into(), (P2, 8080).into());
        let first = first.extension(&[0x9a, 8, 0x80, 0x75, 1, 0, 30, 172]);
        receive(node, TC, &first)?;
        receive(node, TC, &first)?;
        let bytes = 2 * length(&first);
        assert_eq!(counted(node, V4)?, [(EGRESS, 2, bytes), (INGRESS, 2, bytes)]);
        Ok(())
    });
    done.unwrap();
}

/// Both programs get the packet, as at an interface with both; the first one leaves it to the other.
fn receive_by_both(node: &PacketNode, frame: &Frame) -> Result<(), Error> {
    let family = if frame.source.is_ipv4() { V4 } else { V6 };
    let before = counted(node, family)?;
    let ran = receive(node, XDP, frame)?;
    assert_eq!((ran.verdict, read_back(&ran)), (XDP_PASS, frame.clone()));
    let mut left = counted(node, family)?;
    left.retain(|(_, packets, bytes)| (*packets, *bytes) != (0, 0));
    assert_eq!(left, before, "what it left is not counted");
    receive(node, TC, frame)?;
    Ok(())
}

#[test]
fn what_one_program_leaves_to_the_other_is_counted_once() {
    let done = with_options(&facts(), accounting, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let small = request(family, proto);
            let large = larger(full(small.clone()));

            receive_by_both(node, &large)?;
            let expected = [(EGRESS, 1, length(&large)), (SERVICE, 1, length(&large))];
            assert_eq!(counted(node, family)?, expected, "{family:?}: a new flow");

            let forwarded = read_back(&receive(node, XDP, &small)?);
            receive_by_both(node, &large)?;
            let bytes = 2 * length(&large) + length(&small);
            let expected = [(EGRESS, 3, bytes), (SERVICE, 3, bytes)];
            assert_eq!(counted(node, family)?, expected, "{family:?}: a known one");

            let answer = larger(full(forwarded.answer()));
            receive_by_both(node, &answer)?;
            let expected = [(EGRESS, 4, bytes + length(&answer)), (SERVICE, 3, bytes)];
            assert_eq!(counted(node, family)?, expected, "{family:?}: its answer");
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn with_direct_return_as_well() {
    let change = |options: &mut NodeOptions| {
        accounting(options);
        options.packets.dsr = Some(DSR);
    };
    let done = with_options(&facts(), change, |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let frame = large(family);
            receive_by_both(node, &frame)?;
            assert_eq!(counted(node, family)?, [(SERVICE, 1, length(&frame))]);
        }
        Ok(())
    });
    done.unwrap();
}

const CLIENT_SIDE: Side = (CLIENT, 40_000);

#[test]
fn nothing_is_counted_by_default() {
    let done = with_options(
        &facts(),
        |_| (),
        |node| {
            each(|family, proto| {
                node.forget_flows()?;
                for program in [TC, XDP] {
                    receive(node, program, &request(family, proto))?;
                }
                for (_, packets, bytes) in counted(node, family)? {
                    assert_eq!((packets, bytes), (0, 0));
                }
                Ok(())
            })
        },
    );
    done.unwrap();
}
