// SPDX-License-Identifier: Apache-2.0

//! `cilium_lb4_backends_v3`, `cilium_lb6_backends_v3`, and the Maglev maps.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{BACKEND_MAP_MAX, MAGLEV_MAP_MAX, MAGLEV_TABLE_SIZE, OWNER, U16};
use crate::{
    IpFamily, MapFamily, NestedFamily, Size, layout, register,
    text::{Text, protocol},
};
use skep_bpf_sys::MapKind;

/// Key of both backend maps: backend id, host order, never 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BackendKey {
    pub id: u32,
}
const _: () = assert!(size_of::<BackendKey>() == 4);

impl BackendKey {
    /// Key of the backend with this id.
    pub const fn new(id: u32) -> Self {
        Self { id }
    }
}

/// Value of `cilium_lb4_backends_v3`. C twin: `struct lb4_backend` in `bpf/include/lb/backend.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Backend4 {
    pub address: [u8; 4],
    pub port: U16,
    pub proto: u8,
    /// State: 0 active, 1 terminating, 2 quarantined, 3 maintenance.
    pub state: u8,
    /// Cluster the backend is in, 0 = this one; host order.
    pub cluster_id: u16,
    /// Number of the zone, 0 = unknown.
    pub zone: u8,
    pub pad: u8,
}
const _: () = assert!(size_of::<Backend4>() == 12 && offset_of!(Backend4, state) == 7);
const _: () = assert!(offset_of!(Backend4, cluster_id) == 8 && offset_of!(Backend4, zone) == 10);

/// Value of `cilium_lb6_backends_v3`; fields as in [`Backend4`].
/// C twin: `struct lb6_backend` in `bpf/include/lb/backend.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Backend6 {
    pub address: [u8; 16],
    pub port: U16,
    pub proto: u8,
    /// State: 0 active, 1 terminating, 2 quarantined, 3 maintenance.
    pub state: u8,
    /// Cluster the backend is in, 0 = this one; host order. The peer never sets it for IPv6.
    pub cluster_id: u16,
    /// Number of the zone, 0 = unknown.
    pub zone: u8,
    pub pad: u8,
}
const _: () = assert!(size_of::<Backend6>() == 24 && offset_of!(Backend6, state) == 19);
const _: () = assert!(offset_of!(Backend6, cluster_id) == 20 && offset_of!(Backend6, zone) == 22);

/// What both values can do: one text, for two layouts.
macro_rules! backend {
    ($backend:ident, $address:ident) => {
        impl $backend {
            /// An active backend of this cluster in no known zone.
            pub fn new(address: $address, port: u16, proto: u8) -> Self {
                Self {
                    address: address.octets(),
                    port: U16::new(port),
                    proto,
                    state: 0,
                    cluster_id: 0,
                    zone: 0,
                    pad: 0,
                }
            }

            /// Its address.
            pub fn addr(&self) -> IpAddr {
                $address::from(self.address).into()
            }
        }
    };
}
backend!(Backend4, Ipv4Addr);
backend!(Backend6, Ipv6Addr);

/// Key of `cilium_lb4_maglev` and `cilium_lb6_maglev`. The inner map is an array with one entry: the
/// whole lookup table, backend ids in host order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MaglevKey {
    pub rev_nat: U16,
}
const _: () = assert!(size_of::<MaglevKey>() == 2);

impl MaglevKey {
    /// Key of the service with this id (host order).
    pub fn new(rev_nat: u16) -> Self {
        Self {
            rev_nat: U16::new(rev_nat),
        }
    }
}

layout!(BackendKey);
layout!(MaglevKey);
layout!(Backend4 = "lb4_backend" { address, port, proto, state as flags, cluster_id, zone, pad });
layout!(Backend6 = "lb6_backend" { address, port, proto, state as flags, cluster_id, zone, pad });

/// `cilium_lb4_backends_v3`.
pub static BACKENDS4: MapFamily<BackendKey, Backend4> = MapFamily::new(
    "cilium_lb4_backends_v3",
    MapKind::Hash,
    Size::Key(BACKEND_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4)
.with_pressure();

/// `cilium_lb6_backends_v3`.
pub static BACKENDS6: MapFamily<BackendKey, Backend6> = MapFamily::new(
    "cilium_lb6_backends_v3",
    MapKind::Hash,
    Size::Key(BACKEND_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6)
.with_pressure();

/// `cilium_lb4_maglev`.
pub static MAGLEV4: NestedFamily<MaglevKey, u32> = NestedFamily::new(
    "cilium_lb4_maglev",
    "cilium_maglev_inner",
    Size::Key(MAGLEV_MAP_MAX),
    Size::Key(MAGLEV_TABLE_SIZE),
    OWNER,
)
.of(IpFamily::V4)
.written_by_agent();

/// `cilium_lb6_maglev`.
pub static MAGLEV6: NestedFamily<MaglevKey, u32> = NestedFamily::new(
    "cilium_lb6_maglev",
    "cilium_maglev_inner",
    Size::Key(MAGLEV_MAP_MAX),
    Size::Key(MAGLEV_TABLE_SIZE),
    OWNER,
)
.of(IpFamily::V6)
.written_by_agent();

register!(BACKENDS4, BACKENDS6, MAGLEV4, MAGLEV6);

impl Text for BackendKey {
    fn text(&self) -> String {
        self.id.to_string()
    }
}

impl Text for Backend4 {
    fn text(&self) -> String {
        format!(
            "{}{}",
            place_text(&self.addr().to_string(), self.proto, self.zone),
            state_text(self.state)
        )
    }
}

impl Text for Backend6 {
    fn text(&self) -> String {
        format!(
            "{}{}",
            place_text(&self.addr().to_string(), self.proto, self.zone),
            state_text(self.state)
        )
    }
}

impl Text for MaglevKey {
    fn text(&self) -> String {
        self.rev_nat.get().to_string()
    }
}

/// Protocol and address of a backend, and the number of a known zone.
pub fn place_text(place: &str, proto: u8, zone: u8) -> String {
    let zone = if zone == 0 {
        String::new()
    } else {
        format!("[{zone}]")
    };
    format!("{}://{place}{zone}", protocol(proto))
}

fn state_text(state: u8) -> &'static str {
    match state {
        0 => "",
        1 => " (terminating)",
        2 => " (quarantined)",
        _ => " (maintenance)",
    }
}
