// SPDX-License-Identifier: Apache-2.0

//! Packets in events, layer by layer.
//!
//! What is captured is the beginning of a packet. Layers are decoded until one is not known here or the packet is not
//! whole any more (fragments); that is no error. A layer that begins and is too short, or whose header makes no sense, is.

mod decode;
mod icmp;
mod layer;
mod names;
mod text;

pub use layer::{Layer, LayerKind};

use std::net::{IpAddr, SocketAddr};

use decode::Next;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Ethernet,
    /// Its IPv4 header.
    Ipv4,
    /// Its IPv6 header.
    Ipv6,
}

impl Start {
    /// What the packet of an event begins with, by its flags.
    pub const fn of(is_l3_device: bool, is_ipv6: bool) -> Self {
        match (is_l3_device, is_ipv6) {
            (false, _) => Self::Ethernet,
            (true, false) => Self::Ipv4,
            (true, true) => Self::Ipv6,
        }
    }
}

/// What a packet is encapsulated by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    Vxlan,
    Geneve,
}

impl Encapsulation {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Packet<'a> {
    /// The layers; of an encapsulated packet those of the inner one.
    pub layers: Vec<Layer<'a>>,
    /// The layers around it, the tunnel's own the last.
    pub tunnel: Option<(Encapsulation, Vec<Layer<'a>>)>,
    /// Less was captured than the headers say.
    pub is_truncated: bool,
    /// Why the last layer could not be decoded.
    pub error: Option<String>,
}

impl<'a> Packet<'a> {
    pub fn dissect(bytes: &'a [u8], start: Start, encapsulation: Option<Encapsulation>) -> Self {
        let first = match start {
            Start::Ethernet => Next::Ethernet,
            Start::Ipv4 => Next::Ipv4,
            Start::Ipv6 => Next::Ipv6,
        };
        let mut packet = Self {
            layers: Vec::new(),
            tunnel: None,
            is_truncated: false,
            error: None,
        };
        let mut next = Some(first);
        let mut rest = bytes;
        while let Some(what) = next
            && !rest.is_empty()
        {
            let (layer, following, is_truncated) = match decode::layer(what, rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    packet.error = Some(error);
                    break;
                }
            };
            packet.is_truncated |= is_truncated;
            rest = layer.payload;
            next = match (&layer.kind, encapsulation) {
                (LayerKind::Udp(_), Some(encapsulation)) if packet.tunnel.is_none() => {
                    Some(Next::Tunnel(encapsulation))
                }
                _ => following,
            };
            packet.layers.push(layer);
            if let Next::Tunnel(encapsulation) = what {
                packet.tunnel = Some((encapsulation, std::mem::take(&mut packet.layers)));
            }
        }
        packet
    }

    /// All layers, from the outside in.
    pub fn all_layers(&self) -> impl Iterator<Item = &Layer<'a>> {
        let outer = self.tunnel.iter().flat_map(|(_, layers)| layers);
        outer.chain(&self.layers)
    }

    /// The connection that the packet belongs to, in one line.
    pub fn connection(&self) -> String {
        let inner = match &self.error {
            Some(_) => "[error]".to_owned(),
            None => connection(&self.layers),
        };
        match &self.tunnel {
            None => inner,
            Some((encapsulation, layers)) => {
                let (source, destination) = ends(layers);
                format!(
                    "{inner} [tunnel {source} -> {destination} {}]",
                    encapsulation.name()
                )
            }
        }
    }
}

fn find<'l, 'a>(layers: &'l [Layer<'a>], wanted: impl Fn(&LayerKind<'a>) -> bool) -> Option<&'l Layer<'a>> {
    layers.iter().rev().find(|layer| wanted(&layer.kind))
}

/// Addresses of the last IP header.
pub fn addresses(layers: &[Layer<'_>]) -> Option<(IpAddr, IpAddr)> {
    layers.iter().rev().find_map(|layer| match &layer.kind {
        LayerKind::Ipv4(header) => Some((header.source_addr().into(), header.destination_addr().into())),
        LayerKind::Ipv6(header) => Some((header.source_addr().into(), header.destination_addr().into())),
        _ => None,
    })
}

/// Ports of the last transport header.
pub fn ports(layers: &[Layer<'_>]) -> Option<(u16, u16)> {
    layers.iter().rev().find_map(|layer| match &layer.kind {
        LayerKind::Tcp(header) => Some((header.source_port(), header.destination_port())),
        LayerKind::Udp(header) => Some((header.source_port(), header.destination_port())),
        LayerKind::Sctp => Some((layer.u16(0), layer.u16(2))),
        _ => None,
    })
}

/// MAC addresses, source and destination, of the last Ethernet header, and what it carries.
pub fn mac_addresses(layers: &[Layer<'_>]) -> Option<(String, String, &'static str)> {
    layers.iter().rev().find_map(|layer| match &layer.kind {
        LayerKind::Ethernet(header) => Some((
            text::mac(header.source()),
            text::mac(header.destination()),
            names::ether_type(header.ether_type().0),
        )),
        _ => None,
    })
}

/// Source and destination with ports if there are any.
fn ends(layers: &[Layer<'_>]) -> (String, String) {
    match (addresses(layers), ports(layers)) {
        (Some((source, destination)), Some((from, to))) => (
            SocketAddr::new(source, from).to_string(),
            SocketAddr::new(destination, to).to_string(),
        ),
        (Some((source, destination)), None) => (source.to_string(), destination.to_string()),
        (None, _) => (String::new(), String::new()),
    }
}

fn connection(layers: &[Layer<'_>]) -> String {
    if addresses(layers).is_none() {
        return match mac_addresses(layers) {
            Some((source, destination, kind)) => format!("{source} -> {destination} {kind}"),
            None => "[unknown]".to_owned(),
        };
    }
    let (source, destination) = ends(layers);
    let what = find(layers, |kind| {
        !matches!(
            kind,
            LayerKind::Ethernet(_) | LayerKind::Ipv4(_) | LayerKind::Ipv6(_)
        )
    });
    match what.and_then(Layer::connection) {
        Some(what) => format!("{source} -> {destination} {what}"),
        None => format!("{source} -> {destination}"),
    }
}

#[cfg(test)]
mod tests;
