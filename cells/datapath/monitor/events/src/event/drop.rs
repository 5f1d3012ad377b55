// SPDX-License-Identifier: Apache-2.0

//! A packet was dropped. C twin: `struct drop_event` in `bpf/include/event/packet_event.h`.

use super::{CaptureHeader, DecodeError, MessageType, PacketFlags, at, require, u16_at, u32_at, u64_at};
use crate::names;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropNotify<'a> {
    /// Whose it is, and how long it was.
    pub header: CaptureHeader,
    /// Why: see [`names::drop_reason`].
    pub reason: u8,
    pub source_identity: u32,
    pub destination_identity: u32,
    /// Endpoint that would have received it; 0 if that is not on this node.
    pub destination: u32,
    pub line: u16,
    /// Source file: see [`names::source_file`].
    pub file: u8,
    /// More about the reason; zero if there is nothing.
    pub extended_error: i8,
    pub ifindex: u32,
    /// What the packet is; since version 2.
    pub flags: PacketFlags,
    /// Id in an option of the packet's IP header, 0 if there is none; since version 3.
    pub ip_trace_id: u64,
    /// The packet, as far as it was captured.
    pub packet: &'a [u8],
}

impl<'a> DropNotify<'a> {
    const NAME: &'static str = "drop";

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, reason) = CaptureHeader::read(Self::NAME, bytes)?;
        let fixed = match header.version {
            0 | 1 => 36,
            2 => 40,
            3 => 48,
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
            reason,
            source_identity: u32_at(fields, 16),
            destination_identity: u32_at(fields, 20),
            destination: u32_at(fields, 24),
            line: u16_at(fields, 28),
            file: fields[30],
            extended_error: fields[31].cast_signed(),
            ifindex: u32_at(fields, 32),
            flags: PacketFlags(at::<1>(fields, 36)[0]),
            ip_trace_id: u64_at(fields, 40),
            packet: header.packet(bytes, fixed),
        })
    }

    /// The event as bytes, in the layout of its version; that of version 3 if it is a later one.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.write(MessageType::Drop, self.reason);
        for field in [self.source_identity, self.destination_identity, self.destination] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(self.line.to_ne_bytes());
        bytes.extend([self.file, self.extended_error.cast_unsigned()]);
        bytes.extend(self.ifindex.to_ne_bytes());
        if self.header.version >= 2 {
            bytes.extend([self.flags.0, 0, 0, 0]);
        }
        if self.header.version >= 3 {
            bytes.extend(self.ip_trace_id.to_ne_bytes());
        }
        bytes.extend_from_slice(self.packet);
        bytes
    }

    /// Why, as text: with the extended error if there is one.
    pub fn reason_text(&self) -> String {
        names::drop_reason(self.reason, self.extended_error)
    }
}
