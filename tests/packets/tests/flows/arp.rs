// SPDX-License-Identifier: Apache-2.0

//! ARP requests of a pod.

use std::net::Ipv4Addr;

use run_packets::node::with_node;
use skep_bpf_maps::endpoint::endpoint_flags;

use crate::{packet::*, to_container::change_flags};

const PROGRAM: &str = "cil_from_container";
/// `TC_ACT_OK`
const PASS: u32 = 0;
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// The second pod asks who has an address.
fn request(target: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(P2_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(P2_MAC);
    frame.extend(P2.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

#[test]
fn the_program_answers_unless_the_kernel_is_to() {
    let done = with_node(&facts(), |node| {
        for target in [ROUTER, P1] {
            let ran = node.run(PROGRAM, &request(target), &at(P2_IFINDEX))?;

            assert_eq!(ran.verdict, REDIRECT);
            assert_eq!(ran.packet[..6], P2_MAC);
            assert_eq!(ran.packet[20..22], [0, 2], "a reply");
            assert_eq!(ran.packet[22..28], ran.packet[6..12], "from this side's address");
            assert_eq!(ran.packet[28..32], target.octets());
            assert_eq!(ran.packet[32..38], P2_MAC);
        }

        change_flags(node, |endpoint| endpoint.flags |= endpoint_flags::ARP_PASSTHROUGH)?;
        for target in [ROUTER, P1] {
            let ran = node.run(PROGRAM, &request(target), &at(P2_IFINDEX))?;
            assert_eq!((ran.verdict, ran.packet), (PASS, request(target)));
        }
        Ok(())
    });
    done.unwrap();
}
