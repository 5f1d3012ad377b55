// SPDX-License-Identifier: Apache-2.0

//! Types of events.

/// Types of events: their first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MessageType {
    Drop = 1,
    Debug = 2,
    /// A packet on its way through a program.
    Capture = 3,
    Trace = 4,
    PolicyVerdict = 5,
    /// The address of a socket was translated.
    TraceSock = 7,
    /// A request or response passed a proxy.
    AccessLog = 129,
    Agent = 130,
}

impl MessageType {
    pub const ALL: [Self; 8] = [
        Self::Drop,
        Self::Debug,
        Self::Capture,
        Self::Trace,
        Self::PolicyVerdict,
        Self::TraceSock,
        Self::AccessLog,
        Self::Agent,
    ];

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Debug => "debug",
            Self::Capture => "capture",
            Self::Trace => "trace",
            Self::PolicyVerdict => "policy-verdict",
            Self::TraceSock => "trace-sock",
            Self::AccessLog => "l7",
            Self::Agent => "agent",
        }
    }
}
