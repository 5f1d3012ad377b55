// SPDX-License-Identifier: Apache-2.0

//! Connection tracking: `cilium_ct{4,6}_global` (TCP) and `cilium_ct_any{4,6}_global` (everything else).

use std::{
    fmt,
    mem::{offset_of, size_of},
    net::IpAddr,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, network_endian::U16};

use skep_bpf_sys::MapKind;

use crate::{
    IpFamily, MapFamily, Size, SizeKey, layout, register,
    text::{Text, protocol, socket},
};

/// The owner: the cell that loads the programs that write these maps.
pub const OWNER: &str = "packets";

pub const CT_TCP_MAX: SizeKey = SizeKey::new("bpf-ct-global-tcp-max", 524_288);
pub const CT_ANY_MAX: SizeKey = SizeKey::new("bpf-ct-global-any-max", 262_144);

/// `cilium_ct4_global`: TCP over IPv4.
pub static CT_TCP4: MapFamily<CtKey4, CtEntry> = MapFamily::new(
    "cilium_ct4_global",
    MapKind::LruHash,
    Size::Key(CT_TCP_MAX),
    OWNER,
)
.of(IpFamily::V4)
.with_key_text(stored_key::<CtKey4>)
.with_value_text(stored_value);
/// `cilium_ct_any4_global`: other protocols over IPv4.
pub static CT_ANY4: MapFamily<CtKey4, CtEntry> = MapFamily::new(
    "cilium_ct_any4_global",
    MapKind::LruHash,
    Size::Key(CT_ANY_MAX),
    OWNER,
)
.of(IpFamily::V4)
.with_key_text(stored_key::<CtKey4>)
.with_value_text(stored_value);
/// `cilium_ct6_global`: TCP over IPv6.
pub static CT_TCP6: MapFamily<CtKey6, CtEntry> = MapFamily::new(
    "cilium_ct6_global",
    MapKind::LruHash,
    Size::Key(CT_TCP_MAX),
    OWNER,
)
.of(IpFamily::V6)
.with_key_text(stored_key::<CtKey6>)
.with_value_text(stored_value);
/// `cilium_ct_any6_global`: other protocols over IPv6.
pub static CT_ANY6: MapFamily<CtKey6, CtEntry> = MapFamily::new(
    "cilium_ct_any6_global",
    MapKind::LruHash,
    Size::Key(CT_ANY_MAX),
    OWNER,
)
.of(IpFamily::V6)
.with_key_text(stored_key::<CtKey6>)
.with_value_text(stored_value);

register!(CT_TCP4, CT_ANY4, CT_TCP6, CT_ANY6);

/// Bits of `flags` in a key.
pub mod key_flags {
    /// Opened by the peer of an endpoint; otherwise by the endpoint, or a client of a service.
    pub const INGRESS: u8 = 1;
    /// ICMP errors about flows between the two addresses.
    pub const RELATED: u8 = 2;
    /// The backend of a flow to a service.
    pub const SERVICE: u8 = 4;
}

macro_rules! key {
    ($name:ident, $c:literal, $bytes:literal, $twin:literal) => {
        /// Key of the maps of one address family. Of the first packet of a flow the addresses are exchanged and the
        /// ports are as they are; of services it is the other way round.
        #[doc = $twin]
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
        pub struct $name {
            /// Network order.
            pub daddr: [u8; $bytes],
            /// Network order.
            pub saddr: [u8; $bytes],
            /// Network order.
            pub dport: U16,
            /// Network order; of an ICMP echo its id.
            pub sport: U16,
            /// IP protocol.
            pub proto: u8,
            /// See [`key_flags`].
            pub flags: u8,
        }
        const _: () = assert!(size_of::<$name>() == 2 * $bytes + 6);
        layout!(
            $name = $c {
                daddr,
                saddr,
                dport,
                sport,
                proto,
                flags
            }
        );

        impl Text for $name {
            fn text(&self) -> String {
                let (daddr, saddr) = (IpAddr::from(self.daddr), IpAddr::from(self.saddr));
                flow_text(
                    self.proto,
                    self.flags,
                    (saddr, self.sport.get()),
                    (daddr, self.dport.get()),
                )
            }
        }

        impl Stored for $name {
            fn stored(&self) -> String {
                let place = |address: IpAddr, port: U16| socket(address, u16::from_ne_bytes(port.to_bytes()));
                format!(
                    "{} --> {}, {}, {}",
                    place(self.saddr.into(), self.sport),
                    place(self.daddr.into(), self.dport),
                    self.proto,
                    self.flags
                )
            }
        }
    };
}

key!(
    CtKey4,
    "ct_key4",
    4,
    "C twin: `struct ct_key4` in `bpf/include/conntrack/conntrack.h`."
);
key!(
    CtKey6,
    "ct_key6",
    16,
    "C twin: `struct ct_key6` in `bpf/include/conntrack/conntrack.h`."
);

/// A flow, from the side that opened it to the other.
fn flow_text(proto: u8, flags: u8, source: (IpAddr, u16), destination: (IpAddr, u16)) -> String {
    let direction = match flags {
        flags if flags & key_flags::SERVICE != 0 => "SVC",
        flags if flags & key_flags::INGRESS != 0 => "IN",
        _ => "OUT",
    };
    let related = if flags & key_flags::RELATED != 0 {
        " related"
    } else {
        ""
    };
    // A key has either the addresses or the ports of the first packet exchanged.
    let (from, to) = if flags & key_flags::SERVICE != 0 {
        (socket(source.0, destination.1), socket(destination.0, source.1))
    } else {
        (socket(destination.0, source.1), socket(source.0, destination.1))
    };
    format!("{} {direction} {from} -> {to}{related}", protocol(proto))
}

/// A key in the form of Cilium's listings of maps: as it is stored, with ports in network byte order.
fn stored_key<K: Stored>(bytes: &[u8]) -> String {
    K::read_from_bytes(bytes)
        .map(|key| key.stored())
        .unwrap_or_default()
}

fn stored_value(bytes: &[u8]) -> String {
    // Cilium's ends a line.
    CtEntry::read_from_bytes(bytes)
        .map(|entry| entry.text() + " \n")
        .unwrap_or_default()
}

trait Stored: FromBytes {
    fn stored(&self) -> String;
}

/// Bits of `flags` in an entry.
pub mod entry_flags {
    pub const RX_CLOSING: u8 = 1 << 0;
    pub const TX_CLOSING: u8 = 1 << 1;
    /// A pod that reaches itself through a service.
    pub const LOOPBACK: u8 = 1 << 3;
    /// A packet without SYN was seen.
    pub const SEEN_NON_SYN: u8 = 1 << 4;
    pub const NODE_PORT: u8 = 1 << 5;
    pub const PROXY_REDIRECT: u8 = 1 << 6;
    /// Answers go straight to the client, from the service's address.
    pub const DSR: u8 = 1 << 7;
}

/// Value of the maps of both address families. C twin: `struct ct_entry` in `bpf/include/conntrack/conntrack.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CtEntry {
    /// Address that replies come from for the client, network order, IPv4 in the last 4 bytes; service entries have the
    /// id of the backend in the last 8 bytes, host order.
    pub nat_address: [u8; 16],
    /// Packets, if they are counted; host order.
    pub packets: u64,
    pub bytes: u64,
    /// When it ends: seconds of the monotonic clock, or jiffies / 256; host order.
    pub lifetime: u32,
    /// See [`entry_flags`].
    pub flags: u8,
    /// Bit 2: arrived by a tunnel.
    pub flags2: u8,
    pub rev_nat: U16,
    /// Port that replies come from for the client, network order; 0 if the service says.
    pub nat_port: U16,
    pub tx_flags_seen: u8,
    pub rx_flags_seen: u8,
    /// Identity of the side that opened it, host order.
    pub source_identity: u32,
    /// When a leaving packet was last reported, on the clock of `lifetime`; host order.
    pub last_tx_report: u32,
    /// When an arriving packet was last reported; host order.
    pub last_rx_report: u32,
}
const _: () = assert!(size_of::<CtEntry>() == 56 && offset_of!(CtEntry, lifetime) == 32);
const _: () = assert!(offset_of!(CtEntry, rev_nat) == 38 && offset_of!(CtEntry, source_identity) == 44);
layout!(CtEntry = "ct_entry" {
    nat_address, packets, bytes, lifetime, flags, flags2, rev_nat as rev_nat_index, nat_port, tx_flags_seen,
    rx_flags_seen, source_identity, last_tx_report, last_rx_report
});

impl CtEntry {
    pub fn backend_id(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.nat_address;
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Names of the bits of `flags`, and of `flags2` above them.
const FLAG_NAMES: [(u16, &str); 9] = [
    (entry_flags::RX_CLOSING as u16, "RxClosing"),
    (entry_flags::TX_CLOSING as u16, "TxClosing"),
    (entry_flags::LOOPBACK as u16, "LBLoopback"),
    (entry_flags::SEEN_NON_SYN as u16, "SeenNonSyn"),
    (entry_flags::NODE_PORT as u16, "NodePort"),
    (entry_flags::PROXY_REDIRECT as u16, "ProxyRedirect"),
    (entry_flags::DSR as u16, "DSRInternal"),
    (1 << 8, "FromL7LB"),
    (1 << 10, "FromTunnel"),
];

impl CtEntry {
    pub fn all_flags(&self) -> u16 {
        u16::from(self.flags) | u16::from(self.flags2) << 8
    }

    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.all_flags();
        let set = FLAG_NAMES.iter().filter(move |(bit, _)| flags & bit != 0);
        set.map(|(_, name)| *name)
    }

    /// Writes what Cilium's command prints behind the time at which an entry expires.
    pub fn write_details(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(
            out,
            " Packets={} Bytes={} RxFlagsSeen={:#04x} LastRxReport={} TxFlagsSeen={:#04x} LastTxReport={} \
             Flags={:#06x} [ ",
            self.packets,
            self.bytes,
            self.rx_flags_seen,
            self.last_rx_report,
            self.tx_flags_seen,
            self.last_tx_report,
            self.all_flags(),
        )?;
        for name in self.flag_names() {
            out.write_str(name)?;
            out.write_char(' ')?;
        }
        write!(
            out,
            "] RevNAT={} SourceSecurityID={} BackendID={} NatPort={}",
            self.rev_nat,
            self.source_identity,
            self.backend_id(),
            self.nat_port,
        )
    }
}

impl Text for CtEntry {
    fn text(&self) -> String {
        let mut text = format!("expires={}", self.lifetime);
        // Memory does not fail.
        let _ = self.write_details(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_shown_as_they_were_opened() {
        let mut key = CtKey4 {
            daddr: [10, 1, 0, 165],
            saddr: [10, 1, 0, 221],
            dport: U16::new(80),
            sport: U16::new(40001),
            proto: 6,
            flags: 0,
        };
        assert_eq!(key.text(), "TCP OUT 10.1.0.165:40001 -> 10.1.0.221:80");
        key.flags = key_flags::INGRESS | key_flags::RELATED;
        assert_eq!(key.text(), "TCP IN 10.1.0.165:40001 -> 10.1.0.221:80 related");
        // 80 and 40001 with their bytes exchanged.
        let shown = CT_ANY4.family.key.text(key.as_bytes());
        assert_eq!(shown, "10.1.0.221:16796 --> 10.1.0.165:20480, 6, 3");
        let service = CtKey6 {
            daddr: "fd00:96::101".parse::<std::net::Ipv6Addr>().unwrap().octets(),
            saddr: "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
            dport: U16::new(40001),
            sport: U16::new(80),
            proto: 17,
            flags: key_flags::SERVICE,
        };
        assert_eq!(service.text(), "UDP SVC [fd00::1]:40001 -> [fd00:96::101]:80");
    }

    #[test]
    fn entries_name_their_flags() {
        let mut bytes = [0; 56];
        bytes[8..16].copy_from_slice(&7_u64.to_ne_bytes());
        bytes[36] = entry_flags::SEEN_NON_SYN | entry_flags::NODE_PORT;
        bytes[37] = 1 << 2;
        bytes[39] = 15;
        bytes[43] = 0x12;
        let entry = CtEntry::read_from_bytes(&bytes).unwrap();
        assert_eq!(entry.backend_id(), 7);
        assert_eq!(
            entry.text(),
            "expires=0 Packets=0 Bytes=0 RxFlagsSeen=0x12 LastRxReport=0 TxFlagsSeen=0x00 LastTxReport=0 \
             Flags=0x0430 [ SeenNonSyn NodePort FromTunnel ] RevNAT=15 SourceSecurityID=0 BackendID=7 NatPort=0"
        );
    }
}
