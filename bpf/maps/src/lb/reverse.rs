// SPDX-License-Identifier: Apache-2.0

//! Ways back from a backend to its service: `cilium_lb{4,6}_reverse_nat` (by service id) and
//! `cilium_lb{4,6}_reverse_sk` (by socket); and `cilium_skip_lb{4,6}`, who reaches a service untranslated.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{OWNER, REV_NAT_MAP_MAX, SKIP_ENTRIES, SOCK_REV_MAP_MAX, U16};
use crate::{
    IpFamily, MapFamily, Size, layout, register,
    text::{Text, socket},
};
use skep_bpf_sys::MapKind;

/// Key of `cilium_lb4_reverse_nat` and `cilium_lb6_reverse_nat`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReverseNatKey {
    pub rev_nat: U16,
}
const _: () = assert!(size_of::<ReverseNatKey>() == 2);

impl ReverseNatKey {
    /// Key of the service with this id (host order).
    pub fn new(rev_nat: u16) -> Self {
        Self {
            rev_nat: U16::new(rev_nat),
        }
    }
}

/// Value of `cilium_lb4_reverse_nat`: address and port of the frontend.
/// C twin: `struct lb4_reverse_nat` in `bpf/include/lb/reverse_nat.inc.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReverseNat4 {
    /// Address, network order; 0.0.0.0 for the surrogate.
    pub address: [u8; 4],
    pub port: U16,
}
const _: () = assert!(size_of::<ReverseNat4>() == 6 && offset_of!(ReverseNat4, port) == 4);

/// Value of `cilium_lb6_reverse_nat`: address and port of the frontend.
/// C twin: `struct lb6_reverse_nat` in `bpf/include/lb/reverse_nat.inc.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReverseNat6 {
    /// Address, network order; `::` for the surrogate.
    pub address: [u8; 16],
    pub port: U16,
}
const _: () = assert!(size_of::<ReverseNat6>() == 18 && offset_of!(ReverseNat6, port) == 16);

impl ReverseNat4 {
    /// Entry of the frontend at `address:port` (host order).
    pub fn new(address: Ipv4Addr, port: u16) -> Self {
        Self {
            address: address.octets(),
            port: U16::new(port),
        }
    }

    pub fn addr(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(self.address))
    }
}

impl ReverseNat6 {
    /// Entry of the frontend at `address:port` (host order).
    pub fn new(address: Ipv6Addr, port: u16) -> Self {
        Self {
            address: address.octets(),
            port: U16::new(port),
        }
    }

    pub fn addr(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.address))
    }
}

/// Key of `cilium_lb4_reverse_sk`: a socket and the backend it talks to.
/// C twin: `struct lb4_reverse_sk_key` in `bpf/include/lb/reverse_sk.inc.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReverseSk4Key {
    pub cookie: u64,
    /// Address of the backend, network order.
    pub address: [u8; 4],
    /// Port of the backend, network order.
    pub port: U16,
    pub pad: u16,
}
const _: () = assert!(size_of::<ReverseSk4Key>() == 16 && offset_of!(ReverseSk4Key, port) == 12);

/// Value of `cilium_lb4_reverse_sk`: what the application asked for.
/// C twin: `struct lb4_reverse_sk` in `bpf/include/lb/reverse_sk.inc.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReverseSk4 {
    pub address: [u8; 4],
    pub port: U16,
    pub rev_nat: U16,
}
const _: () = assert!(size_of::<ReverseSk4>() == 8 && offset_of!(ReverseSk4, rev_nat) == 6);

/// Key of `cilium_lb6_reverse_sk`; fields as in [`ReverseSk4Key`].
/// C twin: `struct lb6_reverse_sk_key` in `bpf/include/lb/reverse_sk.inc.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReverseSk6Key {
    pub cookie: u64,
    /// Address of the backend, network order.
    pub address: [u8; 16],
    /// Port of the backend, network order.
    pub port: U16,
    pub pad: [u16; 3],
}
const _: () = assert!(size_of::<ReverseSk6Key>() == 32 && offset_of!(ReverseSk6Key, port) == 24);

/// Value of `cilium_lb6_reverse_sk`; fields as in [`ReverseSk4`].
/// C twin: `struct lb6_reverse_sk` in `bpf/include/lb/reverse_sk.inc.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReverseSk6 {
    pub address: [u8; 16],
    pub port: U16,
    pub rev_nat: U16,
}
const _: () = assert!(size_of::<ReverseSk6>() == 20 && offset_of!(ReverseSk6, rev_nat) == 18);

impl ReverseSk4Key {
    /// Key of a socket that talks to `address:port` (host order).
    pub fn new(cookie: u64, address: Ipv4Addr, port: u16) -> Self {
        Self {
            cookie,
            address: address.octets(),
            port: U16::new(port),
            pad: 0,
        }
    }
}

impl ReverseSk6Key {
    /// Key of a socket that talks to `address:port` (host order).
    pub fn new(cookie: u64, address: Ipv6Addr, port: u16) -> Self {
        Self {
            cookie,
            address: address.octets(),
            port: U16::new(port),
            pad: [0; 3],
        }
    }
}

/// Key of `cilium_skip_lb4`: this network namespace reaches this service untranslated.
/// C twin: `struct lb4_skip_key` in `bpf/include/lb/skip.inc.h`. The value is one byte, 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Skip4Key {
    /// Cookie of the network namespace, host order.
    pub netns_cookie: u64,
    /// Address of the service, network order.
    pub address: [u8; 4],
    /// Port of the service, network order.
    pub port: U16,
    pub pad: u16,
}
const _: () = assert!(size_of::<Skip4Key>() == 16 && offset_of!(Skip4Key, port) == 12);

/// Key of `cilium_skip_lb6`; see [`Skip4Key`].
/// C twin: `struct lb6_skip_key` in `bpf/include/lb/skip.inc.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Skip6Key {
    /// Cookie of the network namespace, host order.
    pub netns_cookie: u64,
    /// Address of the service, network order.
    pub address: [u8; 16],
    pub pad: u32,
    /// Port of the service, network order.
    pub port: U16,
    pub pad2: u16,
}
const _: () = assert!(size_of::<Skip6Key>() == 32 && offset_of!(Skip6Key, port) == 28);

impl Skip4Key {
    /// Sockets of the namespace with `netns_cookie` are left alone when they address `address:port`.
    pub fn new(netns_cookie: u64, address: Ipv4Addr, port: u16) -> Self {
        Self {
            netns_cookie,
            address: address.octets(),
            port: U16::new(port),
            pad: 0,
        }
    }
}

impl Skip6Key {
    /// Sockets of the namespace with `netns_cookie` are left alone when they address `address:port`.
    pub fn new(netns_cookie: u64, address: Ipv6Addr, port: u16) -> Self {
        Self {
            netns_cookie,
            address: address.octets(),
            pad: 0,
            port: U16::new(port),
            pad2: 0,
        }
    }
}

layout!(ReverseNatKey);
layout!(ReverseNat4 = "lb4_reverse_nat" { address, port });
layout!(ReverseNat6 = "lb6_reverse_nat" { address, port });
layout!(ReverseSk4Key = "lb4_reverse_sk_key" { cookie, address, port, pad });
layout!(ReverseSk6Key = "lb6_reverse_sk_key" { cookie, address, port, pad });
layout!(ReverseSk4 = "lb4_reverse_sk" { address, port, rev_nat as rev_nat_index });
layout!(ReverseSk6 = "lb6_reverse_sk" { address, port, rev_nat as rev_nat_index });
layout!(Skip4Key = "lb4_skip_key" { netns_cookie, address, port, pad });
layout!(Skip6Key = "lb6_skip_key" { netns_cookie, address, pad, port, pad2 });

/// `cilium_lb4_reverse_nat`.
pub static REVERSE_NAT4: MapFamily<ReverseNatKey, ReverseNat4> = MapFamily::new(
    "cilium_lb4_reverse_nat",
    MapKind::Hash,
    Size::Key(REV_NAT_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4)
.with_pressure();

/// `cilium_lb6_reverse_nat`.
pub static REVERSE_NAT6: MapFamily<ReverseNatKey, ReverseNat6> = MapFamily::new(
    "cilium_lb6_reverse_nat",
    MapKind::Hash,
    Size::Key(REV_NAT_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6)
.with_pressure();

/// `cilium_lb4_reverse_sk`; written by programs.
pub static REVERSE_SK4: MapFamily<ReverseSk4Key, ReverseSk4> = MapFamily::new(
    "cilium_lb4_reverse_sk",
    MapKind::LruHash,
    Size::Key(SOCK_REV_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4);

/// `cilium_lb6_reverse_sk`; written by programs.
pub static REVERSE_SK6: MapFamily<ReverseSk6Key, ReverseSk6> = MapFamily::new(
    "cilium_lb6_reverse_sk",
    MapKind::LruHash,
    Size::Key(SOCK_REV_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6);

/// `cilium_skip_lb4`.
pub static SKIP4: MapFamily<Skip4Key, u8> =
    MapFamily::new("cilium_skip_lb4", MapKind::Hash, Size::Fixed(SKIP_ENTRIES), OWNER)
        .of(IpFamily::V4)
        .written_by_agent()
        .sparse();

/// `cilium_skip_lb6`.
pub static SKIP6: MapFamily<Skip6Key, u8> =
    MapFamily::new("cilium_skip_lb6", MapKind::Hash, Size::Fixed(SKIP_ENTRIES), OWNER)
        .of(IpFamily::V6)
        .written_by_agent()
        .sparse();

register!(REVERSE_NAT4, REVERSE_NAT6, REVERSE_SK4, REVERSE_SK6, SKIP4, SKIP6);

impl Text for ReverseNatKey {
    fn text(&self) -> String {
        self.rev_nat.get().to_string()
    }
}

impl Text for ReverseNat4 {
    fn text(&self) -> String {
        socket(self.addr(), self.port.get()).to_string()
    }
}

impl Text for ReverseNat6 {
    fn text(&self) -> String {
        socket(self.addr(), self.port.get()).to_string()
    }
}

impl Text for ReverseSk4Key {
    fn text(&self) -> String {
        format!("{} -> {}", socket(self.address, self.port.get()), self.cookie)
    }
}

impl Text for ReverseSk6Key {
    fn text(&self) -> String {
        format!("{} -> {}", socket(self.address, self.port.get()), self.cookie)
    }
}

impl Text for ReverseSk4 {
    fn text(&self) -> String {
        let address = socket(self.address, self.port.get());
        format!("{address} (revnat={})", self.rev_nat.get())
    }
}

impl Text for ReverseSk6 {
    fn text(&self) -> String {
        let address = socket(self.address, self.port.get());
        format!("{address} (revnat={})", self.rev_nat.get())
    }
}

impl Text for Skip4Key {
    fn text(&self) -> String {
        skip_text(self.netns_cookie, self.address.into(), self.port.get())
    }
}

impl Text for Skip6Key {
    fn text(&self) -> String {
        skip_text(self.netns_cookie, self.address.into(), self.port.get())
    }
}

fn skip_text(cookie: u64, address: IpAddr, port: u16) -> String {
    format!("COOKIE={cookie} IP={address} PORT={port}")
}
