// SPDX-License-Identifier: Apache-2.0

//! Session affinity: `cilium_lb4_affinity`, `cilium_lb6_affinity`, `cilium_lb_affinity_match`.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AFFINITY_MAP_MAX, OWNER, U16};
use crate::{IpFamily, MapFamily, Size, layout, register, text::Text};
use skep_bpf_sys::MapKind;

/// Set in the `flags` of an affinity key whose client is a network namespace.
pub const AFFINITY_NETNS_COOKIE: u8 = 1;

/// Key of `cilium_lb4_affinity`: a client and a service.
/// C twin: `struct lb4_affinity_key` in `bpf/include/lb/affinity.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Affinity4Key {
    /// IPv4 address (network order, rest zero) or network-namespace cookie (host order).
    pub client: [u8; 8],
    pub rev_nat: U16,
    /// Bit 0 ([`AFFINITY_NETNS_COOKIE`]): the client is a cookie.
    pub flags: u8,
    pub pad: u8,
    pub pad2: [u8; 4],
}
const _: () = assert!(size_of::<Affinity4Key>() == 16 && offset_of!(Affinity4Key, rev_nat) == 8);
const _: () = assert!(offset_of!(Affinity4Key, flags) == 10);

/// Key of `cilium_lb6_affinity`; see [`Affinity4Key`].
/// C twin: `struct lb6_affinity_key` in `bpf/include/lb/affinity.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Affinity6Key {
    /// IPv6 address (network order), or network-namespace cookie (host order) in the first 8 bytes.
    pub client: [u8; 16],
    pub rev_nat: U16,
    /// Bit 0 ([`AFFINITY_NETNS_COOKIE`]): the client is a cookie.
    pub flags: u8,
    pub pad: u8,
    pub pad2: [u8; 4],
}
const _: () = assert!(size_of::<Affinity6Key>() == 24 && offset_of!(Affinity6Key, rev_nat) == 16);
const _: () = assert!(offset_of!(Affinity6Key, flags) == 18);

impl Affinity4Key {
    /// Client = all sockets of a network namespace.
    pub fn netns(cookie: u64, rev_nat: u16) -> Self {
        Self {
            client: cookie.to_ne_bytes(),
            rev_nat: U16::new(rev_nat),
            flags: AFFINITY_NETNS_COOKIE,
            pad: 0,
            pad2: [0; 4],
        }
    }

    pub fn client(address: Ipv4Addr, rev_nat: u16) -> Self {
        let mut client = [0; 8];
        client[..4].copy_from_slice(&address.octets());
        Self {
            client,
            rev_nat: U16::new(rev_nat),
            flags: 0,
            pad: 0,
            pad2: [0; 4],
        }
    }
}

impl Affinity6Key {
    /// Client = all sockets of a network namespace.
    pub fn netns(cookie: u64, rev_nat: u16) -> Self {
        let mut client = [0; 16];
        client[..8].copy_from_slice(&cookie.to_ne_bytes());
        Self {
            client,
            rev_nat: U16::new(rev_nat),
            flags: AFFINITY_NETNS_COOKIE,
            pad: 0,
            pad2: [0; 4],
        }
    }

    pub fn client(address: Ipv6Addr, rev_nat: u16) -> Self {
        Self {
            client: address.octets(),
            rev_nat: U16::new(rev_nat),
            flags: 0,
            pad: 0,
            pad2: [0; 4],
        }
    }
}

/// Value of both affinity maps. C twin: `struct lb_affinity` in `bpf/include/lb/affinity.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Affinity {
    /// When the client was last seen, host order: seconds of the monotonic clock, or jiffies / 256.
    pub last_used: u64,
    /// Backend the client sticks to, host order.
    pub backend_id: u32,
    pub pad: u32,
}
const _: () = assert!(size_of::<Affinity>() == 16 && offset_of!(Affinity, backend_id) == 8);

/// Key of `cilium_lb_affinity_match`: the backend still belongs to the affinity service. The value is
/// one byte, 0. C twin: `struct lb_affinity_match_key` in `bpf/include/lb/affinity.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AffinityMatchKey {
    pub backend_id: u32,
    pub rev_nat: U16,
    pub pad: u16,
}
const _: () = assert!(size_of::<AffinityMatchKey>() == 8 && offset_of!(AffinityMatchKey, rev_nat) == 4);

impl AffinityMatchKey {
    /// The backend belongs to the service with this id (host order).
    pub fn new(backend_id: u32, rev_nat: u16) -> Self {
        Self {
            backend_id,
            rev_nat: U16::new(rev_nat),
            pad: 0,
        }
    }
}

layout!(Affinity4Key = "lb4_affinity_key" { client, rev_nat as rev_nat_id, flags, pad, pad2 });
layout!(Affinity6Key = "lb6_affinity_key" { client, rev_nat as rev_nat_id, flags, pad, pad2 });
layout!(Affinity = "lb_affinity" { last_used, backend_id, pad });
layout!(AffinityMatchKey = "lb_affinity_match_key" { backend_id, rev_nat as rev_nat_id, pad });

/// `cilium_lb4_affinity`; written by programs.
pub static AFFINITY4: MapFamily<Affinity4Key, Affinity> = MapFamily::new(
    "cilium_lb4_affinity",
    MapKind::LruHash,
    Size::Key(AFFINITY_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4);

/// `cilium_lb6_affinity`; written by programs.
pub static AFFINITY6: MapFamily<Affinity6Key, Affinity> = MapFamily::new(
    "cilium_lb6_affinity",
    MapKind::LruHash,
    Size::Key(AFFINITY_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6);

/// `cilium_lb_affinity_match`.
pub static AFFINITY_MATCH: MapFamily<AffinityMatchKey, u8> = MapFamily::new(
    "cilium_lb_affinity_match",
    MapKind::Hash,
    Size::Key(AFFINITY_MAP_MAX),
    OWNER,
)
.written_by_agent()
.with_pressure();

register!(AFFINITY4, AFFINITY6, AFFINITY_MATCH);

impl Text for Affinity4Key {
    fn text(&self) -> String {
        let [a, b, c, d, ..] = self.client;
        let address = Ipv4Addr::new(a, b, c, d);
        client_text(self.flags, self.client, address.into(), self.rev_nat.get())
    }
}

impl Text for Affinity6Key {
    fn text(&self) -> String {
        let [a, b, c, d, e, f, g, h, ..] = self.client;
        let cookie = [a, b, c, d, e, f, g, h];
        let address = Ipv6Addr::from(self.client);
        client_text(self.flags, cookie, address.into(), self.rev_nat.get())
    }
}

impl Text for Affinity {
    fn text(&self) -> String {
        format!("{} {}", self.backend_id, self.last_used)
    }
}

impl Text for AffinityMatchKey {
    fn text(&self) -> String {
        format!("{} {}", self.backend_id, self.rev_nat.get())
    }
}

fn client_text(flags: u8, cookie: [u8; 8], address: IpAddr, id: u16) -> String {
    if flags & AFFINITY_NETNS_COOKIE == 0 {
        format!("{address} ({id})")
    } else {
        format!("netns:{} ({id})", u64::from_ne_bytes(cookie))
    }
}
