// SPDX-License-Identifier: Apache-2.0

//! `cilium_nodeport_neigh4`, `cilium_nodeport_neigh6`: MAC addresses of clients of services, as their packets came.

use std::{
    mem::size_of,
    net::{Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use crate::{IpFamily, MapFamily, Size, SizeKey, conntrack::OWNER, layout, register, text::Text};

pub const NEIGHBOURS_MAX: SizeKey = SizeKey::new("bpf-neigh-global-max", 524_288);

/// `cilium_nodeport_neigh4`.
pub static NEIGHBOURS4: MapFamily<NeighbourKey4, Neighbour> = MapFamily::new(
    "cilium_nodeport_neigh4",
    MapKind::LruHash,
    Size::Key(NEIGHBOURS_MAX),
    OWNER,
)
.of(IpFamily::V4);
/// `cilium_nodeport_neigh6`.
pub static NEIGHBOURS6: MapFamily<NeighbourKey6, Neighbour> = MapFamily::new(
    "cilium_nodeport_neigh6",
    MapKind::LruHash,
    Size::Key(NEIGHBOURS_MAX),
    OWNER,
)
.of(IpFamily::V6);

register!(NEIGHBOURS4, NEIGHBOURS6);

/// Key of `cilium_nodeport_neigh4`. C twin: `struct neighbour_key4` in `bpf/include/node/neighbour.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NeighbourKey4 {
    pub address: [u8; 4],
}

/// Key of `cilium_nodeport_neigh6`. C twin: `struct neighbour_key6` in `bpf/include/node/neighbour.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NeighbourKey6 {
    pub address: [u8; 16],
}

/// Value of both maps. C twin: `struct neighbour` in `bpf/include/node/neighbour.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Neighbour {
    /// MAC address, and two bytes zero.
    pub mac: [u8; 8],
}
const _: () = assert!(size_of::<Neighbour>() == 8);

layout!(NeighbourKey4 = "neighbour_key4" { address });
layout!(NeighbourKey6 = "neighbour_key6" { address });
layout!(Neighbour = "neighbour" { mac });

impl Text for NeighbourKey4 {
    fn text(&self) -> String {
        Ipv4Addr::from(self.address).to_string()
    }
}

impl Text for NeighbourKey6 {
    fn text(&self) -> String {
        Ipv6Addr::from(self.address).to_string()
    }
}

impl Text for Neighbour {
    fn text(&self) -> String {
        crate::endpoint::mac_text(&self.mac)
    }
}
