// SPDX-License-Identifier: Apache-2.0

//! A packet passed a point. C twin: `struct trace_event` in `bpf/include/event/packet_event.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{CaptureHeader, DecodeError, MessageType, PacketFlags, at, require, u16_at, u32_at, u64_at};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceNotify<'a> {
    /// Whose it is, and how long it was.
    pub header: CaptureHeader,
    /// Where: see [`names::observation_point`](crate::names::observation_point).
    pub point: u8,
    pub source_identity: u32,
    pub destination_identity: u32,
    /// Endpoint that receives it, or the port of the proxy.
    pub destination: u16,
    /// What connection tracking says, with a bit for encrypted packets.
    pub reason: u8,
    pub flags: PacketFlags,
    pub ifindex: u32,
    /// The packet's source before it was translated; zeroes if it was not; since version 1.
    pub original_source: [u8; 16],
    /// Id in an option of the packet's IP header, 0 if there is none; since version 2.
    pub ip_trace_id: u64,
    /// The packet, as far as it was captured.
    pub packet: &'a [u8],
}

impl<'a> TraceNotify<'a> {
    const NAME: &'static str = "trace";
    const ENCRYPTED: u8 = 0x80;

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, point) = CaptureHeader::read(Self::NAME, bytes)?;
        let fixed = match header.version {
            0 => 32,
            1 => 48,
            2 => 56,
            version => {
                return Err(DecodeError::UnknownVersion {
                    name: Self::NAME,
                    version,
                });
            }
        };
        require(Self::NAME, bytes, fixed)?;
        let fields = &bytes[..fixed];
        Ok(Self {
            header,
            point,
            source_identity: u32_at(fields, 16),
            destination_identity: u32_at(fields, 20),
            destination: u16_at(fields, 24),
            reason: fields[26],
            flags: PacketFlags(fields[27]),
            ifindex: u32_at(fields, 28),
            original_source: at(fields, 32),
            ip_trace_id: u64_at(fields, 48),
            packet: header.packet(bytes, fixed),
        })
    }

    /// The event as bytes, in the layout of its version; that of version 2 if it is a later one.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.write(MessageType::Trace, self.point);
        bytes.extend(self.source_identity.to_ne_bytes());
        bytes.extend(self.destination_identity.to_ne_bytes());
        bytes.extend(self.destination.to_ne_bytes());
        bytes.extend([self.reason, self.flags.0]);
        bytes.extend(self.ifindex.to_ne_bytes());
        if self.header.version >= 1 {
            bytes.extend(self.original_source);
        }
        if self.header.version >= 2 {
            bytes.extend(self.ip_trace_id.to_ne_bytes());
        }
        bytes.extend_from_slice(self.packet);
        bytes
    }

    /// What connection tracking says: see [`names::trace_reason`](crate::names::trace_reason).
    pub const fn trace_reason(&self) -> u8 {
        self.reason & !Self::ENCRYPTED
    }

    /// The packet was or is to be encrypted.
    pub const fn is_encrypted(&self) -> bool {
        self.reason & Self::ENCRYPTED != 0
    }

    /// The packet's source before it was translated; the unspecified address if it was not.
    pub fn original_source(&self) -> IpAddr {
        if self.flags.is_ipv6() {
            IpAddr::V6(Ipv6Addr::from(self.original_source))
        } else {
            IpAddr::V4(Ipv4Addr::from(at::<4>(&self.original_source, 0)))
        }
    }
}
