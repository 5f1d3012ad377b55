// SPDX-License-Identifier: Apache-2.0

//! Nodes: `cilium_ipcache_v2`, what an address is (this host, another node, a pod's identity), and the ids of nodes.

mod ids;
mod neighbour;

use std::{
    mem::{offset_of, size_of},
    net::IpAddr,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use crate::{MapFamily, Size, layout, register, text::Text};

pub use ids::{NODE_IDS, NODE_IDS_MAX, NODE_IDS_OWNER, NodeIdKey, NodeIdValue};
pub use neighbour::{NEIGHBOURS_MAX, NEIGHBOURS4, NEIGHBOURS6, Neighbour, NeighbourKey4, NeighbourKey6};

pub const IDENTITY_HOST: u32 = 1;
pub const IDENTITY_REMOTE_NODE: u32 = 6;
/// Identity of other nodes that run the API server.
pub const IDENTITY_KUBE_APISERVER: u32 = 7;

/// Bits of an ipcache key before the address; its `prefix_len` counts them.
pub const IPCACHE_STATIC_BITS: u32 = 32;

/// The owner: the cell that writes this map.
pub const OWNER: &str = "ipcache";

/// `cilium_ipcache_v2`; written by the agent, read by programs.
pub static IPCACHE: MapFamily<IpcacheKey, IpcacheValue> =
    MapFamily::new("cilium_ipcache_v2", MapKind::LpmTrie, Size::Fixed(512_000), OWNER)
        .written_by_agent()
        .with_pressure();

register!(IPCACHE);

/// Key of `cilium_ipcache_v2` (LPM trie). C twin: `struct ipcache_key` in `bpf/include/node/ipcache.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IpcacheKey {
    /// [`IPCACHE_STATIC_BITS`] plus the length of the prefix, host order.
    pub prefix_len: u32,
    /// Cluster of the address, 0 unless addressing is cluster-aware; host order.
    pub cluster_id: u16,
    pub pad: u8,
    /// 1 = IPv4, 2 = IPv6.
    pub family: u8,
    /// Address, network order; IPv4 in the first 4 bytes, the rest zero.
    pub address: [u8; 16],
}
const _: () = assert!(size_of::<IpcacheKey>() == 24 && offset_of!(IpcacheKey, cluster_id) == 4);
const _: () = assert!(offset_of!(IpcacheKey, family) == 7 && offset_of!(IpcacheKey, address) == 8);

/// Value of `cilium_ipcache_v2`. C twin: `struct ipcache_value` in `bpf/include/node/ipcache.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IpcacheValue {
    pub identity: u32,
    /// Node to tunnel to, network order; IPv4 in the first 4 bytes.
    pub tunnel_endpoint: [u8; 16],
    pub pad: [u8; 2],
    /// Index of the encryption key, 0 = none.
    pub encrypt_key: u8,
    /// [`ipcache_flags`].
    pub flags: u8,
}
const _: () = assert!(size_of::<IpcacheValue>() == 24 && offset_of!(IpcacheValue, tunnel_endpoint) == 4);
const _: () = assert!(offset_of!(IpcacheValue, encrypt_key) == 22 && offset_of!(IpcacheValue, flags) == 23);

/// Bits of [`IpcacheValue::flags`].
pub mod ipcache_flags {
    /// Packets to the address are not encapsulated.
    pub const SKIP_TUNNEL: u8 = 1;
    pub const HAS_TUNNEL_ENDPOINT: u8 = 1 << 1;
    /// The tunnel endpoint is an IPv6 address.
    pub const IPV6_TUNNEL_ENDPOINT: u8 = 1 << 2;
    /// The address belongs to another cluster of the mesh.
    pub const REMOTE_CLUSTER: u8 = 1 << 3;
}

impl IpcacheKey {
    pub fn host(address: IpAddr) -> Self {
        Self::prefix(address, if address.is_ipv4() { 32 } else { 128 })
    }

    /// Key of the prefix `address/bits`; bits beyond the family's count as all of them.
    pub fn prefix(address: IpAddr, bits: u8) -> Self {
        let (family, most) = if address.is_ipv4() { (1, 32) } else { (2, 128) };
        Self {
            prefix_len: IPCACHE_STATIC_BITS + u32::from(bits.min(most)),
            cluster_id: 0,
            pad: 0,
            family,
            address: address_bytes(address),
        }
    }

    /// The address and the length of its prefix; `None` for keys that no program looks up.
    pub fn address_and_bits(&self) -> Option<(IpAddr, u8)> {
        let (is_ipv6, most) = match self.family {
            1 => (false, 32),
            2 => (true, 128),
            _ => return None,
        };
        let bits = self.prefix_len.checked_sub(IPCACHE_STATIC_BITS)?;
        let bits = u8::try_from(bits).ok().filter(|bits| *bits <= most)?;
        Some((address_text(self.address, is_ipv6), bits))
    }
}

impl IpcacheValue {
    /// An address with this identity, reached without a tunnel.
    pub const fn new(identity: u32) -> Self {
        Self {
            identity,
            tunnel_endpoint: [0; 16],
            pad: [0; 2],
            encrypt_key: 0,
            flags: 0,
        }
    }

    /// The same, reached through a tunnel to this node.
    #[must_use]
    pub fn with_tunnel_endpoint(mut self, node: IpAddr) -> Self {
        self.tunnel_endpoint = address_bytes(node);
        self.flags |= ipcache_flags::HAS_TUNNEL_ENDPOINT;
        if node.is_ipv6() {
            self.flags |= ipcache_flags::IPV6_TUNNEL_ENDPOINT;
        }
        self
    }
}

layout!(IpcacheKey = "ipcache_key" { prefix_len as prefixlen, cluster_id, pad, family, address });
layout!(IpcacheValue = "ipcache_value" { identity, tunnel_endpoint, pad, encrypt_key, flags });

impl Text for IpcacheKey {
    fn text(&self) -> String {
        let bits = self.prefix_len.saturating_sub(IPCACHE_STATIC_BITS);
        format!("{}/{bits}", address_text(self.address, self.family != 1))
    }
}

impl Text for IpcacheValue {
    fn text(&self) -> String {
        let words = [
            (ipcache_flags::SKIP_TUNNEL, "skiptunnel"),
            (ipcache_flags::HAS_TUNNEL_ENDPOINT, "hastunnel"),
            (ipcache_flags::IPV6_TUNNEL_ENDPOINT, "ipv6tunnel"),
            (ipcache_flags::REMOTE_CLUSTER, "remotecluster"),
        ];
        let mut flags: Vec<&str> = words
            .into_iter()
            .filter(|(bit, _)| self.flags & bit != 0)
            .map(|(_, word)| word)
            .collect();
        if flags.is_empty() {
            flags.push("<none>");
        }
        format!(
            "identity={} encryptkey={} tunnelendpoint={} flags={}",
            self.identity,
            self.encrypt_key,
            address_text(
                self.tunnel_endpoint,
                self.flags & ipcache_flags::IPV6_TUNNEL_ENDPOINT != 0
            ),
            flags.join(",")
        )
    }
}

/// 16 bytes of which IPv4 uses the first 4.
pub(crate) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address in 16 bytes of which IPv4 uses the first 4.
pub(crate) fn address_text(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    if is_ipv6 {
        bytes.into()
    } else {
        [a, b, c, d].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_as_prefixes() {
        for (address, bits) in [("10.1.2.0", 24), ("10.1.2.3", 32), ("fd00::", 64), ("::", 0)] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(
                IpcacheKey::prefix(address, bits).address_and_bits(),
                Some((address, bits))
            );
        }
        let key = IpcacheKey::host("10.1.2.3".parse().unwrap());
        for broken in [
            IpcacheKey { family: 3, ..key },
            IpcacheKey {
                prefix_len: 31,
                ..key
            },
            IpcacheKey {
                prefix_len: 65,
                ..key
            },
        ] {
            assert_eq!(broken.address_and_bits(), None);
        }
    }

    #[test]
    fn values_say_identity_key_tunnel_and_flags() {
        let value = IpcacheValue::new(52311).with_tunnel_endpoint("192.168.5.12".parse().unwrap());
        assert_eq!(
            value.text(),
            "identity=52311 encryptkey=0 tunnelendpoint=192.168.5.12 flags=hastunnel"
        );
        let mut value = IpcacheValue::new(6).with_tunnel_endpoint("fd00::2".parse().unwrap());
        value.encrypt_key = 255;
        value.flags |= ipcache_flags::REMOTE_CLUSTER | ipcache_flags::SKIP_TUNNEL;
        assert_eq!(
            value.text(),
            "identity=6 encryptkey=255 tunnelendpoint=fd00::2 flags=skiptunnel,hastunnel,ipv6tunnel,remotecluster"
        );
    }
}
