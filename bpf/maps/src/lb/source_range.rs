// SPDX-License-Identifier: Apache-2.0

//! `cilium_lb4_source_range`, `cilium_lb6_source_range`: who may (or may not) use a service.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{OWNER, SOURCE_RANGE_MAP_MAX, U16};
use crate::{IpFamily, MapFamily, Size, layout, register, text::Text};
use skep_bpf_sys::MapKind;

/// Bits of a source-range key before the address; its `prefix_len` counts them.
pub const SOURCE_RANGE_STATIC_BITS: u32 = 32;

/// Key of `cilium_lb4_source_range` (LPM trie); the value is one byte, 0.
/// C twin: `struct lb4_source_range_key` in `bpf/include/lb/source_range.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SourceRange4Key {
    /// [`SOURCE_RANGE_STATIC_BITS`] plus the length of the CIDR, host order.
    pub prefix_len: u32,
    pub rev_nat: U16,
    pub pad: u16,
    /// Address of the CIDR, network order.
    pub address: [u8; 4],
}
const _: () = assert!(size_of::<SourceRange4Key>() == 12 && offset_of!(SourceRange4Key, rev_nat) == 4);
const _: () = assert!(offset_of!(SourceRange4Key, address) == 8);

/// Key of `cilium_lb6_source_range` (LPM trie); see [`SourceRange4Key`].
/// C twin: `struct lb6_source_range_key` in `bpf/include/lb/source_range.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SourceRange6Key {
    /// [`SOURCE_RANGE_STATIC_BITS`] plus the length of the CIDR, host order.
    pub prefix_len: u32,
    pub rev_nat: U16,
    pub pad: u16,
    /// Address of the CIDR, network order.
    pub address: [u8; 16],
}
const _: () = assert!(size_of::<SourceRange6Key>() == 24 && offset_of!(SourceRange6Key, rev_nat) == 4);
const _: () = assert!(offset_of!(SourceRange6Key, address) == 8);

impl SourceRange4Key {
    /// CIDR `address/bits` of the service with id `rev_nat` (host order). Bits beyond 32 count as 32.
    pub fn new(rev_nat: u16, address: Ipv4Addr, bits: u8) -> Self {
        Self {
            prefix_len: SOURCE_RANGE_STATIC_BITS + u32::from(bits.min(32)),
            rev_nat: U16::new(rev_nat),
            pad: 0,
            address: address.octets(),
        }
    }

    /// Address and length of the CIDR.
    pub fn cidr(&self) -> (IpAddr, u8) {
        let bits = self.prefix_len.saturating_sub(SOURCE_RANGE_STATIC_BITS).min(32);
        (IpAddr::V4(Ipv4Addr::from(self.address)), bits as u8)
    }
}

impl SourceRange6Key {
    /// CIDR `address/bits` of the service with id `rev_nat` (host order). Bits beyond 128 count as 128.
    pub fn new(rev_nat: u16, address: Ipv6Addr, bits: u8) -> Self {
        Self {
            prefix_len: SOURCE_RANGE_STATIC_BITS + u32::from(bits.min(128)),
            rev_nat: U16::new(rev_nat),
            pad: 0,
            address: address.octets(),
        }
    }

    /// Address and length of the CIDR.
    pub fn cidr(&self) -> (IpAddr, u8) {
        let bits = self.prefix_len.saturating_sub(SOURCE_RANGE_STATIC_BITS).min(128);
        (IpAddr::V6(Ipv6Addr::from(self.address)), bits as u8)
    }
}

layout!(SourceRange4Key = "lb4_source_range_key" { prefix_len as prefixlen, rev_nat as rev_nat_id, pad, address });
layout!(SourceRange6Key = "lb6_source_range_key" { prefix_len as prefixlen, rev_nat as rev_nat_id, pad, address });

/// `cilium_lb4_source_range`.
pub static SOURCE_RANGE4: MapFamily<SourceRange4Key, u8> = MapFamily::new(
    "cilium_lb4_source_range",
    MapKind::LpmTrie,
    Size::Key(SOURCE_RANGE_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4)
.written_by_agent();

/// `cilium_lb6_source_range`.
pub static SOURCE_RANGE6: MapFamily<SourceRange6Key, u8> = MapFamily::new(
    "cilium_lb6_source_range",
    MapKind::LpmTrie,
    Size::Key(SOURCE_RANGE_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6)
.written_by_agent();

register!(SOURCE_RANGE4, SOURCE_RANGE6);

impl Text for SourceRange4Key {
    fn text(&self) -> String {
        range_text(self.cidr(), self.rev_nat.get())
    }
}

impl Text for SourceRange6Key {
    fn text(&self) -> String {
        range_text(self.cidr(), self.rev_nat.get())
    }
}

fn range_text((network, bits): (IpAddr, u8), id: u16) -> String {
    format!("{network}/{bits} ({id})")
}
