// SPDX-License-Identifier: Apache-2.0

//! What programs and agents report.
//!
//! Integers are in the byte order of the host, addresses in that of the network. Programs of an older version send
//! shorter records: fields that they do not have are zero.

mod capture;
mod debug;
mod drop;
mod policy;
mod socket;
mod trace;

pub use capture::DebugCapture;
pub use debug::DebugMsg;
pub use drop::DropNotify;
pub use policy::{Action, PolicyVerdictNotify};
pub use socket::TraceSockNotify;
pub use trace::TraceNotify;

use crate::{access_log::LogRecord, agent::AgentNotify, gob::GobError};

pub use crate::message_type::MessageType;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("empty event")]
    Empty,
    /// Of a type that this version does not know.
    #[error("unknown event type {0}")]
    UnknownType(u8),
    #[error("{name} event too short: {length} bytes, expected at least {expected}")]
    TooShort {
        name: &'static str,
        length: usize,
        expected: usize,
    },
    #[error("Unrecognized {name} event (version {version})")]
    UnknownVersion { name: &'static str, version: u8 },
    /// What the agent sent cannot be decoded.
    #[error("invalid {name} event")]
    Gob {
        name: &'static str,
        #[source]
        cause: GobError,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    Drop(DropNotify<'a>),
    Debug(DebugMsg),
    /// A packet on its way through a program.
    Capture(DebugCapture<'a>),
    Trace(TraceNotify<'a>),
    PolicyVerdict(PolicyVerdictNotify<'a>),
    /// The address of a socket was translated.
    TraceSock(TraceSockNotify),
    /// A request or response passed a proxy.
    AccessLog(Box<LogRecord>),
    Agent(AgentNotify),
}

impl<'a> Event<'a> {
    /// Decodes an event. Bytes after it are left alone: rings round records up.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if it is of an unknown type or version, or too short.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let first = *bytes.first().ok_or(DecodeError::Empty)?;
        let kind = MessageType::from_number(first).ok_or(DecodeError::UnknownType(first))?;
        let gob = |cause| DecodeError::Gob {
            name: kind.name(),
            cause,
        };
        Ok(match kind {
            MessageType::Drop => Self::Drop(DropNotify::decode(bytes)?),
            MessageType::Debug => Self::Debug(DebugMsg::decode(bytes)?),
            MessageType::Capture => Self::Capture(DebugCapture::decode(bytes)?),
            MessageType::Trace => Self::Trace(TraceNotify::decode(bytes)?),
            MessageType::PolicyVerdict => Self::PolicyVerdict(PolicyVerdictNotify::decode(bytes)?),
            MessageType::TraceSock => Self::TraceSock(TraceSockNotify::decode(bytes)?),
            MessageType::AccessLog => Self::AccessLog(Box::new(LogRecord::decode(&bytes[1..]).map_err(gob)?)),
            MessageType::Agent => Self::Agent(AgentNotify::decode(&bytes[1..]).map_err(gob)?),
        })
    }

    pub const fn message_type(&self) -> MessageType {
        match self {
            Self::Drop(_) => MessageType::Drop,
            Self::Debug(_) => MessageType::Debug,
            Self::Capture(_) => MessageType::Capture,
            Self::Trace(_) => MessageType::Trace,
            Self::PolicyVerdict(_) => MessageType::PolicyVerdict,
            Self::TraceSock(_) => MessageType::TraceSock,
            Self::AccessLog(_) => MessageType::AccessLog,
            Self::Agent(_) => MessageType::Agent,
        }
    }
}

/// What events with a packet begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureHeader {
    /// Endpoint whose program sent the event; 0 if it is none's.
    pub source: u16,
    pub hash: u32,
    pub original_length: u32,
    /// Bytes of it in the event.
    pub captured_length: u16,
    pub version: u8,
    /// Extension of the layout. None is known; zero if there is none.
    pub extension: u8,
}

impl CaptureHeader {
    const LENGTH: usize = 16;

    fn read(name: &'static str, bytes: &[u8]) -> Result<(Self, u8), DecodeError> {
        require(name, bytes, Self::LENGTH)?;
        let header = Self {
            source: u16_at(bytes, 2),
            hash: u32_at(bytes, 4),
            original_length: u32_at(bytes, 8),
            captured_length: u16_at(bytes, 12),
            version: bytes[14],
            extension: bytes[15],
        };
        Ok((header, bytes[1]))
    }

    fn write(&self, kind: MessageType, subtype: u8) -> Vec<u8> {
        let mut bytes = vec![kind as u8, subtype];
        bytes.extend(self.source.to_ne_bytes());
        bytes.extend(self.hash.to_ne_bytes());
        bytes.extend(self.original_length.to_ne_bytes());
        bytes.extend(self.captured_length.to_ne_bytes());
        bytes.extend([self.version, self.extension]);
        bytes
    }

    /// The packet behind the fixed part. Records may be longer than the packet, or cut.
    fn packet<'a>(&self, bytes: &'a [u8], fixed: usize) -> &'a [u8] {
        let rest = bytes.get(fixed..).unwrap_or_default();
        &rest[..rest.len().min(usize::from(self.captured_length))]
    }
}

/// Flags of packets in drop and trace events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketFlags(pub u8);

impl PacketFlags {
    /// The packet is IPv6.
    pub const fn is_ipv6(self) -> bool {
        self.0 & 1 != 0
    }

    /// The packet begins with its IP header.
    pub const fn is_l3_device(self) -> bool {
        self.0 & 2 != 0
    }

    /// The packet is encapsulated by VXLAN.
    pub const fn is_vxlan(self) -> bool {
        self.0 & 4 != 0
    }

    /// The packet is encapsulated by Geneve.
    pub const fn is_geneve(self) -> bool {
        self.0 & 8 != 0
    }
}

fn require(name: &'static str, bytes: &[u8], expected: usize) -> Result<(), DecodeError> {
    let length = bytes.len();
    if length < expected {
        return Err(DecodeError::TooShort {
            name,
            length,
            expected,
        });
    }
    Ok(())
}

/// `N` bytes at an offset; zeroes where there are none.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes
        .get(offset..offset + N)
        .and_then(|found| found.try_into().ok())
        .unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_ne_bytes(at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(at(bytes, offset))
}

#[cfg(test)]
mod tests;
