// SPDX-License-Identifier: Apache-2.0

//! `cilium_ipcache_v2`: what an address is (this host, another node, a pod's identity).

use std::{
    mem::{offset_of, size_of},
    net::IpAddr,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::map::{MapFlags, MapKind, MapSpec};

/// Identity of this host.
pub const IDENTITY_HOST: u32 = 1;
/// Identity of other nodes.
pub const IDENTITY_REMOTE_NODE: u32 = 6;
/// Identity of other nodes that run the API server.
pub const IDENTITY_KUBE_APISERVER: u32 = 7;

/// Bits of an ipcache key before the address; its `prefix_len` counts them.
pub const IPCACHE_STATIC_BITS: u32 = 32;

/// `cilium_ipcache_v2`; written by the agent, read by programs.
pub const IPCACHE: MapSpec<IpcacheKey, IpcacheValue> = MapSpec::new(
    "cilium_ipcache_v2",
    MapKind::LpmTrie,
    512_000,
    MapFlags::NO_PREALLOC.or(MapFlags::RDONLY_PROG),
);

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
    /// Zero.
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
    /// Security identity, host order.
    pub identity: u32,
    /// Node to tunnel to, network order; IPv4 in the first 4 bytes.
    pub tunnel_endpoint: [u8; 16],
    /// Zero.
    pub pad: [u8; 2],
    /// Index of the encryption key, 0 = none.
    pub encrypt_key: u8,
    /// Bit 0 skip tunnel, 1 tunnel endpoint valid, 2 tunnel endpoint is IPv6, 3 address of a remote cluster.
    pub flags: u8,
}
const _: () = assert!(size_of::<IpcacheValue>() == 24 && offset_of!(IpcacheValue, tunnel_endpoint) == 4);
const _: () = assert!(offset_of!(IpcacheValue, encrypt_key) == 22 && offset_of!(IpcacheValue, flags) == 23);

impl IpcacheKey {
    /// Key of one address.
    pub fn host(address: IpAddr) -> Self {
        Self::prefix(address, if address.is_ipv4() { 32 } else { 128 })
    }

    /// Key of the prefix `address/bits`; bits beyond the family's count as all of them.
    pub fn prefix(address: IpAddr, bits: u8) -> Self {
        let mut bytes = [0; 16];
        let (family, most) = match address {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                (1, 32)
            }
            IpAddr::V6(address) => {
                bytes = address.octets();
                (2, 128)
            }
        };
        Self {
            prefix_len: IPCACHE_STATIC_BITS + u32::from(bits.min(most)),
            cluster_id: 0,
            pad: 0,
            family,
            address: bytes,
        }
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
}
