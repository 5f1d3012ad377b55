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

const ALL: [Difference; 8] = [
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
        applies: |step, input, done| {
            let theirs = step.packet_out.as_ref().map(|packet| &*packet.0);
            let is_answer = is_time_exceeded(theirs.unwrap_or_default()) && is_time_exceeded(&done.packet);
            is_answer && !is_time_exceeded(input)
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
        name: "errors-of-routers",
        applies: |step, input, done| {
            let theirs = step.events.iter().rev().find_map(|event| event.hex.0.get(..2));
            let is_error =
                is_icmp4_error(input) || is_icmp6(input) && matches!(input.get(54), Some(1 | 3 | 4));
            matches!(theirs, Some([1, 133 | 181])) && is_error && done.verdict != SHOT
        },
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

/// Both are the same ICMP error, about packets that differ in their destination and in nothing else; checksums fit.
fn names_another(theirs: &[u8], ours: &[u8]) -> bool {
    let is_ipv4 = theirs.get(12..15) == Some(&[0x08, 0x00, 0x45]) && theirs.get(23) == Some(&1);
    // Where the message is, kinds of errors, sizes of header and address of the packet inside, and where its protocol is.
    let (error, kinds, header, address, protocol) = match is_ipv4 {
        true => (34, &[3, 11, 12][..], 20, 4, 9),
        false if is_icmp6(theirs) => (54, &[1, 2, 3, 4][..], 40, 16, 6),
        false => return false,
    };
    let inside = error + 8;
    let ports = inside + header;
    if theirs.len() != ours.len() || theirs.len() < ports {
        return false;
    }
    let destination = ports - address..ports;
    let checksum = match theirs.get(inside + protocol) {
        Some(6) => ports + 16..ports + 18,
        Some(17) => ports + 6..ports + 8,
        _ => return false,
    };
    let mut fields = vec![
        error + 2..error + 4,
        destination.clone(),
        ports + 2..ports + 4,
        checksum.clone(),
    ];
    if is_ipv4 {
        fields.push(inside + 10..inside + 12);
    }
    // What each checksum is about, as far as it may differ. Errors may cut off the last one.
    let sums = [
        Some(error..ours.len()),
        is_ipv4.then_some(inside..ports),
        (checksum.end <= ours.len()).then_some(destination.start..ours.len()),
    ];
    let mut expected = theirs.to_vec();
    for field in fields {
        if let (Some(here), Some(there)) = (ours.get(field.clone()), expected.get_mut(field)) {
            there.copy_from_slice(here);
        }
    }
    theirs.get(error).is_some_and(|kind| kinds.contains(kind))
        && expected == ours
        && theirs[destination.clone()] != ours[destination]
        && sums
            .into_iter()
            .flatten()
            .all(|range| sum(&theirs[range.clone()]) == sum(&ours[range]))
}

/// The sum of 16-bit words that checksums are made of.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| {
        let [high, low] = [word[0], word.get(1).copied().unwrap_or_default()];
        u32::from(u16::from_be_bytes([high, low]))
    });
    words.fold(0, |sum, word| (sum + word) % 0xffff)
}

/// "Unreachable", "time exceeded" or "parameter problem" over IPv4.
fn is_icmp4_error(frame: &[u8]) -> bool {
    let header = usize::from(frame.get(14).copied().unwrap_or_default() & 0xf) * 4;
    frame.get(12..14) == Some(&[0x08, 0x00])
        && frame.get(23) == Some(&1)
        && matches!(frame.get(14 + header), Some(3 | 11 | 12))
}

/// Without extension headers.
fn is_icmp6(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors about a packet to a backend, and about the same packet to the service.
    const PAIRS: [(&str, &str); 2] = [
        (
            "56cf58685bd67eaded74e4fc080045000038123440003f01131a0a6001720a0100a50303d66d00000000\
             4500002c123440003f11140a0a0100a50a0100dda418003500188229",
            "56cf58685bd67eaded74e4fc080045000038123440003f01131a0a6001720a0100a50303d76100000000\
             4500002c123440003f1113160a0100a50a600172a418003500188135",
        ),
        (
            "3a114eeef2b276240516d4f386dd\
             6001234500563a40fd000030000000000000000000000002fd000030000000000000000000000003\
             0200741100000578\
             600123450026063ffd000030000000000000000000000003fd000010000200000000000000000010\
             b3c00050000003e8000007d05018ffff16fc0000474554202f20485454502f312e300d0a0d0a",
            "3a114eeef2b276240516d4f386dd\
             6001234500563a40fd000030000000000000000000000002fd000030000000000000000000000003\
             0200741100000578\
             600123450026063ffd000030000000000000000000000003fd000030000000000000000000000001\
             b3c07580000003e8000007d05018ffffa1bc0000474554202f20485454502f312e300d0a0d0a",
        ),
    ];

    #[test]
    fn errors_about_another_destination_differ_in_nothing_else() {
        for (theirs, ours) in
            PAIRS.map(|(theirs, ours)| (hex::decode(theirs).unwrap(), hex::decode(ours).unwrap()))
        {
            assert!(names_another(&theirs, &ours));
            assert!(!names_another(&theirs, &theirs));
            for at in 0..ours.len() {
                let mut altered = ours.clone();
                altered[at] ^= 1;
                assert!(!names_another(&theirs, &altered), "byte {at}");
            }
            for length in 0..ours.len() {
                assert!(!names_another(&theirs, &ours[..length]), "{length} bytes");
                names_another(&theirs[..length], &ours[..length]);
            }
        }
    }
}
