// SPDX-License-Identifier: Apache-2.0

//! `cilium_ipmasq_v4`, `cilium_ipmasq_v6`: networks that packets of pods reach without masquerade.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use crate::{IpFamily, MapFamily, Size, layout, register, text::Text};

/// The owner: the cell that writes these maps.
pub const OWNER: &str = "ip-masq-agent";

/// Most networks of an address family.
pub const IP_MASQ_MAX: u32 = 16_384;

/// `cilium_ipmasq_v4`; the value is one byte, 0.
pub static IP_MASQ4: MapFamily<IpMasqKey4, u8> = MapFamily::new(
    "cilium_ipmasq_v4",
    MapKind::LpmTrie,
    Size::Fixed(IP_MASQ_MAX),
    OWNER,
)
.written_by_agent()
.of(IpFamily::V4);
/// `cilium_ipmasq_v6`; the value is one byte, 0.
pub static IP_MASQ6: MapFamily<IpMasqKey6, u8> = MapFamily::new(
    "cilium_ipmasq_v6",
    MapKind::LpmTrie,
    Size::Fixed(IP_MASQ_MAX),
    OWNER,
)
.written_by_agent()
.of(IpFamily::V6);

register!(IP_MASQ4, IP_MASQ6);

/// Key of `cilium_ipmasq_v4` (LPM trie). C twin: `struct ip_masq_key4` in `bpf/include/nat/ip_masq.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IpMasqKey4 {
    /// Length of the prefix, host order.
    pub prefix_len: u32,
    /// Address of the network, network order.
    pub address: [u8; 4],
}
const _: () = assert!(size_of::<IpMasqKey4>() == 8 && offset_of!(IpMasqKey4, address) == 4);

/// Key of `cilium_ipmasq_v6` (LPM trie). C twin: `struct ip_masq_key6` in `bpf/include/nat/ip_masq.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IpMasqKey6 {
    /// Length of the prefix, host order.
    pub prefix_len: u32,
    /// Address of the network, network order.
    pub address: [u8; 16],
}
const _: () = assert!(size_of::<IpMasqKey6>() == 20 && offset_of!(IpMasqKey6, address) == 4);

impl IpMasqKey4 {
    /// Key of the network `address/bits`; bits beyond 32 count as 32.
    pub fn new(address: Ipv4Addr, bits: u8) -> Self {
        Self {
            prefix_len: bits.min(32).into(),
            address: address.octets(),
        }
    }
}

impl IpMasqKey6 {
    /// Key of the network `address/bits`; bits beyond 128 count as 128.
    pub fn new(address: Ipv6Addr, bits: u8) -> Self {
        Self {
            prefix_len: bits.min(128).into(),
            address: address.octets(),
        }
    }
}

layout!(IpMasqKey4 = "ip_masq_key4" { prefix_len as prefixlen, address });
layout!(IpMasqKey6 = "ip_masq_key6" { prefix_len as prefixlen, address });

impl Text for IpMasqKey4 {
    fn text(&self) -> String {
        format!("{}/{}", IpAddr::from(self.address), self.prefix_len)
    }
}

impl Text for IpMasqKey6 {
    fn text(&self) -> String {
        format!("{}/{}", IpAddr::from(self.address), self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_networks() {
        assert_eq!(IpMasqKey4::new([10, 0, 0, 0].into(), 8).text(), "10.0.0.0/8");
        assert_eq!(IpMasqKey4::new([10, 0, 0, 0].into(), 200).text(), "10.0.0.0/32");
        assert_eq!(IpMasqKey6::new("fd00::".parse().unwrap(), 64).text(), "fd00::/64");
    }
}
