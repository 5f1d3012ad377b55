// SPDX-License-Identifier: Apache-2.0

//! Layer 4 protocols and lookup scopes of service and backend addresses.

use std::fmt;
use std::str::FromStr;

/// Layer 4 protocol of an address. The order is that of the letters in the binary index key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum L4Proto {
    /// No protocol at all (`NONE`).
    None = 0,
    /// Every protocol (`ANY`): wildcard entries and maps of old versions.
    Any = 1,
    /// `SCTP`.
    Sctp = 2,
    /// `TCP`, also meant when a text names no protocol.
    #[default]
    Tcp = 3,
    /// `UDP`.
    Udp = 4,
}

/// A text that names no protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}, expected TCP, UDP, SCTP, ANY or NONE")]
pub struct UnknownProtocol(pub String);

impl L4Proto {
    /// Upper-case name, as in Kubernetes objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Any => "ANY",
            Self::Sctp => "SCTP",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Number in IP headers and BPF maps; 0 for [`Self::Any`] and [`Self::None`].
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Any | Self::None => 0,
        }
    }

    /// The protocol of a number found in a BPF map; numbers without a name are [`Self::None`].
    pub const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Any,
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            _ => Self::None,
        }
    }

    /// Letter in the binary index key: `T`, `U`, `S`, or `?`.
    pub const fn letter(self) -> u8 {
        match self {
            Self::Tcp => b'T',
            Self::Udp => b'U',
            Self::Sctp => b'S',
            Self::Any | Self::None => b'?',
        }
    }
}

impl fmt::Display for L4Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for L4Proto {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Tcp, Self::Udp, Self::Sctp, Self::Any, Self::None]
            .into_iter()
            .find(|proto| proto.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}

/// Which lookups an address answers: a service with different traffic policies for inside and outside has an entry
/// for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Traffic from outside the cluster, and everything when there is no internal entry.
    #[default]
    External = 0,
    /// Traffic from inside the cluster.
    Internal = 1,
}
