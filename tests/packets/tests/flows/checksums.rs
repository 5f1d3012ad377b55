// SPDX-License-Identifier: Apache-2.0

//! Packets that come with a wrong checksum: it is changed by what changes in the packet, and stays as wrong as it was.

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};

use crate::{dsr::*, frame::*, packet::*};

/// What is added to a right checksum.
const WRONG: u16 = 0x1234;

fn at_byte(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn add(bytes: &mut [u8], at: usize) {
    let wrong = fold(u32::from(at_byte(bytes, at)) + u32::from(WRONG));
    bytes[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
}

/// Sends a packet through a program, which rewrites it, and the same with something added to its checksum.
#[track_caller]
fn check(node: &PacketNode, program: &str, ifindex: u32, right: &[u8], at_in: usize, at_out: usize) {
    let run = |frame: &[u8]| node.run(program, frame, &at(ifindex)).unwrap();
    let expected = run(right);
    assert_ne!(
        expected.packet[14 + 20..],
        right[14 + 20..],
        "{program}: rewritten"
    );
    let mut wrong = right.to_vec();
    add(&mut wrong, at_in);

    let mut ran = run(&wrong);

    assert_eq!(ran.verdict, expected.verdict);
    let mut added = expected.packet.clone();
    add(&mut added, at_out);
    let [seen, wanted] = [&ran.packet, &added].map(|packet| at_byte(packet, at_out) % 0xffff);
    assert_eq!(seen, wanted, "{program}: as wrong as before");
    // Nothing else differs.
    ran.packet[at_out..at_out + 2].copy_from_slice(&expected.packet[at_out..at_out + 2]);
    assert_eq!(ran.packet, expected.packet, "{program}");
}

fn checksum_at(family: Family, proto: u8) -> usize {
    14 + if family == V4 { 20 } else { 40 } + if proto == TCP { 16 } else { 6 }
}

#[test]
fn of_requests_and_answers_of_node_ports() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let asked = request(family, proto);
                let forwarded = read_back(&receive(node, program, &asked)?);
                let at = checksum_at(family, proto);
                check(node, program, ETH0_IFINDEX, &asked.bytes(), at, at);
                check(node, program, ETH0_IFINDEX, &forwarded.answer().bytes(), at, at);
                if family == V4 {
                    let header = 14 + 10;
                    check(node, program, ETH0_IFINDEX, &asked.bytes(), header, header);
                }
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn of_packets_with_the_option_of_direct_return_and_their_answers() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let asked = request(family, proto);
                let told = read_back(&receive(node, program, &asked)?).extension.len();
                let at = checksum_at(family, proto);
                check(node, program, ETH0_IFINDEX, &asked.bytes(), at, at + told);

                let first = dispatched(family, proto);
                receive(node, TC, &first)?;
                let answer = first.answer().bytes();
                check(node, "cil_to_netdev", ETH0_IFINDEX, &answer, at, at);
            }
            Ok(())
        })
    });
}

#[test]
fn of_errors_and_of_the_packets_in_them() {
    with_dsr(DSR, |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let first = dispatched(family, proto);
            let delivered = receive(node, TC, &first)?.packet;
            let mut message = match family {
                V4 => vec![3, 3, 0, 0, 0, 0, 0, 0],
                V6 => vec![1, 4, 0, 0, 0, 0, 0, 0],
            };
            message.extend(&delivered[14..]);
            let error = Raw::icmp(family.local_pod(), family.client(), message).frame();
            let l4 = 14 + if family == V4 { 20 } else { 40 };
            check(node, "cil_to_netdev", ETH0_IFINDEX, &error, l4 + 2, l4 + 2);
            Ok::<_, Error>(())
        })
    });
}

#[test]
fn datagrams_without_one_get_none() {
    let done = with_node(&facts(), |node| {
        for program in [TC, XDP] {
            node.forget_flows()?;
            let mut frame = request(V4, UDP).bytes();
            let at = checksum_at(V4, UDP);
            frame[at..at + 2].fill(0);
            let ran = node.run(program, &frame, &crate::packet::at(ETH0_IFINDEX))?;
            assert_ne!(ran.packet[14 + 16..14 + 20], frame[14 + 16..14 + 20]);
            assert_eq!(at_byte(&ran.packet, at), 0, "{program}");
        }
        Ok(())
    });
    done.unwrap();
}
