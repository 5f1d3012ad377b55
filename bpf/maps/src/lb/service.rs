// SPDX-License-Identifier: Apache-2.0

//! `cilium_lb4_services_v2`, `cilium_lb6_services_v2`: virtual address to backends.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{OWNER, SERVICE_MAP_MAX, Scope, ServiceFlags, U16};
use crate::{
    IpFamily, MapFamily, Size, layout, register,
    text::{Text, protocol, socket},
};
use skep_bpf_sys::MapKind;

/// Key of `cilium_lb4_services_v2`. C twin: `struct lb4_service_key` in `bpf/include/lb/service.h`.
///
/// Slot 0 is the master entry; slots 1 to `count + qcount` name the backends. An entry with port 0
/// and protocol 0 marks an address as belonging to a service ("wildcard entry").
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Service4Key {
    /// Address of the frontend, network order; 0.0.0.0 for the NodePort and HostPort surrogate.
    pub address: [u8; 4],
    /// Port of the frontend, network order.
    pub port: U16,
    /// 0 = master, 1… = backend slot; host order.
    pub slot: u16,
    /// IP protocol number (6, 17, 132), 0 in the wildcard entry.
    pub proto: u8,
    /// See [`Scope`].
    pub scope: u8,
    pub pad: [u8; 2],
}
const _: () = assert!(size_of::<Service4Key>() == 12 && offset_of!(Service4Key, slot) == 6);
const _: () = assert!(offset_of!(Service4Key, port) == 4 && offset_of!(Service4Key, scope) == 9);

/// Key of `cilium_lb6_services_v2`; fields as in [`Service4Key`].
/// C twin: `struct lb6_service_key` in `bpf/include/lb/service.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Service6Key {
    /// Address of the frontend, network order; `::` for the surrogate.
    pub address: [u8; 16],
    /// Port of the frontend, network order.
    pub port: U16,
    /// 0 = master, 1… = backend slot; host order.
    pub slot: u16,
    /// IP protocol number (6, 17, 132), 0 in the wildcard entry.
    pub proto: u8,
    /// See [`Scope`].
    pub scope: u8,
    pub pad: [u8; 2],
}
const _: () = assert!(size_of::<Service6Key>() == 24 && offset_of!(Service6Key, slot) == 18);
const _: () = assert!(offset_of!(Service6Key, port) == 16 && offset_of!(Service6Key, scope) == 21);

/// What both keys can do: one text, for two layouts.
macro_rules! service_key {
    ($key:ident, $address:ident) => {
        impl $key {
            /// Key of the master entry.
            pub fn new(address: $address, port: u16, proto: u8, scope: Scope) -> Self {
                Self {
                    address: address.octets(),
                    port: U16::new(port),
                    slot: 0,
                    proto,
                    scope: scope as u8,
                    pad: [0; 2],
                }
            }

            /// Key of the wildcard entry of an address: port 0, protocol 0, external scope.
            pub fn wildcard(address: $address) -> Self {
                Self::new(address, 0, 0, Scope::External)
            }

            /// The same frontend's entry for `slot`.
            #[must_use]
            pub fn at(self, slot: u16) -> Self {
                Self { slot, ..self }
            }

            /// Address of the frontend.
            pub fn addr(&self) -> IpAddr {
                $address::from(self.address).into()
            }
        }
    };
}
service_key!(Service4Key, Ipv4Addr);
service_key!(Service6Key, Ipv6Addr);

/// Value of both service maps. C twin: `struct lb_service` in `bpf/include/lb/service.h`.
///
/// What [`target`](Self::target) means depends on the entry; use the constructors and accessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceValue {
    /// Slot ≥ 1: backend id. Slot 0: bits 0–23 affinity timeout in seconds, bits 24–31 algorithm
    /// (0 default, 1 random, 2 Maglev); or, with [`ServiceFlags::L7_LOAD_BALANCER`], the proxy port in
    /// network order in the first two bytes. Host order otherwise.
    pub target: u32,
    /// Slot 0: number of backends that may get new connections; host order.
    pub count: u16,
    pub rev_nat: U16,
    /// Bits 0–7 of [`ServiceFlags`].
    pub flags: u8,
    /// Bits 8–15 of [`ServiceFlags`].
    pub flags2: u8,
    /// Slot 0: number of slots after `count` that hold inactive backends; host order.
    pub qcount: u16,
}
const _: () = assert!(size_of::<ServiceValue>() == 12 && offset_of!(ServiceValue, count) == 4);
const _: () = assert!(offset_of!(ServiceValue, rev_nat) == 6 && offset_of!(ServiceValue, flags) == 8);
const _: () = assert!(offset_of!(ServiceValue, flags2) == 9 && offset_of!(ServiceValue, qcount) == 10);

/// Largest session-affinity timeout that fits the map: 24 bits of seconds.
pub const MAX_AFFINITY_TIMEOUT: u32 = (1 << 24) - 1;

impl ServiceValue {
    pub fn slot(backend_id: u32, rev_nat: u16, flags: ServiceFlags) -> Self {
        Self {
            target: backend_id,
            rev_nat: U16::new(rev_nat),
            ..Self::default()
        }
        .with_flags(flags)
    }

    /// Master entry: `count` backends for new connections, then `qcount` inactive ones.
    pub fn master(count: u16, qcount: u16, rev_nat: u16, flags: ServiceFlags) -> Self {
        Self {
            count,
            qcount,
            rev_nat: U16::new(rev_nat),
            ..Self::default()
        }
        .with_flags(flags)
    }

    /// Sets the affinity timeout of a master entry, or returns `None` above [`MAX_AFFINITY_TIMEOUT`].
    pub fn with_affinity_timeout(self, seconds: u32) -> Option<Self> {
        (seconds <= MAX_AFFINITY_TIMEOUT).then_some(Self {
            target: (self.target & !MAX_AFFINITY_TIMEOUT) | seconds,
            ..self
        })
    }

    /// Sets the algorithm of a master entry: 0 default, 1 random, 2 Maglev.
    #[must_use]
    pub fn with_algorithm(self, algorithm: u8) -> Self {
        Self {
            target: (self.target & MAX_AFFINITY_TIMEOUT) | u32::from(algorithm) << 24,
            ..self
        }
    }

    /// Sets the port (host order) of the L7 proxy of a master entry.
    #[must_use]
    pub fn with_l7_port(self, port: u16) -> Self {
        let port = port.to_be_bytes();
        Self {
            target: u32::from_ne_bytes([port[0], port[1], 0, 0]),
            ..self
        }
    }

    #[must_use]
    pub fn with_flags(self, flags: ServiceFlags) -> Self {
        let [flags, flags2] = flags.bits().to_le_bytes();
        Self {
            flags,
            flags2,
            ..self
        }
    }

    pub fn service_flags(&self) -> ServiceFlags {
        ServiceFlags::from_bits_retain(u16::from_le_bytes([self.flags, self.flags2]))
    }

    /// Backend id of a slot entry.
    pub fn backend_id(&self) -> u32 {
        self.target
    }

    /// Affinity timeout of a master entry, in seconds.
    pub fn affinity_timeout(&self) -> u32 {
        self.target & MAX_AFFINITY_TIMEOUT
    }

    /// Algorithm of a master entry: 0 default, 1 random, 2 Maglev.
    pub fn algorithm(&self) -> u8 {
        (self.target >> 24) as u8
    }

    /// Port of the L7 proxy (host order) of a master entry.
    pub fn l7_port(&self) -> u16 {
        let bytes = self.target.to_ne_bytes();
        u16::from_be_bytes([bytes[0], bytes[1]])
    }
}

layout!(Service4Key = "lb4_service_key" { address, port as dport, slot as backend_slot, proto, scope, pad });
layout!(Service6Key = "lb6_service_key" { address, port as dport, slot as backend_slot, proto, scope, pad });
layout!(ServiceValue = "lb_service" { target as backend_id, count, rev_nat as rev_nat_index, flags, flags2, qcount });

/// `cilium_lb4_services_v2`.
pub static SERVICES4: MapFamily<Service4Key, ServiceValue> = MapFamily::new(
    "cilium_lb4_services_v2",
    MapKind::Hash,
    Size::Key(SERVICE_MAP_MAX),
    OWNER,
)
.of(IpFamily::V4)
.written_by_agent()
.with_pressure();

/// `cilium_lb6_services_v2`.
pub static SERVICES6: MapFamily<Service6Key, ServiceValue> = MapFamily::new(
    "cilium_lb6_services_v2",
    MapKind::Hash,
    Size::Key(SERVICE_MAP_MAX),
    OWNER,
)
.of(IpFamily::V6)
.written_by_agent()
.with_pressure();

register!(SERVICES4, SERVICES6);

impl Text for Service4Key {
    fn text(&self) -> String {
        frontend_text(self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

impl Text for Service6Key {
    fn text(&self) -> String {
        frontend_text(self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

impl Text for ServiceValue {
    fn text(&self) -> String {
        format!(
            "{} {}[{}] ({}) [{:#x} {:#x}]",
            self.target,
            self.count,
            self.qcount,
            self.rev_nat.get(),
            self.flags,
            self.flags2
        )
    }
}

fn frontend_text(address: IpAddr, port: u16, proto: u8, scope: u8, slot: u16) -> String {
    let scope = if scope == Scope::Internal as u8 { "/i" } else { "" };
    format!("{}/{}{scope} ({slot})", socket(address, port), protocol(proto))
}
