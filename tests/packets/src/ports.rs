// SPDX-License-Identifier: Apache-2.0

//! Source ports and ICMP ids that were random when a scenario was recorded: those that were chosen here take their place.

use std::{collections::BTreeMap, ops::Range};

use crate::{compare::Maps, vectors::Step};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SCTP: u8 = 132;

/// The transport header of an IP packet: its protocol, and where it is. None of later fragments.
fn transport(packet: &[u8], ip: usize) -> Option<(u8, usize)> {
    match packet.get(ip)? >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*packet.get(ip + 6)?, *packet.get(ip + 7)?]) & 0x1fff;
            let at = ip + usize::from(packet[ip] & 0xf) * 4;
            (fragment == 0).then_some((*packet.get(ip + 9)?, at))
        }
        6 => {
            let (mut next, mut at) = (*packet.get(ip + 6)?, ip + 40);
            loop {
                let words = usize::from(*packet.get(at + 1)?);
                match next {
                    0 | 43 | 60 => (next, at) = (packet[at], at + (words + 1) * 8),
                    44 if packet.get(at + 2..at + 4)? == [0, 0] || packet[at + 2..at + 4] == [0, 1] => {
                        (next, at) = (packet[at], at + 8);
                    }
                    44 => return None,
                    51 => (next, at) = (packet[at], at + (words + 2) * 4),
                    _ => return Some((next, at)),
                }
            }
        }
        _ => None,
    }
}

/// Where the IP header of a frame is.
fn ip_at(frame: &[u8]) -> Option<usize> {
    match frame.get(12..14)? {
        [0x81, 0x00] => matches!(frame.get(16..18)?, [0x08, 0x00] | [0x86, 0xdd]).then_some(18),
        [0x08, 0x00] | [0x86, 0xdd] => Some(14),
        _ => None,
    }
}

/// Where the ports of a frame are, if it is TCP, UDP or SCTP.
pub(crate) fn ports_at(frame: &[u8]) -> Option<usize> {
    let (proto, at) = transport(frame, ip_at(frame)?)?;
    matches!(proto, TCP | UDP | SCTP).then_some(at)
}

/// Ports of then, and those that stand for them now.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<u16, u16>);

impl Ports {
    /// Learns what became of ports from the translations that a step made.
    pub(crate) fn learn(&mut self, step: &Step, after: &Maps) {
        for change in &step.map_changes {
            let family = change.map.as_str();
            let (key_ports, value_port) = match family {
                "cilium_snat_v4_external" => (8, 36),
                "cilium_snat_v6_external" => (32, 48),
                _ => continue,
            };
            let (Some(value), key) = (&change.value, &change.key.0) else {
                continue;
            };
            if change.op == "delete" || key.last() != Some(&0) {
                continue;
            }
            let port =
                |bytes: &[u8], at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
            let (Some(theirs), Some(original)) = (port(&value.0, value_port), port(key, key_ports + 2))
            else {
                continue;
            };
            let ours = after
                .get(family)
                .and_then(|entries| entries.get(key))
                .and_then(|value| port(value, value_port));
            match ours {
                Some(ours) if ours == theirs => {
                    self.0.remove(&theirs);
                }
                Some(ours) if theirs != original => {
                    self.0.insert(theirs, ours);
                }
                _ => {}
            }
        }
    }

    /// The bytes with ports as they are here; `at` are offsets of ports.
    fn replace(&self, bytes: &mut [u8], at: &[usize]) {
        for at in at {
            if let Some([high, low]) = bytes.get(*at..*at + 2)
                && let Some(ours) = self.0.get(&u16::from_be_bytes([*high, *low]))
            {
                bytes[*at..*at + 2].copy_from_slice(&ours.to_be_bytes());
            }
        }
    }

    /// The packet with ports as they are here, those of a packet that an ICMP error quotes as well, and the checksums
    /// that go with them.
    pub(crate) fn packet(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        if let Some(ip) = ip_at(&frame)
            && !self.0.is_empty()
        {
            self.rename(&mut frame, ip);
        }
        frame
    }

    fn rename(&self, frame: &mut [u8], ip: usize) {
        let Some((proto, at)) = transport(frame, ip) else {
            return;
        };
        let before = frame.to_vec();
        let checksum = match (proto, before.get(at)) {
            (TCP | UDP | SCTP, _) => {
                self.replace(frame, &[at, at + 2]);
                match proto {
                    TCP => at + 16,
                    UDP => at + 6,
                    // It has no checksum that ports could be added to.
                    _ => return,
                }
            }
            (ICMP, Some(0 | 8)) | (ICMP6, Some(128 | 129)) => {
                self.replace(frame, &[at + 4]);
                at + 2
            }
            (ICMP, Some(3 | 11 | 12)) | (ICMP6, Some(1..=4)) => {
                self.rename(frame, at + 8);
                at + 2
            }
            _ => return,
        };
        adjust(&before, frame, at..frame.len(), checksum, proto == UDP);
    }

    pub(crate) fn key(&self, map: &str, key: &[u8]) -> Vec<u8> {
        let mut key = key.to_vec();
        if is_of_flows(map) {
            // Both are before the protocol and the direction.
            let ports = key.len().saturating_sub(6);
            self.replace(&mut key, &[ports, ports + 2]);
        }
        key
    }

    pub(crate) fn value(&self, map: &str, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        match map {
            "cilium_snat_v4_external" => self.replace(&mut value, &[36]),
            "cilium_snat_v6_external" => self.replace(&mut value, &[48]),
            "cilium_ipv4_frag_datagrams" | "cilium_ipv6_frag_datagrams" => self.replace(&mut value, &[0, 2]),
            _ => {}
        }
        value
    }
}

/// Keys of the map are tuples of flows.
fn is_of_flows(map: &str) -> bool {
    map.starts_with("cilium_snat_v") && map.ends_with("_external") || map.starts_with("cilium_ct")
}

/// Adds what changed in `range` to the checksum of it. A UDP datagram without one stays without.
fn adjust(before: &[u8], after: &mut [u8], range: Range<usize>, checksum: usize, is_udp: bool) {
    let Some([high, low]) = before.get(checksum..checksum + 2) else {
        return;
    };
    let old = u16::from_be_bytes([*high, *low]);
    if (is_udp && old == 0) || before[range.clone()] == after[range.clone()] {
        return;
    }
    let words = |bytes: &[u8]| -> u64 {
        let words = bytes.chunks(2).map(|word| {
            let low = word.get(1).copied().unwrap_or_default();
            u64::from(u16::from_be_bytes([word[0], low]))
        });
        words.sum()
    };
    // Each word that goes is added as its complement.
    let gone = (range.len() as u64).div_ceil(2) * 0xffff - words(&before[range.clone()]);
    let mut sum = u64::from(!old) + gone + words(&after[range]);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let new = match !(sum as u16) {
        0 if is_udp => 0xffff,
        new => new,
    };
    after[checksum..checksum + 2].copy_from_slice(&new.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: u16 = 50_001;

    fn ports(old: u16) -> Ports {
        Ports(BTreeMap::from([(old, NEW)]))
    }

    fn bytes(text: &str) -> Vec<u8> {
        hex::decode(text).unwrap()
    }

    fn port(frame: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([frame[at], frame[at + 1]])
    }

    /// The sum over what an ICMP checksum is about is a constant if it is right.
    fn is_right(message: &[u8]) -> bool {
        let mut sum: u32 = message
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
            .sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum == 0xffff
    }

    #[test]
    fn errors_quote_the_port_of_here() {
        // "Port unreachable" about a UDP datagram from port 42008.
        let error = bytes(
            "56cf58685bd67eaded74e4fc080045000038123440003f01131a0a6001720a0100a50303d66d00000000\
             4500002c123440003f11140a0a0100a50a0100dda418003500188229",
        );
        assert!(is_right(&error[34..]));

        let renamed = ports(42_008).packet(&error);

        assert_eq!(port(&renamed, 62), NEW);
        assert_ne!(
            port(&renamed, 68),
            port(&error, 68),
            "checksum of the quoted datagram"
        );
        assert!(is_right(&renamed[34..]));
    }

    #[test]
    fn ids_of_echoes_are_ports() {
        let mut echo = bytes("56cf58685bd67eaded74e4fc08004500001c12344000400113010a0100a50a0100dd0800");
        let sum = !(0x0800_u16 + 0x1234 + 1);
        echo.extend(sum.to_be_bytes());
        echo.extend([0x12, 0x34, 0, 1]);
        assert!(is_right(&echo[34..]));

        let renamed = ports(0x1234).packet(&echo);

        assert_eq!(port(&renamed, 38), NEW);
        assert!(is_right(&renamed[34..]));
    }

    #[test]
    fn what_has_no_ports_stays() {
        let mut later = bytes(
            "7eaded74e4fc56cf58685bd608004500002812340001400613190a0100a50a0100dd\
             9c410050000003e8000000005002fffff9e50000",
        );
        assert_eq!(ports(40_001).packet(&later), later, "a later fragment");
        later[20..22].fill(0);
        assert_ne!(ports(40_001).packet(&later), later);

        let without =
            bytes("7eaded74e4fc56cf58685bd608004500001c12340000401113190a0100a50a0100dd9c41003500080000");
        let renamed = ports(40_001).packet(&without);
        assert_eq!(port(&renamed, 34), NEW);
        assert_eq!(port(&renamed, 40), 0, "a datagram without checksum has none");
    }

    #[test]
    fn any_bytes_can_be_renamed() {
        let ports = ports(0);
        for kind in [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]] {
            for first in [0x45, 0x4f, 0x60, 0x00] {
                for proto in [0, 1, 6, 17, 43, 44, 51, 58, 60, 132] {
                    for length in 0..120 {
                        let mut frame = vec![0; length];
                        for (at, byte) in [
                            (12, kind[0]),
                            (13, kind[1]),
                            (14, first),
                            (20, proto),
                            (23, proto),
                        ] {
                            if let Some(place) = frame.get_mut(at) {
                                *place = byte;
                            }
                        }
                        assert_eq!(ports.packet(&frame).len(), length);
                    }
                }
            }
        }
    }
}
