// SPDX-License-Identifier: Apache-2.0

//! Decodes one layer: where its header ends, and what comes next.

use etherparse::{
    Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice, UdpHeaderSlice, ether_type,
    ip_number,
};

use super::{Encapsulation, Layer, LayerKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Sctp,
    Icmp4,
    Icmp6,
    Vrrp,
    Igmp,
    Tunnel(Encapsulation),
}

/// Layer, what comes next, and whether less was captured than its header says.
type Decoded<'a> = (Layer<'a>, Option<Next>, bool);

pub(super) fn layer(next: Next, bytes: &[u8]) -> Result<Decoded<'_>, String> {
    match next {
        Next::Ethernet => ethernet(bytes),
        Next::Ipv4 => ipv4(bytes),
        Next::Ipv6 => ipv6(bytes),
        Next::Tcp => {
            let header = TcpHeaderSlice::from_slice(bytes).map_err(|error| error.to_string())?;
            let length = header.slice().len();
            Ok((split(LayerKind::Tcp(header), bytes, length)?, None, false))
        }
        Next::Udp => udp(bytes),
        Next::Sctp => Ok((split(LayerKind::Sctp, bytes, 12)?, None, false)),
        Next::Icmp4 => Ok((split(LayerKind::Icmp4, bytes, 8)?, None, false)),
        Next::Icmp6 => Ok((split(LayerKind::Icmp6, bytes, 4)?, None, false)),
        Next::Vrrp => Ok((split(LayerKind::Vrrp, bytes, 8)?, None, false)),
        Next::Igmp => Ok((split(LayerKind::Igmp, bytes, 8)?, None, false)),
        Next::Tunnel(Encapsulation::Vxlan) => {
            Ok((split(LayerKind::Vxlan, bytes, 8)?, Some(Next::Ethernet), false))
        }
        Next::Tunnel(Encapsulation::Geneve) => geneve(bytes),
    }
}

fn split<'a>(kind: LayerKind<'a>, bytes: &'a [u8], length: usize) -> Result<Layer<'a>, String> {
    let layer = Layer {
        kind,
        contents: &[],
        payload: &[],
    };
    let Some((contents, payload)) = bytes.split_at_checked(length) else {
        let name = layer.name();
        return Err(format!(
            "{name} header of {length} bytes, {} are there",
            bytes.len()
        ));
    };
    Ok(Layer {
        contents,
        payload,
        ..layer
    })
}

fn ethernet(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let header = Ethernet2HeaderSlice::from_slice(bytes).map_err(|error| error.to_string())?;
    let next = match header.ether_type() {
        ether_type::IPV4 => Some(Next::Ipv4),
        ether_type::IPV6 => Some(Next::Ipv6),
        _ => None,
    };
    let length = header.slice().len();
    Ok((split(LayerKind::Ethernet(header), bytes, length)?, next, false))
}

fn ipv4(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|error| error.to_string())?;
    let next = match header.protocol() {
        // Only what is whole: the first fragment shows no ports either.
        _ if header.is_fragmenting_payload() => None,
        ip_number::TCP => Some(Next::Tcp),
        ip_number::UDP => Some(Next::Udp),
        ip_number::SCTP => Some(Next::Sctp),
        ip_number::ICMP => Some(Next::Icmp4),
        ip_number::IGMP => Some(Next::Igmp),
        ip_number::VRRP => Some(Next::Vrrp),
        _ => None,
    };
    let (length, total) = (header.slice().len(), usize::from(header.total_len()));
    let mut layer = split(LayerKind::Ipv4(header), bytes, length)?;
    let is_truncated = limit(&mut layer, total.saturating_sub(length));
    Ok((layer, next, is_truncated))
}

fn ipv6(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|error| error.to_string())?;
    let fixed = header.slice().len();
    let total = usize::from(header.payload_length());
    let (mut next_header, mut length) = (header.next_header(), fixed);
    if next_header == ip_number::IPV6_HEADER_HOP_BY_HOP {
        // Next header, and length in units of 8 bytes behind the first.
        let Some([next, units]) = bytes.get(fixed..fixed + 2) else {
            return Err("IPv6 hop-by-hop options are too short".to_owned());
        };
        next_header = (*next).into();
        length += (usize::from(*units) + 1) * 8;
    }
    let next = match next_header {
        ip_number::TCP => Some(Next::Tcp),
        ip_number::UDP => Some(Next::Udp),
        ip_number::SCTP => Some(Next::Sctp),
        ip_number::IPV6_ICMP => Some(Next::Icmp6),
        _ => None,
    };
    let mut layer = split(LayerKind::Ipv6(header), bytes, length)?;
    let is_truncated = limit(&mut layer, (total + fixed).saturating_sub(length));
    Ok((layer, next, is_truncated))
}

fn udp(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let header = UdpHeaderSlice::from_slice(bytes).map_err(|error| error.to_string())?;
    let (length, total) = (header.slice().len(), usize::from(header.length()));
    if total != 0 && total < length {
        return Err(format!("UDP length of {total} bytes is too small"));
    }
    let mut layer = split(LayerKind::Udp(header), bytes, length)?;
    let is_truncated = limit(&mut layer, total.saturating_sub(length));
    Ok((layer, None, is_truncated))
}

fn geneve(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let options = bytes.first().map_or(0, |first| usize::from(first & 0x3f) * 4);
    let layer = split(LayerKind::Geneve, bytes, 8 + options)?;
    let next = match layer.u16(2) {
        0x6558 => Some(Next::Ethernet),
        0x0800 => Some(Next::Ipv4),
        0x86dd => Some(Next::Ipv6),
        _ => None,
    };
    Ok((layer, next, false))
}

/// Cuts what is behind the packet. A length of zero says nothing: segmentation offload leaves it open.
fn limit(layer: &mut Layer<'_>, length: usize) -> bool {
    if length == 0 {
        return false;
    }
    let is_truncated = layer.payload.len() < length;
    layer.payload = &layer.payload[..layer.payload.len().min(length)];
    is_truncated
}
