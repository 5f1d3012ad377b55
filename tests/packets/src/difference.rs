// SPDX-License-Identifier: Apache-2.0

//! Where the programs differ from what was recorded because what was recorded is a weakness. `docs/datapath.md` lists
//! them for users.

use skep_bpf_programs::XDP_PROGRAM;

use crate::{compare::Done, vectors::Step};

/// A difference that is meant.
pub(crate) struct Difference {
    /// Its name, as in the docs.
    pub(crate) name: &'static str,
    /// Whether it is what made a step differ.
    applies: fn(&Step, &[u8], &Done) -> bool,
}

const ALL: [Difference; 7] = [
    Difference {
        name: "expired-entries",
        applies: |_, input, done| {
            let expired = |entry: &[u8]| lifetime(entry).is_some_and(|end| u64::from(end) < done.now);
            done.before.iter().any(|(map, entries)| {
                map.starts_with("cilium_ct")
                    && entries
                        .iter()
                        .any(|(key, entry)| expired(entry) && is_of(key, input))
            })
        },
    },
    Difference {
        name: "broken-headers",
        applies: |step, input, done| {
            is_drop(step, done) && matches!(dropped(done), Some(134 | 135)) && has_broken_headers(input)
        },
    },
    Difference {
        name: "hop-limit-of-errors",
        applies: |step, _, done| {
            let theirs = step.packet_out.as_ref().map(|packet| &*packet.0);
            is_time_exceeded(theirs.unwrap_or_default()) && is_time_exceeded(&done.packet)
        },
    },
    Difference {
        name: "nodeport-then-direct",
        applies: |_, _, done| {
            // The entry of the NodePort went with the first packet of the direct connection.
            done.before.iter().any(|(map, entries)| {
                map.starts_with("cilium_ct")
                    && entries.iter().any(|(key, entry)| {
                        let is_kept = done.after.get(map).is_some_and(|after| after.contains_key(key));
                        !is_kept && entry.get(36).is_some_and(|flags| flags & NODE_PORT != 0)
                    })
            })
        },
    },
    Difference {
        name: "errors-about-translated-flows",
        applies: |step, input, done| {
            let is_error = is_icmp6(input) && matches!(input.get(54), Some(1 | 3 | 4));
            let reaches_client = step.packet_out.is_none() && done.packet != input;
            let theirs = step.packet_out.as_ref().map(|packet| &*packet.0);
            (is_error && reaches_client && done.mark & 0xf00 == SNAT_DONE)
                || names_another(theirs.unwrap_or_default(), &done.packet)
        },
    },
    Difference {
        name: "packet-too-big",
        applies: |_, input, done| done.verdict != SHOT && is_icmp6(input) && input.get(54) == Some(&2),
    },
    Difference {
        name: "unresolved-neighbour",
        applies: |step, input, done| {
            let theirs = step.events.iter().find_map(|event| event.hex.0.get(..2));
            is_xdp(step) && theirs == Some(&[1, 169]) && done.verdict == XDP_PASS && done.packet == input
        },
    },
];

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const SNAT_DONE: u32 = 0x300;
const SHOT: u32 = 2;
const NODE_PORT: u8 = 1 << 5;

/// The difference that explains a step, if any does.
pub(crate) fn of(step: &Step, input: &[u8], done: &Done) -> Option<&'static Difference> {
    ALL.iter()
        .find(|difference| (difference.applies)(step, input, done))
}

/// Of the XDP program.
pub(crate) fn is_xdp(step: &Step) -> bool {
    step.program.as_deref() == Some(XDP_PROGRAM)
}

fn is_drop(step: &Step, done: &Done) -> bool {
    done.verdict == if is_xdp(step) { XDP_DROP } else { SHOT }
}

fn lifetime(entry: &[u8]) -> Option<u32> {
    let bytes = entry.get(32..36)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The entry is of the packet's addresses.
fn is_of(key: &[u8], frame: &[u8]) -> bool {
    let (source, destination, size) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (frame.get(26..30), frame.get(30..34), 4),
        Some([0x86, 0xdd]) => (frame.get(22..38), frame.get(38..54), 16),
        _ => return false,
    };
    let (one, other) = (key.get(..size), key.get(size..2 * size));
    (one, other) == (source, destination) || (one, other) == (destination, source)
}

/// Reason of the last drop.
fn dropped(done: &Done) -> Option<u8> {
    let event = done.events.iter().rev().find(|event| event.first() == Some(&1))?;
    event.get(1).copied()
}

fn has_broken_headers(frame: &[u8]) -> bool {
    let Some(ip) = frame.get(14..) else { return false };
    match frame.get(12..14) {
        Some([0x08, 0x00]) if ip.len() >= 20 => {
            let header = usize::from(ip[0] & 0xf) * 4;
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            ip[0] >> 4 != 4 || header < 20 || total > ip.len() || (ip[9] == 17 && ip.len() < header + 8)
        }
        Some([0x86, 0xdd]) if ip.len() >= 40 => {
            let payload = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            ip[0] >> 4 != 6 || payload + 40 > ip.len() || (ip[6] == 17 && ip.len() < 48)
        }
        _ => false,
    }
}

/// An ICMPv6 error that says so.
fn is_time_exceeded(frame: &[u8]) -> bool {
    is_icmp6(frame) && frame.get(54) == Some(&3)
}

/// Both are the same ICMP error, about packets to different destinations.
fn names_another(theirs: &[u8], ours: &[u8]) -> bool {
    // Up to type and code of the message, and the destination inside.
    let (message, destination) = match theirs.get(12..15) {
        Some([0x08, 0x00, 0x45]) if theirs.get(23) == Some(&1) => (14..36, 58..62),
        _ if is_icmp6(theirs) => (14..56, 86..102),
        _ => return false,
    };
    let kinds: &[u8] = if message.end == 36 {
        &[3, 11, 12]
    } else {
        &[1, 2, 3, 4]
    };
    theirs
        .get(message.end - 2)
        .is_some_and(|kind| kinds.contains(kind))
        && theirs.get(message.clone()) == ours.get(message)
        && theirs.get(destination.clone()) != ours.get(destination)
}

/// Without extension headers.
fn is_icmp6(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58)
}
