// SPDX-License-Identifier: Apache-2.0

//! Layers as text, in the form in which gopacket prints them.

use std::fmt::{Display, Write};

use etherparse::{TcpHeaderSlice, TcpOptionElement};

use super::{Layer, LayerKind, icmp, names};

/// `aa:bb:cc:dd:ee:ff`.
pub(super) fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Name of a VRRP message; empty if it has none.
pub(super) const fn vrrp_type(version_and_type: u8) -> &'static str {
    match version_and_type & 0xf {
        1 => "VRRPv2 Advertisement",
        _ => "",
    }
}

/// Name of an IGMP message; empty if it has none.
pub(super) const fn igmp_type(number: u8) -> &'static str {
    match number {
        0x11 => "IGMP Membership Query",
        0x12 => "IGMPv1 Membership Report",
        0x16 => "IGMPv2 Membership Report",
        0x17 => "Leave Group",
        0x22 => "IGMPv3 Membership Report",
        _ => "",
    }
}

/// Bytes: all of them if they are few, else how many.
fn bytes(bytes: &[u8]) -> String {
    list(bytes)
}

fn list<T: Display>(elements: &[T]) -> String {
    if elements.len() > 4 {
        return format!("[..{}..]", elements.len());
    }
    let texts: Vec<String> = elements.iter().map(T::to_string).collect();
    format!("[{}]", texts.join(", "))
}

/// `Name=value` after `Name=value`.
struct Fields(String);

impl Fields {
    fn add(&mut self, name: &str, value: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = write!(self.0, " {name}={value}");
        self
    }
}

pub(super) fn layer(layer: &Layer<'_>) -> String {
    let mut fields = Fields(format!(
        "{}\t{{Contents={} Payload={}",
        layer.name(),
        bytes(layer.contents),
        bytes(layer.payload)
    ));
    let fields = &mut fields;
    match &layer.kind {
        LayerKind::Ethernet(header) => {
            let number = header.ether_type().0;
            fields
                .add("SrcMAC", mac(header.source()))
                .add("DstMAC", mac(header.destination()))
                .add("EthernetType", names::ether_type(number))
                .add("Length", if number < 0x0600 { number } else { 0 });
        }
        LayerKind::Ipv4(header) => {
            let set: Vec<&str> = [(header.dont_fragment(), "DF"), (header.more_fragments(), "MF")]
                .into_iter()
                .filter_map(|(is_set, name)| is_set.then_some(name))
                .collect();
            fields
                .add("Version", header.version())
                .add("IHL", header.ihl())
                .add("TOS", layer.u8(1))
                .add("Length", header.total_len())
                .add("Id", header.identification())
                .add("Flags", set.join("|"))
                .add("FragOffset", header.fragments_offset().value())
                .add("TTL", header.ttl())
                .add("Protocol", names::ip_protocol(header.protocol().0))
                .add("Checksum", header.header_checksum())
                .add("SrcIP", header.source_addr())
                .add("DstIP", header.destination_addr())
                .add("Options", bytes(header.options()))
                .add("Padding", "[]");
        }
        LayerKind::Ipv6(header) => {
            let options = layer.contents.get(header.slice().len()..).unwrap_or_default();
            let options = if options.is_empty() {
                "nil".to_owned()
            } else {
                bytes(options)
            };
            fields
                .add("Version", header.version())
                .add("TrafficClass", header.traffic_class())
                .add("FlowLabel", header.flow_label().value())
                .add("Length", header.payload_length())
                .add("NextHeader", names::ip_protocol(header.next_header().0))
                .add("HopLimit", header.hop_limit())
                .add("SrcIP", header.source_addr())
                .add("DstIP", header.destination_addr())
                .add("HopByHop", options);
        }
        LayerKind::Tcp(header) => tcp(fields, header),
        LayerKind::Udp(header) => {
            fields
                .add("SrcPort", names::port(header.source_port()))
                .add("DstPort", names::port(header.destination_port()))
                .add("Length", header.length())
                .add("Checksum", header.checksum());
        }
        LayerKind::Sctp => {
            fields
                .add("SrcPort", names::port(layer.u16(0)))
                .add("DstPort", names::port(layer.u16(2)))
                .add("VerificationTag", layer.u32(4))
                .add("Checksum", layer.u32(8));
        }
        LayerKind::Icmp4 => {
            fields
                .add("TypeCode", icmp::v4(layer.u8(0), layer.u8(1)))
                .add("Checksum", layer.u16(2))
                .add("Id", layer.u16(4))
                .add("Seq", layer.u16(6));
        }
        LayerKind::Icmp6 => {
            fields
                .add("TypeCode", icmp::v6(layer.u8(0), layer.u8(1)))
                .add("Checksum", layer.u16(2))
                .add("TypeBytes", "[]");
        }
        LayerKind::Vrrp => {
            fields
                .add("Version", layer.u8(0) >> 4)
                .add("Type", vrrp_type(layer.u8(0)))
                .add("VirtualRtrID", layer.u8(1))
                .add("Priority", layer.u8(2))
                .add("CountIPAddr", layer.u8(3))
                .add("AuthType", layer.u8(4))
                .add("AdverInt", layer.u8(5))
                .add("Checksum", layer.u16(6));
        }
        LayerKind::Igmp => {
            fields
                .add("Type", igmp_type(layer.u8(0)))
                .add("Checksum", layer.u16(2))
                .add("GroupAddress", std::net::Ipv4Addr::from(layer.u32(4)));
        }
        LayerKind::Vxlan => {
            let flags = layer.u16(0);
            fields
                .add("ValidIDFlag", flags & 0x0800 != 0)
                .add("VNI", layer.u32(4) >> 8)
                .add("GBPExtension", flags & 0x8000 != 0)
                .add("GBPDontLearn", flags & 0x0040 != 0)
                .add("GBPApplied", flags & 0x0008 != 0)
                .add("GBPGroupPolicyID", layer.u16(2));
        }
        LayerKind::Geneve => {
            fields
                .add("Version", layer.u8(0) >> 6)
                .add("OptionsLength", (layer.u8(0) & 0x3f) * 4)
                .add("OAMPacket", layer.u8(1) & 0x80 != 0)
                .add("CriticalOption", layer.u8(1) & 0x40 != 0)
                .add("Protocol", names::ether_type(layer.u16(2)))
                .add("VNI", layer.u32(4) >> 8)
                .add("Options", bytes(layer.contents.get(8..).unwrap_or_default()));
        }
    }
    format!("{}}}", fields.0)
}

fn tcp(fields: &mut Fields, header: &TcpHeaderSlice<'_>) {
    fields
        .add("SrcPort", names::port(header.source_port()))
        .add("DstPort", names::port(header.destination_port()))
        .add("Seq", header.sequence_number())
        .add("Ack", header.acknowledgment_number())
        .add("DataOffset", header.data_offset())
        .add("FIN", header.fin())
        .add("SYN", header.syn())
        .add("RST", header.rst())
        .add("PSH", header.psh())
        .add("ACK", header.ack())
        .add("URG", header.urg())
        .add("ECE", header.ece())
        .add("CWR", header.cwr())
        .add("NS", header.ns())
        .add("Window", header.window_size())
        .add("Checksum", header.checksum())
        .add("Urgent", header.urgent_pointer());
    let options: Vec<String> = header
        .options_iterator()
        .map_while(Result::ok)
        .map(|option| tcp_option(&option))
        .collect();
    fields
        .add("Options", list(&options))
        .add("Padding", "[]")
        .add("Multipath", false);
}

fn tcp_option(option: &TcpOptionElement) -> String {
    match option {
        TcpOptionElement::Noop => "TCPOption(NOP:)".to_owned(),
        TcpOptionElement::MaximumSegmentSize(size) => format!("TCPOption(MSS:{size} 0x{size:04x})"),
        TcpOptionElement::WindowScale(scale) => format!("TCPOption(WindowScale: 0x{scale:02x})"),
        TcpOptionElement::SelectiveAcknowledgementPermitted => "TCPOption(SACKPermitted:)".to_owned(),
        TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
            let blocks = std::iter::once(first).chain(rest.iter().flatten());
            let hex: Vec<String> = blocks.map(|(from, to)| format!("{from:08x}{to:08x}")).collect();
            format!("TCPOption(SACK: 0x{})", hex.concat())
        }
        TcpOptionElement::Timestamp(value, echo) => {
            format!("TCPOption(Timestamps:{value}/{echo} 0x{value:08x}{echo:08x})")
        }
    }
}
