// SPDX-License-Identifier: Apache-2.0

//! The address of a socket was translated. C twin: `struct socket_trace` in `bpf/include/event/socket_trace.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{DecodeError, MessageType, at, require, u16_at, u64_at};

/// The address of a socket was translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSockNotify {
    /// Where: see [`names::socket_point`](crate::names::socket_point).
    pub point: u8,
    /// 1 TCP, 2 UDP, otherwise unknown.
    pub l4_proto: u8,
    /// Bit 0: the address is IPv6.
    pub flags: u8,
    pub port: u16,
    pub cookie: u64,
    /// Id of the cgroup of the task that called.
    pub cgroup_id: u64,
    /// Address of the peer; IPv4 in the first 4 bytes.
    pub address: [u8; 16],
}

impl TraceSockNotify {
    const LENGTH: usize = 40;

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        require("trace-sock", bytes, Self::LENGTH)?;
        Ok(Self {
            point: bytes[1],
            l4_proto: bytes[2],
            flags: bytes[3],
            port: u16_at(bytes, 4),
            cookie: u64_at(bytes, 8),
            cgroup_id: u64_at(bytes, 16),
            address: at(bytes, 24),
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![
            MessageType::TraceSock as u8,
            self.point,
            self.l4_proto,
            self.flags,
        ];
        bytes.extend(self.port.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.cookie.to_ne_bytes());
        bytes.extend(self.cgroup_id.to_ne_bytes());
        bytes.extend(self.address);
        bytes
    }

    pub fn addr(&self) -> IpAddr {
        if self.flags & 1 != 0 {
            IpAddr::V6(Ipv6Addr::from(self.address))
        } else {
            IpAddr::V4(Ipv4Addr::from(at::<4>(&self.address, 0)))
        }
    }

    pub const fn protocol(&self) -> &'static str {
        match self.l4_proto {
            1 => "tcp",
            2 => "udp",
            _ => "unknown",
        }
    }
}
