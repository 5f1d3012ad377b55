// SPDX-License-Identifier: Apache-2.0

//! What frames are, as far as differences depend on it.

use std::ops::Range;

const FRAGMENT_HEADER: u8 = 44;

/// The message of an ICMP packet without extension headers, and whether it is of IPv6.
fn icmp(frame: &[u8]) -> Option<(&[u8], bool)> {
    if frame.get(12..14)? == [0x08, 0x00] {
        let header = usize::from(frame.get(14)? & 0xf) * 4;
        let is_whole = u16::from_be_bytes([*frame.get(20)?, *frame.get(21)?]) & 0x3fff == 0;
        (frame.get(23) == Some(&1) && is_whole).then_some((frame.get(14 + header..)?, false))
    } else {
        let is_icmp6 = frame.get(12..14)? == [0x86, 0xdd] && frame.get(20) == Some(&58);
        is_icmp6.then_some((frame.get(54..)?, true))
    }
}

/// An ICMPv6 message of this type.
pub(super) fn is_icmp6(frame: &[u8], kind: u8) -> bool {
    matches!(icmp(frame), Some(([first, ..], true)) if *first == kind)
}

/// "Unreachable", "time exceeded", "parameter problem", or "packet too big".
pub(super) fn is_error(frame: &[u8]) -> bool {
    match icmp(frame) {
        Some((message, is_ipv6)) => message.first().is_some_and(|kind| errors(is_ipv6).contains(kind)),
        None => false,
    }
}

fn errors(is_ipv6: bool) -> &'static [u8] {
    if is_ipv6 { &[1, 2, 3, 4] } else { &[3, 11, 12] }
}

/// A fragment of an ICMP message: the type of the message if it is the first one.
pub(super) fn icmp_fragment(frame: &[u8]) -> Option<Option<u8>> {
    let (offset, at) = match frame.get(12..14)? {
        [0x08, 0x00] if frame.get(23) == Some(&1) => {
            let field = u16::from_be_bytes([*frame.get(20)?, *frame.get(21)?]) & 0x3fff;
            let header = usize::from(frame.get(14)? & 0xf) * 4;
            ((field != 0).then_some(field & 0x1fff)?, 14 + header)
        }
        [0x86, 0xdd] if frame.get(20) == Some(&FRAGMENT_HEADER) && frame.get(54) == Some(&58) => {
            let field = u16::from_be_bytes([*frame.get(56)?, *frame.get(57)?]) & 0xfff9;
            ((field != 0).then_some(field >> 3)?, 62)
        }
        _ => return None,
    };
    Some(if offset == 0 {
        Some(frame.get(at).copied().unwrap_or(u8::MAX))
    } else {
        None
    })
}

pub(super) fn is_echo(frame: &[u8], kind: u8) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => matches!(kind, 0 | 8),
        _ => matches!(kind, 128 | 129),
    }
}

/// Version, header length or total length are wrong, or a UDP header is cut off.
pub(super) fn has_broken_headers(frame: &[u8]) -> bool {
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

/// Address, and port or id of an echo message.
pub(super) type Side = (Vec<u8>, Vec<u8>);

/// An ICMP error: what translation changes of it, and what not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IcmpError {
    pub(super) source: Vec<u8>,
    pub(super) destination: Vec<u8>,
    pub(super) quoted_source: Side,
    pub(super) quoted_destination: Side,
    pub(super) hop: Vec<u8>,
    pub(super) rest: Vec<u8>,
    /// Over what each checksum covers, with the checksum: the same before and after a translation.
    pub(super) sums: Vec<u32>,
}

impl IcmpError {
    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        let (_, is_ipv6) = icmp(frame).filter(|_| is_error(frame))?;
        // Without IPv4 options.
        if !is_ipv6 && frame.get(14) != Some(&0x45) {
            return None;
        }
        // Offsets: the error, the packet inside, where addresses are in headers, and where their protocol is.
        let (error, header, addresses, size, protocol, hop) = match is_ipv6 {
            false => (34, 20, 12, 4, 9, 22),
            true => (54, 40, 8, 16, 6, 21),
        };
        let inside = error + 8;
        let ports = inside + header;
        let address = |ip: usize, n: usize| ip + addresses + n * size..ip + addresses + (n + 1) * size;
        let proto = *frame.get(inside + protocol)?;
        let (from, to, checksum): (_, Range<usize>, _) = match proto {
            6 => (ports..ports + 2, ports + 2..ports + 4, ports + 16..ports + 18),
            17 => (ports..ports + 2, ports + 2..ports + 4, ports + 6..ports + 8),
            1 | 58 => (ports + 4..ports + 6, ports..ports, ports + 2..ports + 4),
            _ => return None,
        };
        let bytes = |range: Range<usize>| frame.get(range).map(<[u8]>::to_vec);
        let quoted = |n: usize, port: &Range<usize>| Some((bytes(address(inside, n))?, bytes(port.clone())?));
        let (quoted_source, quoted_destination) = (quoted(0, &from)?, quoted(1, &to)?);
        let mut changes = vec![
            0..12,
            hop..hop + 1,
            error + 2..error + 4,
            address(14, 0),
            address(14, 1),
            address(inside, 0),
            address(inside, 1),
            from,
            to,
            checksum.clone(),
        ];
        // The pseudo header has the addresses; their lengths and protocols do not change.
        let mut sums = vec![
            sum(&frame[error..]) + if is_ipv6 { sum(&frame[22..54]) } else { 0 },
            match is_ipv6 {
                false => sum(&frame[14..34]),
                true => 0,
            },
            match is_ipv6 {
                false => sum(&frame[inside..ports]),
                true => 0,
            },
        ];
        if checksum.end <= frame.len() {
            let covered = if proto == 1 {
                ports
            } else {
                address(inside, 0).start
            };
            sums.push(sum(&frame[covered..]));
        }
        if !is_ipv6 {
            changes.extend([24..26, inside + 10..inside + 12]);
        }
        let mut rest = frame.to_vec();
        for range in changes {
            // Errors may cut off the last one.
            if let Some(bytes) = rest.get_mut(range) {
                bytes.fill(0);
            }
        }
        Some(Self {
            source: bytes(address(14, 0))?,
            destination: bytes(address(14, 1))?,
            quoted_source,
            quoted_destination,
            hop: [bytes(0..12)?, bytes(hop..hop + 1)?].concat(),
            rest,
            sums: sums.into_iter().map(|sum| sum % 0xffff).collect(),
        })
    }

    /// Both are the same but for what translations change.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.rest == other.rest && self.sums == other.sums
    }
}

/// The sum of 16-bit words that checksums are made of.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| {
        let [high, low] = [word[0], word.get(1).copied().unwrap_or_default()];
        u32::from(u16::from_be_bytes([high, low]))
    });
    words.fold(0, |sum, word| (sum + word) % 0xffff)
}
