// SPDX-License-Identifier: Apache-2.0

//! A message of a program that is compiled for debugging.

use super::{DecodeError, MessageType, require, u16_at, u32_at};
use crate::debug;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugMsg {
    pub subtype: u8,
    /// Endpoint whose program sent the event; 0 if it is none's.
    pub source: u16,
    pub hash: u32,
    pub args: [u32; 3],
}

impl DebugMsg {
    const LENGTH: usize = 20;

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        require("debug", bytes, Self::LENGTH)?;
        Ok(Self {
            subtype: bytes[1],
            source: u16_at(bytes, 2),
            hash: u32_at(bytes, 4),
            args: [u32_at(bytes, 8), u32_at(bytes, 12), u32_at(bytes, 16)],
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![MessageType::Debug as u8, self.subtype];
        bytes.extend(self.source.to_ne_bytes());
        bytes.extend(self.hash.to_ne_bytes());
        bytes.extend(self.args.into_iter().flat_map(u32::to_ne_bytes));
        bytes
    }

    /// The message as text; `interface` finds the names of interfaces.
    pub fn text(&self, interface: &dyn Fn(u32) -> Option<String>) -> String {
        debug::text(self.subtype, self.args, interface)
    }
}
