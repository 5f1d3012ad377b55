// SPDX-License-Identifier: Apache-2.0

//! A policy decided. C twin: `struct verdict_event` in `bpf/include/event/packet_event.h`.

use super::{CaptureHeader, DecodeError, MessageType, require, u16_at, u32_at};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyVerdictNotify<'a> {
    /// Whose it is, and how long the packet was.
    pub header: CaptureHeader,
    pub subtype: u8,
    pub remote_identity: u32,
    /// Less than zero: the drop reason, negated. More: the port of a proxy. Zero: allowed.
    pub verdict: i32,
    pub port: u16,
    pub proto: u8,
    /// Direction, family, what matched, whether it was audited.
    pub flags: u8,
    pub auth: u8,
    /// Which rule decided, for its log; 0 if none is known.
    pub cookie: u32,
    /// The packet, as far as it was captured.
    pub packet: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    Redirect,
    /// Would be dropped, and passes since policies are only audited.
    Audit,
}

impl Action {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Redirect => "redirect",
            Self::Audit => "audit",
        }
    }
}

impl<'a> PolicyVerdictNotify<'a> {
    const NAME: &'static str = "policy-verdict";
    const LENGTH: usize = 40;

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        require(Self::NAME, bytes, Self::LENGTH)?;
        let (header, subtype) = CaptureHeader::read(Self::NAME, bytes)?;
        Ok(Self {
            header,
            subtype,
            remote_identity: u32_at(bytes, 16),
            verdict: u32_at(bytes, 20).cast_signed(),
            port: u16_at(bytes, 24),
            proto: bytes[26],
            flags: bytes[27],
            auth: bytes[28],
            cookie: u32_at(bytes, 32),
            packet: header.packet(bytes, Self::LENGTH),
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.write(MessageType::PolicyVerdict, self.subtype);
        bytes.extend(self.remote_identity.to_ne_bytes());
        bytes.extend(self.verdict.to_ne_bytes());
        bytes.extend(self.port.to_ne_bytes());
        bytes.extend([self.proto, self.flags, self.auth, 0, 0, 0]);
        bytes.extend(self.cookie.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend_from_slice(self.packet);
        bytes
    }

    pub const fn action(&self) -> Action {
        match self.verdict {
            ..0 => Action::Deny,
            1.. => Action::Redirect,
            0 if self.flags & 0x40 != 0 => Action::Audit,
            0 => Action::Allow,
        }
    }

    /// The packet enters the endpoint; otherwise it leaves it.
    pub const fn is_ingress(&self) -> bool {
        self.flags & 3 == 1
    }

    /// The packet is IPv6.
    pub const fn is_ipv6(&self) -> bool {
        self.flags & 4 != 0
    }

    /// What matched: see [`names::policy_match`](crate::names::policy_match).
    pub const fn policy_match(&self) -> u8 {
        self.flags >> 3 & 7
    }

    /// The packet begins with its IP header.
    pub const fn is_l3_device(&self) -> bool {
        self.flags & 0x80 != 0
    }
}
