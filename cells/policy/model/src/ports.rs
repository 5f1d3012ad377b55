// SPDX-License-Identifier: Apache-2.0

//! Protocols, ports, and ranges of ports as prefixes.

use std::fmt;

/// Number of a protocol above IP; 0 for any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    pub const ANY: Self = Self(0);
    pub const ICMP: Self = Self(1);
    pub const TCP: Self = Self(6);
    pub const UDP: Self = Self(17);
    pub const ICMPV6: Self = Self(58);
    pub const SCTP: Self = Self(132);
    /// What `ANY` stands for beside a port.
    pub const WITH_PORTS: [Self; 3] = [Self::TCP, Self::UDP, Self::SCTP];
    const NAMES: [(Self, &'static str); 12] = [
        (Self::ICMP, "ICMP"),
        (Self(2), "IGMP"),
        (Self(4), "IPIP"),
        (Self::TCP, "TCP"),
        (Self::UDP, "UDP"),
        (Self(41), "IPV6"),
        (Self(47), "GRE"),
        (Self(50), "ESP"),
        (Self(51), "AH"),
        (Self::ICMPV6, "ICMPV6"),
        (Self(112), "VRRP"),
        (Self::SCTP, "SCTP"),
    ];

    /// The protocol with this name, in any case. Not `ANY`, which is several.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::NAMES
            .iter()
            .find(|(_, known)| known.eq_ignore_ascii_case(name));
        found.map(|(protocol, _)| *protocol)
    }

    /// Every protocol with a name.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(protocol, _)| *protocol)
    }

    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP)
    }
}

/// `TCP`, `*` for any, the number of others.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(protocol, _)| protocol == self) {
            Some((_, name)) => f.pad(name),
            None if *self == Self::ANY => f.pad("*"),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Traffic that a map entry is about: a protocol, and ports with a common prefix of `bits` bits. ICMP has its type for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrafficKey {
    pub protocol: Protocol,
    pub port: u16,
    pub bits: u8,
}

impl TrafficKey {
    /// Every protocol.
    pub const ANY: Self = Self {
        protocol: Protocol::ANY,
        port: 0,
        bits: 0,
    };

    pub const fn new(protocol: Protocol, port: u16, bits: u8) -> Self {
        Self { protocol, port, bits }
    }

    /// Whether all traffic of `other` is its traffic too.
    pub const fn covers(self, other: Self) -> bool {
        if self.protocol.0 == 0 {
            return true;
        }
        self.protocol.0 == other.protocol.0
            && self.bits <= other.bits
            && (self.port ^ other.port) & mask(self.bits) == 0
    }

    /// The traffic of both: the narrower one, if one covers the other.
    pub const fn intersection(self, other: Self) -> Option<Self> {
        if self.covers(other) {
            Some(other)
        } else if other.covers(self) {
            Some(self)
        } else {
            None
        }
    }

    /// Bits of the longest prefix match.
    pub const fn length(self) -> u8 {
        match self.protocol.0 {
            0 => 0,
            _ => 8 + self.bits,
        }
    }
}

/// `TCP/80/16`, as monitors write it.
impl fmt::Display for TrafficKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.protocol, self.port, self.bits)
    }
}

const fn mask(bits: u8) -> u16 {
    match bits {
        0 => 0,
        bits => u16::MAX << (16 - bits),
    }
}

/// The shortest list of prefixes, as port and bits, that are the ports from `start` to `end`. An end that is not greater is a
/// single port.
///
/// ```
/// use skep_policy_model::ports::range_prefixes;
///
/// assert_eq!(range_prefixes(1, 7), [(1, 16), (2, 15), (4, 14)]);
/// ```
pub fn range_prefixes(start: u16, end: u16) -> Vec<(u16, u8)> {
    if start == 0 && matches!(end, 0 | u16::MAX) {
        return vec![(0, 0)];
    }
    let mut prefixes = Vec::new();
    let (mut next, end) = (u32::from(start), u32::from(end.max(start)));
    while next <= end {
        let aligned = if next == 0 { 16 } else { next.trailing_zeros() };
        let fits = (end - next + 1).ilog2();
        let bits = aligned.min(fits);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`next` is a port, `bits` at most 16"
        )]
        prefixes.push((next as u16, 16 - bits as u8));
        next += 1 << bits;
    }
    prefixes
}

/// Ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// Every port for 0; a single one unless the end is greater.
    Number { port: u16, end: u16 },
    /// These ports, 0 among them.
    Exact { port: u16, end: u16 },
    /// A port of that name of who receives, or from there to `end`.
    Name { name: String, end: u16 },
}

impl Ports {
    pub const ALL: Self = Self::Number { port: 0, end: 0 };

    /// Whether they are some ports alone: peers are elided beside any peer only then.
    pub const fn is_specific(&self) -> bool {
        !matches!(self, Self::Number { port: 0, .. })
    }

    /// Their prefixes, once `named` is the number of a name.
    pub fn prefixes(&self, named: u16) -> Vec<(u16, u8)> {
        match *self {
            Self::Number { port: 0, .. } => vec![(0, 0)],
            Self::Exact { port: 0, end: 0 } => vec![(0, 16)],
            Self::Number { port, end } | Self::Exact { port, end } => range_prefixes(port, end),
            Self::Name { end, .. } => range_prefixes(named, end),
        }
    }
}

/// A text is no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("unable to parse port: \"{0}\" is not a number")]
    Syntax(String),
    #[error("unable to parse port: \"{0}\" is out of range")]
    Range(String),
}

/// A port number or a service name. Numbers may have a leading `0` (octal) and underscores between digits, as Go parses them.
pub fn parse_port(text: &str) -> Result<Ports, PortError> {
    if is_service_name(text) {
        return Ok(Ports::Name {
            name: text.to_ascii_lowercase(),
            end: 0,
        });
    }
    let syntax = || PortError::Syntax(text.to_owned());
    let is_grouped = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    if text.is_empty() || is_grouped || !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(syntax());
    }
    let digits = text.replace('_', "");
    let (digits, radix) = match digits.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => (octal, 8),
        _ => (digits.as_str(), 10),
    };
    if !digits.bytes().all(|byte| u32::from(byte - b'0') < radix) {
        return Err(syntax());
    }
    let port = u16::from_str_radix(digits, radix).map_err(|_| PortError::Range(text.to_owned()))?;
    Ok(Ports::Number { port, end: 0 })
}

/// Whether a text is a service name (RFC 6335): up to 15 letters, digits and single inner dashes, with a letter.
pub fn is_service_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_the_documented_prefixes() {
        for (start, end, prefixes) in [
            (0, 65535, &[(0, 0)][..]),
            (0, 0, &[(0, 0)]),
            (1, 1, &[(1, 16)]),
            (5, 3, &[(5, 16)]),
            (16, 31, &[(16, 12)]),
            (1, 2, &[(1, 16), (2, 16)]),
            (80, 90, &[(80, 13), (88, 15), (90, 16)]),
            (
                30000,
                32767,
                &[(30000, 12), (30016, 10), (30080, 9), (30208, 7), (30720, 5)],
            ),
        ] {
            assert_eq!(range_prefixes(start, end), prefixes, "{start}-{end}");
        }
        assert_eq!(range_prefixes(1, 65534).len(), 30);
    }

    #[test]
    fn ports_are_numbers_of_several_bases_and_names() {
        let number = |port| Ok(Ports::Number { port, end: 0 });
        assert_eq!(parse_port("80"), number(80));
        assert_eq!(parse_port("010"), number(8));
        assert_eq!(parse_port("1_000"), number(1000));
        assert_eq!(parse_port("0"), number(0));
        assert!(matches!(parse_port("0x50"), Ok(Ports::Name { .. })));
        assert!(matches!(parse_port("HTTP"), Ok(Ports::Name { name, .. }) if name == "http"));
        for bad in [
            "65536",
            "8 0",
            "abcdefghijklmnopq",
            "a--b",
            "",
            "-1",
            "08",
            "1__0",
        ] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn prefixes_are_the_range_and_do_not_overlap(one in 0_u16.., other in 1_u16..) {
            let (start, end) = (one.min(other), one.max(other));
            let prefixes = range_prefixes(start, end);
            let mut next = u32::from(start);
            for (port, bits) in &prefixes {
                prop_assert_eq!(u32::from(*port), next);
                next += 1 << (16 - bits);
            }
            prop_assert_eq!(next, u32::from(end) + 1);
            prop_assert!(prefixes.len() <= 30);
        }
    }
}
