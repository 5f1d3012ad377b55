// SPDX-License-Identifier: Apache-2.0

//! Keys and values as people read them; each family's forms are beside its types.

use std::net::{IpAddr, SocketAddr};

use skep_bpf_sys::map::Plain;

/// How a key or a value is shown.
pub trait Text {
    fn text(&self) -> String;
}

/// Values of maps whose keys say everything.
impl Text for u8 {
    fn text(&self) -> String {
        String::new()
    }
}

impl Text for u32 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Text for u64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

/// Text of the bytes of a `T`; the bytes as numbers if they are no `T`.
pub fn text_of<T: Plain + Text>(bytes: &[u8]) -> String {
    T::read_from_bytes(bytes).map_or_else(|_| format!("{bytes:?}"), |value| value.text())
}

/// Text of a table: `[1 2 3]`.
pub fn list_text<E: Plain + Text>(bytes: &[u8]) -> String {
    let elements = bytes.chunks_exact(size_of::<E>().max(1));
    let texts: Vec<String> = elements.map(text_of::<E>).collect();
    format!("[{}]", texts.join(" "))
}

/// Name of an IP protocol number.
pub fn protocol(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        1 => "ICMP",
        58 => "ICMPv6",
        0 => "ANY",
        _ => "UNKNOWN",
    }
}

/// `address:port`, with brackets around IPv6.
pub(crate) fn socket(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}
