// SPDX-License-Identifier: Apache-2.0

//! Address families.

use std::{fmt, net::IpAddr};

use skep_base_settings::AddressFamilies;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// In the order in which addresses of both are allocated.
    pub const ALL: [Self; 2] = [Self::V6, Self::V4];

    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `ipv4` or `ipv6`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    #[must_use]
    pub fn is_enabled(self, families: &AddressFamilies) -> bool {
        match self {
            Self::V4 => families.ipv4,
            Self::V6 => families.ipv6,
        }
    }

    /// The enabled families, in the order in which their addresses are allocated.
    pub fn enabled(families: &AddressFamilies) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|family| family.is_enabled(families))
    }
}

/// `IPv4` or `IPv6`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
