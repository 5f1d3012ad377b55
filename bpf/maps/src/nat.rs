// SPDX-License-Identifier: Apache-2.0

//! Translated sources: `cilium_snat_v{4,6}_external`, and how many ports were taken before one was found,
//! `cilium_snat_v{4,6}_alloc_retries`.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, SocketAddr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, network_endian::U16};

use skep_bpf_sys::{
    MapKind,
    map::{Plain, cpu_values},
};

use crate::{
    IpFamily, MapFamily, Size, SizeKey,
    conntrack::OWNER,
    layout, register,
    text::{Text, protocol, socket},
};

/// Most entries; a translated flow has two.
pub const NAT_MAX: SizeKey = SizeKey::new("bpf-nat-global-max", 524_288);
/// Ports that are tried; the last index of the retries says how often none was found.
pub const NAT_ATTEMPTS: u32 = 32;

/// `cilium_snat_v4_external`.
pub static NAT4: MapFamily<NatKey4, NatEntry4> = MapFamily::new(
    "cilium_snat_v4_external",
    MapKind::LruHash,
    Size::Key(NAT_MAX),
    OWNER,
)
.of(IpFamily::V4);
/// `cilium_snat_v6_external`.
pub static NAT6: MapFamily<NatKey6, NatEntry6> = MapFamily::new(
    "cilium_snat_v6_external",
    MapKind::LruHash,
    Size::Key(NAT_MAX),
    OWNER,
)
.of(IpFamily::V6);
/// `cilium_snat_v4_alloc_retries`: index is the number of ports that were taken.
pub static NAT_RETRIES4: MapFamily<u32, u32> = MapFamily::new(
    "cilium_snat_v4_alloc_retries",
    MapKind::PerCpuArray,
    Size::Fixed(NAT_ATTEMPTS + 1),
    OWNER,
)
.of(IpFamily::V4)
.with_value_text(sum_text);
/// `cilium_snat_v6_alloc_retries`.
pub static NAT_RETRIES6: MapFamily<u32, u32> = MapFamily::new(
    "cilium_snat_v6_alloc_retries",
    MapKind::PerCpuArray,
    Size::Fixed(NAT_ATTEMPTS + 1),
    OWNER,
)
.of(IpFamily::V6)
.with_value_text(sum_text);

register!(NAT4, NAT6, NAT_RETRIES4, NAT_RETRIES6);

fn sum_text(bytes: &[u8]) -> String {
    cpu_values::<u32>(bytes).map(u64::from).sum::<u64>().to_string()
}

/// Flows that share source ports: each has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NatTuple {
    pub protocol: u8,
    pub source: IpAddr,
    /// Where they go; port 0 without ports.
    pub destination: SocketAddr,
}

/// A key of a NAT map.
pub trait NatKey: Plain {
    /// Of an entry for answers: which flows they answer, and the source port that this flow has.
    fn answers(&self) -> Option<(NatTuple, u16)>;
}

macro_rules! nat {
    ($key:ident, $entry:ident, $c_key:literal, $c_entry:literal, $bytes:literal, $pad:literal, $size:literal) => {
        /// Key of one address family: addresses and ports as in the packet. C twin in `bpf/include/nat/nat.inc.h`.
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            Hash,
            PartialOrd,
            Ord,
            IntoBytes,
            FromBytes,
            Immutable,
            KnownLayout,
        )]
        #[repr(C)]
        pub struct $key {
            /// Network order.
            pub daddr: [u8; $bytes],
            /// Network order.
            pub saddr: [u8; $bytes],
            /// Network order; of an ICMP echo reply its id.
            pub dport: U16,
            /// Network order; of an ICMP echo request its id.
            pub sport: U16,
            /// IP protocol.
            pub proto: u8,
            /// 0: packets that are translated, 1: their answers.
            pub flags: u8,
        }
        const _: () = assert!(size_of::<$key>() == 2 * $bytes + 6);
        layout!(
            $key = $c_key {
                daddr,
                saddr,
                dport,
                sport,
                proto,
                flags
            }
        );

        impl NatKey for $key {
            fn answers(&self) -> Option<(NatTuple, u16)> {
                let tuple = NatTuple {
                    protocol: self.proto,
                    source: self.daddr.into(),
                    destination: SocketAddr::new(self.saddr.into(), self.sport.get()),
                };
                (self.flags & 1 != 0).then_some((tuple, self.dport.get()))
            }
        }

        impl Text for $key {
            fn text(&self) -> String {
                let direction = if self.flags & 1 == 0 { "OUT" } else { "IN" };
                let from = socket(IpAddr::from(self.saddr), self.sport.get());
                let to = socket(IpAddr::from(self.daddr), self.dport.get());
                format!("{} {direction} {from} -> {to}", protocol(self.proto))
            }
        }

        /// Value of one address family. C twin in `bpf/include/nat/nat.inc.h`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $entry {
            /// When it was made: seconds of the monotonic clock, or jiffies / 256; host order.
            pub created: u64,
            /// 1: a flow of the node itself; host order.
            pub needs_ct: u64,
            /// Zero.
            pub reserved: [u64; 2],
            /// New source of what is translated, former source for its answers; network order.
            pub address: [u8; $bytes],
            /// Port of that, network order.
            pub port: U16,
            /// Zero.
            pub pad: [u8; $pad],
        }
        const _: () = assert!(size_of::<$entry>() == $size && offset_of!($entry, address) == 32);
        layout!(
            $entry = $c_entry {
                created,
                needs_ct,
                reserved,
                address,
                port,
                pad
            }
        );

        impl Text for $entry {
            fn text(&self) -> String {
                let to = socket(IpAddr::from(self.address), self.port.get());
                format!(
                    "XLATE {to} Created={} NeedsCT={}",
                    self.created, self.needs_ct
                )
            }
        }
    };
}

nat!(NatKey4, NatEntry4, "nat_key4", "nat_entry4", 4, 2, 40);
nat!(NatKey6, NatEntry6, "nat_key6", "nat_entry6", 16, 6, 56);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translations_are_shown() {
        let key = NatKey4 {
            daddr: [203, 0, 113, 5],
            saddr: [10, 1, 0, 165],
            dport: U16::new(443),
            sport: U16::new(48001),
            proto: 6,
            flags: 0,
        };
        assert_eq!(key.text(), "TCP OUT 10.1.0.165:48001 -> 203.0.113.5:443");
        let entry = NatEntry4 {
            created: 9,
            needs_ct: 0,
            reserved: [0; 2],
            address: [172, 30, 0, 1],
            port: U16::new(48001),
            pad: [0; 2],
        };
        assert_eq!(entry.text(), "XLATE 172.30.0.1:48001 Created=9 NeedsCT=0");
    }
}
