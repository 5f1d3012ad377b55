// SPDX-License-Identifier: Apache-2.0

//! One layer of a packet.

use etherparse::{Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice, UdpHeaderSlice};

use super::{icmp, text};

/// A layer: its header, and what is behind it.
#[derive(Debug, Clone)]
pub struct Layer<'a> {
    pub kind: LayerKind<'a>,
    pub contents: &'a [u8],
    /// What it carries, as far as it was captured.
    pub payload: &'a [u8],
}

#[derive(Debug, Clone)]
pub enum LayerKind<'a> {
    Ethernet(Ethernet2HeaderSlice<'a>),
    /// IPv4.
    Ipv4(Ipv4HeaderSlice<'a>),
    /// IPv6, with its hop-by-hop options.
    Ipv6(Ipv6HeaderSlice<'a>),
    Tcp(TcpHeaderSlice<'a>),
    Udp(UdpHeaderSlice<'a>),
    Sctp,
    /// ICMP over IPv4.
    Icmp4,
    /// ICMP over IPv6.
    Icmp6,
    /// VRRP version 2.
    Vrrp,
    /// IGMP versions 1 and 2.
    Igmp,
    Vxlan,
    Geneve,
}

impl<'a> Layer<'a> {
    pub const fn name(&self) -> &'static str {
        match self.kind {
            LayerKind::Ethernet(_) => "Ethernet",
            LayerKind::Ipv4(_) => "IPv4",
            LayerKind::Ipv6(_) => "IPv6",
            LayerKind::Tcp(_) => "TCP",
            LayerKind::Udp(_) => "UDP",
            LayerKind::Sctp => "SCTP",
            LayerKind::Icmp4 => "ICMPv4",
            LayerKind::Icmp6 => "ICMPv6",
            LayerKind::Vrrp => "VRRP",
            LayerKind::Igmp => "IGMP",
            LayerKind::Vxlan => "VXLAN",
            LayerKind::Geneve => "Geneve",
        }
    }

    /// Its name and fields in one line, as gopacket prints them.
    pub fn text(&self) -> String {
        text::layer(self)
    }

    /// What a line about the connection says of it; `None` for layers that only carry others.
    pub(super) fn connection(&self) -> Option<String> {
        Some(match &self.kind {
            LayerKind::Ethernet(_)
            | LayerKind::Ipv4(_)
            | LayerKind::Ipv6(_)
            | LayerKind::Vxlan
            | LayerKind::Geneve => {
                return None;
            }
            LayerKind::Tcp(header) => {
                let flags = [
                    (header.syn(), "SYN"),
                    (header.ack(), "ACK"),
                    (header.rst(), "RST"),
                    (header.fin(), "FIN"),
                ];
                let set: Vec<&str> = flags
                    .into_iter()
                    .filter_map(|(is_set, name)| is_set.then_some(name))
                    .collect();
                format!("tcp {}", set.join(", "))
            }
            LayerKind::Udp(_) => "udp".to_owned(),
            LayerKind::Sctp => "sctp".to_owned(),
            LayerKind::Icmp4 => format!("icmp {}", icmp::v4(self.u8(0), self.u8(1))),
            LayerKind::Icmp6 => format!("icmp {}", icmp::v6(self.u8(0), self.u8(1))),
            LayerKind::Vrrp => {
                let kind = text::vrrp_type(self.u8(0));
                format!("vrrp {kind} {} {}", self.u8(1), self.u8(2))
            }
            LayerKind::Igmp => {
                let group = std::net::Ipv4Addr::from(self.u32(4));
                format!("igmp {} {group}", text::igmp_type(self.u8(0)))
            }
        })
    }

    pub(super) fn u8(&self, offset: usize) -> u8 {
        self.contents.get(offset).copied().unwrap_or_default()
    }

    /// Two bytes of the header, which are in network order.
    pub(super) fn u16(&self, offset: usize) -> u16 {
        u16::from_be_bytes([self.u8(offset), self.u8(offset + 1)])
    }

    /// Four bytes of the header, which are in network order.
    pub(super) fn u32(&self, offset: usize) -> u32 {
        u32::from(self.u16(offset)) << 16 | u32::from(self.u16(offset + 2))
    }
}
