// SPDX-License-Identifier: Apache-2.0

//! `cilium_node_map_v2`: ids of other nodes by their addresses.

use std::{
    mem::{offset_of, size_of},
    net::IpAddr,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use super::{address_bytes, address_text};
use crate::{MapFamily, Size, SizeKey, layout, register, text::Text};

/// The owner: the cell that writes this map.
pub const NODE_IDS_OWNER: &str = "node-manager";

/// Most entries (`bpf-node-map-max`).
pub const NODE_IDS_MAX: SizeKey = SizeKey::new("bpf-node-map-max", 16384);

/// `cilium_node_map_v2`; written by the agent, read by programs.
pub static NODE_IDS: MapFamily<NodeIdKey, NodeIdValue> = MapFamily::new(
    "cilium_node_map_v2",
    MapKind::Hash,
    Size::Key(NODE_IDS_MAX),
    NODE_IDS_OWNER,
)
.written_by_agent()
.with_pressure();

register!(NODE_IDS);

/// Key of `cilium_node_map_v2`. C twin: `struct node_id_key` in `bpf/include/node/node_ids.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NodeIdKey {
    pub pad1: u16,
    pub pad2: u8,
    /// 1 = IPv4, 2 = IPv6.
    pub family: u8,
    /// Address, network order; IPv4 in the first 4 bytes, the rest zero.
    pub address: [u8; 16],
}
const _: () = assert!(size_of::<NodeIdKey>() == 20 && offset_of!(NodeIdKey, family) == 3);

/// Value of `cilium_node_map_v2`. C twin: `struct node_id_value` in `bpf/include/node/node_ids.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeIdValue {
    /// Id of the node, host order.
    pub id: u16,
    /// Index of the node's IPsec key, 0 = none.
    pub spi: u8,
    pub pad: u8,
}
const _: () = assert!(size_of::<NodeIdValue>() == 4 && offset_of!(NodeIdValue, spi) == 2);

impl NodeIdKey {
    pub fn new(address: IpAddr) -> Self {
        Self {
            pad1: 0,
            pad2: 0,
            family: if address.is_ipv4() { 1 } else { 2 },
            address: address_bytes(address),
        }
    }

    /// The address; `None` for keys that no program looks up.
    pub fn address(&self) -> Option<IpAddr> {
        matches!(self.family, 1 | 2).then(|| address_text(self.address, self.family == 2))
    }
}

impl NodeIdValue {
    /// The id of a node, and the index of its IPsec key.
    pub const fn new(id: u16, spi: u8) -> Self {
        Self { id, spi, pad: 0 }
    }
}

layout!(NodeIdKey = "node_id_key" { pad1, pad2, family, address });
layout!(NodeIdValue = "node_id_value" { id, spi, pad });

impl Text for NodeIdKey {
    fn text(&self) -> String {
        address_text(self.address, self.family != 1).to_string()
    }
}

impl Text for NodeIdValue {
    fn text(&self) -> String {
        format!("nodeid={} spi={}", self.id, self.spi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_as_addresses() {
        for address in ["192.168.5.12", "fd00::2"] {
            let address: IpAddr = address.parse().unwrap();
            let key = NodeIdKey::new(address);
            assert_eq!(key.address(), Some(address));
            assert_eq!(key.text(), address.to_string());
        }
        let key = NodeIdKey {
            family: 0,
            ..NodeIdKey::new("10.0.0.1".parse().unwrap())
        };
        assert_eq!(key.address(), None);
        assert_eq!(NodeIdValue::new(4660, 3).text(), "nodeid=4660 spi=3");
    }
}
