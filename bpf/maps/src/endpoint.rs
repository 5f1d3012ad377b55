// SPDX-License-Identifier: Apache-2.0

//! Endpoints of this node: `cilium_lxc` by address, `skep_endpoints` by interface; `skep_devices`, interfaces of the node,
//! and `skep_vlans`, which of them carry others.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use crate::{
    MapFamily, Size, layout,
    node::{address_bytes, address_text},
    register,
    text::Text,
};

/// The owner: the cell that writes these maps.
pub const OWNER: &str = "endpoints";

pub const ENDPOINTS_MAX: u32 = 65_535;

/// `cilium_lxc`: endpoints and addresses of the node by address; written by the agent.
pub static LXC: MapFamily<LxcKey, LxcValue> =
    MapFamily::new("cilium_lxc", MapKind::Hash, Size::Fixed(ENDPOINTS_MAX), OWNER).written_by_agent();
/// `skep_endpoints`: endpoints by the index of their interface, host order; written by the agent.
pub static ENDPOINTS: MapFamily<u32, Endpoint> =
    MapFamily::new("skep_endpoints", MapKind::Hash, Size::Fixed(ENDPOINTS_MAX), OWNER).written_by_agent();
/// `skep_devices`: interfaces of the node by index, host order; written by the agent.
pub static DEVICES: MapFamily<u32, Device> =
    MapFamily::new("skep_devices", MapKind::Hash, Size::Fixed(512), OWNER).written_by_agent();

/// `skep_vlans`: VLANs that an interface of the node carries for another one, which has programs, too; written by the
/// agent. Packets of others are dropped where they are tagged.
pub static VLANS: MapFamily<VlanKey, u8> =
    MapFamily::new("skep_vlans", MapKind::Hash, Size::Fixed(4096), OWNER).written_by_agent();

register!(LXC, ENDPOINTS, DEVICES, VLANS);

/// Key of `cilium_lxc`. C twin: `struct lxc_key` in `bpf/include/endpoint/endpoint.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LxcKey {
    /// Network order; IPv4 in the first 4 bytes, the rest zero.
    pub address: [u8; 16],
    /// 1 = IPv4, 2 = IPv6.
    pub family: u8,
    pub key: u8,
    pub cluster_id: u16,
}
const _: () = assert!(size_of::<LxcKey>() == 20 && offset_of!(LxcKey, cluster_id) == 18);

impl LxcKey {
    pub fn new(address: IpAddr) -> Self {
        Self {
            address: address_bytes(address),
            family: if address.is_ipv6() { 2 } else { 1 },
            key: 0,
            cluster_id: 0,
        }
    }

    /// The address; `None` for a family that is neither.
    pub fn address(&self) -> Option<IpAddr> {
        let [a, b, c, d, ..] = self.address;
        match self.family {
            1 => Some(Ipv4Addr::new(a, b, c, d).into()),
            2 => Some(Ipv6Addr::from(self.address).into()),
            _ => None,
        }
    }
}

/// Bits of `flags` in [`LxcValue`].
pub mod lxc_flags {
    pub const HOST: u32 = 1 << 0;
    pub const AT_HOST_NS: u32 = 1 << 1;
    /// Its IPv4 packets keep their source.
    pub const SKIP_MASQUERADE4: u32 = 1 << 2;
    /// Its IPv6 packets keep their source.
    pub const SKIP_MASQUERADE6: u32 = 1 << 3;
}

/// Value of `cilium_lxc`. C twin: `struct lxc_value` in `bpf/include/endpoint/endpoint.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LxcValue {
    /// Interface on the node's side, host order.
    pub ifindex: u32,
    /// See [`events`]; 0: those of the node. Zero in Cilium's maps.
    pub events: u8,
    pub unused: u8,
    /// Id of the endpoint, host order.
    pub endpoint: u16,
    /// See [`lxc_flags`]; host order.
    pub flags: u32,
    /// Routing table, host order; 0 = none.
    pub route_table: u32,
    /// MAC address in the pod, and two bytes zero.
    pub mac: [u8; 8],
    /// MAC address of the interface on the node's side, and two bytes zero.
    pub node_mac: [u8; 8],
    pub identity: u32,
    /// Parent interface, host order; 0 = none.
    pub parent_ifindex: u32,
    pub pad: u64,
}
const _: () = assert!(size_of::<LxcValue>() == 48 && offset_of!(LxcValue, identity) == 32);

/// Bits of `flags` in [`Endpoint`].
pub mod endpoint_flags {
    /// Packets with a source that is not the endpoint's are dropped.
    pub const VERIFY_SOURCE: u8 = 1 << 0;
    /// The policy has one entry for ingress, which allows everything: it is not looked up.
    pub const OPEN_INGRESS: u8 = 1 << 1;
    /// As `OPEN_INGRESS`, for egress.
    pub const OPEN_EGRESS: u8 = 1 << 2;
    /// `cil_to_container` is attached, and decides on what leaves by the interface: who sends something there does not ask
    /// the policy.
    pub const EGRESS_PROGRAM: u8 = 1 << 3;
    /// The kernel answers ARP requests of the endpoint, not the program.
    pub const ARP_PASSTHROUGH: u8 = 1 << 4;
    /// What the policy denies passes, with an event.
    pub const AUDIT: u8 = 1 << 5;
}

/// Bits of `events` in [`Endpoint`] and [`LxcValue`]. C twin: `EVENTS_*` in `bpf/include/event/packet_event.h`.
pub mod events {
    pub const DROPS: u8 = 1 << 0;
    pub const TRACES: u8 = 1 << 1;
    pub const DEBUG: u8 = 1 << 2;
    /// The first bit of the aggregation level of traces, 0 to 4.
    pub const LEVEL_SHIFT: u8 = 3;
    /// Policy verdicts.
    pub const VERDICTS: u8 = 1 << 6;
    /// The events are those of the endpoint, not of the node.
    pub const SET: u8 = 1 << 7;

    /// Events of an endpoint, or of the node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Events {
        pub drops: bool,
        pub traces: bool,
        pub verdicts: bool,
        pub debug: bool,
        /// Aggregation of traces: 0 none, 4 maximum.
        pub level: u8,
    }

    impl Events {
        pub fn bits(self) -> u8 {
            let bit = |is_on, bit| if is_on { bit } else { 0 };
            SET | bit(self.drops, DROPS)
                | bit(self.traces, TRACES)
                | bit(self.verdicts, VERDICTS)
                | bit(self.debug, DEBUG)
                | self.level.min(4) << LEVEL_SHIFT
        }
    }
}

/// Value of `skep_endpoints`. C twin: `struct endpoint` in `bpf/include/endpoint/endpoint.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Endpoint {
    pub ipv4: [u8; 4],
    pub ipv6: [u8; 16],
    pub identity: u32,
    pub id: u16,
    /// See [`endpoint_flags`].
    pub flags: u8,
    /// Directions whose policy verdicts are events: 1 ingress, 2 egress.
    pub verdicts: u8,
    /// Routing table, host order; 0 = none.
    pub route_table: u32,
    pub mac: [u8; 6],
    /// See [`events`]; 0: those of the node.
    pub events: u8,
    pub pad: u8,
    /// Cookie of the pod's network namespace, host order; 0 = unknown.
    pub netns_cookie: u64,
}
const _: () = assert!(size_of::<Endpoint>() == 48 && offset_of!(Endpoint, netns_cookie) == 40);

/// Bits of `flags` of a device.
pub mod device_flags {
    /// Packets begin with their IP header.
    pub const L3: u8 = 1 << 0;
}

/// Value of `skep_devices`. C twin: `struct device` in `bpf/include/endpoint/endpoint.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Device {
    /// Source of packets of pods that leave here, network order; zero: none.
    pub masquerade4: [u8; 4],
    pub masquerade6: [u8; 16],
    pub mac: [u8; 6],
    /// See [`device_flags`].
    pub flags: u8,
    pub pad: u8,
}
const _: () = assert!(size_of::<Device>() == 28 && offset_of!(Device, mac) == 20);

/// Key of `skep_vlans`. C twin: `struct vlan_key` in `bpf/include/endpoint/endpoint.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VlanKey {
    /// The interface that carries it, host order.
    pub ifindex: u32,
    pub id: u16,
    pub pad: u16,
}
const _: () = assert!(size_of::<VlanKey>() == 8 && offset_of!(VlanKey, id) == 4);

layout!(LxcKey = "lxc_key" { address, family, key, cluster_id });
layout!(LxcValue = "lxc_value" {
    ifindex, events, unused, endpoint, flags, route_table, mac, node_mac, identity, parent_ifindex, pad
});
layout!(Endpoint = "endpoint" { ipv4, ipv6, identity, id, flags, verdicts, route_table, mac, events, pad, netns_cookie });
layout!(Device = "device" { masquerade4, masquerade6, mac, flags, pad });
layout!(VlanKey = "vlan_key" { ifindex, id, pad });

impl Text for LxcKey {
    fn text(&self) -> String {
        // Cilium prints a port, which is always 0.
        format!("{}:0", address_text(self.address, self.family == 2))
    }
}

impl Text for LxcValue {
    fn text(&self) -> String {
        if self.flags & lxc_flags::HOST != 0 {
            return "(localhost)".to_owned();
        }
        format!(
            "id={:<5} sec_id={:<5} flags=0x{:04X} ifindex={:<3} mac={} nodemac={} parent_ifindex={:<3} rt_info:{}",
            self.endpoint,
            self.identity,
            self.flags,
            self.ifindex,
            mac_text(&self.mac),
            mac_text(&self.node_mac),
            self.parent_ifindex,
            self.route_table,
        )
    }
}

impl Text for Endpoint {
    fn text(&self) -> String {
        format!(
            "id={} sec_id={} flags={:#04x} ipv4={} ipv6={} mac={} cookie={}",
            self.id,
            self.identity,
            self.flags,
            Ipv4Addr::from(self.ipv4),
            Ipv6Addr::from(self.ipv6),
            mac_text(&self.mac),
            self.netns_cookie,
        )
    }
}

impl Text for Device {
    fn text(&self) -> String {
        format!(
            "masquerade={},{} mac={} flags={:#04x}",
            Ipv4Addr::from(self.masquerade4),
            Ipv6Addr::from(self.masquerade6),
            mac_text(&self.mac),
            self.flags,
        )
    }
}

impl Text for VlanKey {
    fn text(&self) -> String {
        format!("ifindex={} vlan={}", self.ifindex, self.id)
    }
}

pub(crate) fn mac_text(bytes: &[u8]) -> String {
    let octets: Vec<String> = bytes.iter().take(6).map(|byte| format!("{byte:02X}")).collect();
    octets.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_shown() {
        let value = LxcValue {
            ifindex: 6,
            endpoint: 481,
            mac: [0x56, 0xcf, 0x58, 0x68, 0x5b, 0xd6, 0, 0],
            node_mac: [0x7e, 0xad, 0xed, 0x74, 0xe4, 0xfc, 0, 0],
            identity: 3211,
            ..LxcValue::default()
        };
        assert_eq!(LxcKey::new("10.1.0.165".parse().unwrap()).text(), "10.1.0.165:0");
        assert_eq!(
            value.text(),
            "id=481   sec_id=3211  flags=0x0000 ifindex=6   mac=56:CF:58:68:5B:D6 nodemac=7E:AD:ED:74:E4:FC \
             parent_ifindex=0   rt_info:0"
        );
        let node = LxcValue {
            flags: lxc_flags::HOST,
            ..LxcValue::default()
        };
        assert_eq!(node.text(), "(localhost)");
    }
}
