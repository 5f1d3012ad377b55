// SPDX-License-Identifier: Apache-2.0

//! A packet on its way through a program, sent by programs that are compiled for debugging.

use super::{CaptureHeader, DecodeError, MessageType, require, u32_at};

/// A packet on its way through a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugCapture<'a> {
    /// Whose it is, and how long it was.
    pub header: CaptureHeader,
    pub point: u8,
    /// Depends on the point: an interface, or the port of a proxy.
    pub args: [u32; 2],
    /// The packet, as far as it was captured.
    pub packet: &'a [u8],
}

impl<'a> DebugCapture<'a> {
    const NAME: &'static str = "capture";
    const LENGTH: usize = 24;

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        require(Self::NAME, bytes, Self::LENGTH)?;
        let (header, point) = CaptureHeader::read(Self::NAME, bytes)?;
        Ok(Self {
            header,
            point,
            args: [u32_at(bytes, 16), u32_at(bytes, 20)],
            packet: header.packet(bytes, Self::LENGTH),
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.write(MessageType::Capture, self.point);
        bytes.extend(self.args.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend_from_slice(self.packet);
        bytes
    }

    pub fn text(&self) -> String {
        let [arg, _] = self.args;
        match self.point {
            4 => format!("Delivery to ifindex {arg}"),
            5 => format!("Incoming packet to load balancer on ifindex {arg}"),
            6 => format!("Packet after nat46 ifindex {arg}"),
            7 => format!("Packet after nat64 ifindex {arg}"),
            8 => format!("Packet to proxy port {} (Pre)", self.proxy_port()),
            9 => format!("Packet to proxy port {} (Post)", self.proxy_port()),
            10 => format!("Packet going into snat engine on ifindex {arg}"),
            11 => format!("Packet coming from snat engine on ifindex {arg}"),
            other => format!("Unknown message type={other} arg1={arg}"),
        }
    }

    /// What a line about the packet begins with; `None` for points that have no line.
    pub fn prefix(&self, interface: &dyn Fn(u32) -> Option<String>) -> Option<String> {
        let [arg, _] = self.args;
        let name = || interface(arg).unwrap_or_else(|| arg.to_string());
        Some(match self.point {
            4 => format!("-> {}", name()),
            5 => format!("<- load-balancer {}", name()),
            6 => format!("== v4->v6 {arg}"),
            7 => format!("== v6->v4 {arg}"),
            9 => format!("-> proxy port {}", self.proxy_port()),
            _ => return None,
        })
    }

    /// Port of the proxy, which programs send in network byte order.
    fn proxy_port(&self) -> u16 {
        u16::from_be(self.args[0] as u16)
    }
}
