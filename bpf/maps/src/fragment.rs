// SPDX-License-Identifier: Apache-2.0

//! Ports of fragmented datagrams: `cilium_ipv4_frag_datagrams`, `cilium_ipv6_frag_datagrams`.

use std::{
    mem::{offset_of, size_of},
    net::{Ipv4Addr, Ipv6Addr},
};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    network_endian::{U16, U32},
};

use skep_bpf_sys::MapKind;

use crate::{
    IpFamily, MapFamily, Size, SizeKey,
    conntrack::OWNER,
    layout, register,
    text::{Text, protocol},
};

/// Most datagrams whose fragments are on their way.
pub const FRAGMENTS_MAX: SizeKey = SizeKey::new("bpf-fragments-map-max", 8192);

/// `cilium_ipv4_frag_datagrams`.
pub static FRAGMENTS4: MapFamily<FragmentKey4, FragmentPorts> = MapFamily::new(
    "cilium_ipv4_frag_datagrams",
    MapKind::LruHash,
    Size::Key(FRAGMENTS_MAX),
    OWNER,
)
.of(IpFamily::V4);
/// `cilium_ipv6_frag_datagrams`.
pub static FRAGMENTS6: MapFamily<FragmentKey6, FragmentPorts> = MapFamily::new(
    "cilium_ipv6_frag_datagrams",
    MapKind::LruHash,
    Size::Key(FRAGMENTS_MAX),
    OWNER,
)
.of(IpFamily::V6);

register!(FRAGMENTS4, FRAGMENTS6);

/// Key of `cilium_ipv4_frag_datagrams`. C twin: `struct fragment_key4` in `bpf/include/packet/fragment.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FragmentKey4 {
    pub daddr: [u8; 4],
    pub saddr: [u8; 4],
    pub id: U16,
    pub proto: u8,
    pub pad: u8,
}
const _: () = assert!(size_of::<FragmentKey4>() == 12 && offset_of!(FragmentKey4, id) == 8);

/// Key of `cilium_ipv6_frag_datagrams`. C twin: `struct fragment_key6` in `bpf/include/packet/fragment.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FragmentKey6 {
    pub id: U32,
    pub proto: u8,
    pub pad: [u8; 3],
    pub saddr: [u8; 16],
    pub daddr: [u8; 16],
}
const _: () = assert!(size_of::<FragmentKey6>() == 40 && offset_of!(FragmentKey6, saddr) == 8);

/// Value of both maps. C twin: `struct fragment_ports` in `bpf/include/packet/fragment.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FragmentPorts {
    pub sport: U16,
    pub dport: U16,
}
const _: () = assert!(size_of::<FragmentPorts>() == 4);

layout!(FragmentKey4 = "fragment_key4" { daddr, saddr, id, proto, pad });
layout!(FragmentKey6 = "fragment_key6" { id, proto, pad, saddr, daddr });
layout!(FragmentPorts = "fragment_ports" { sport, dport });

impl Text for FragmentKey4 {
    fn text(&self) -> String {
        let (from, to) = (Ipv4Addr::from(self.saddr), Ipv4Addr::from(self.daddr));
        format!("{} {from} -> {to} id={:#06x}", protocol(self.proto), self.id)
    }
}

impl Text for FragmentKey6 {
    fn text(&self) -> String {
        let (from, to) = (Ipv6Addr::from(self.saddr), Ipv6Addr::from(self.daddr));
        format!("{} {from} -> {to} id={:#010x}", protocol(self.proto), self.id)
    }
}

impl Text for FragmentPorts {
    fn text(&self) -> String {
        format!("{} -> {}", self.sport, self.dport)
    }
}
