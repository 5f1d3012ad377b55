// SPDX-License-Identifier: Apache-2.0

//! Policies of endpoints: `skep_policies`, from the id of an endpoint to its map, which is pinned as
//! `cilium_policy_v2_<id>`, five digits; `cilium_policystats`, what their entries have let pass or not.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, network_endian::U16};

use skep_bpf_sys::{MapKind, map::cpu_values};

use crate::{
    MapFamily, Size, SizeKey,
    endpoint::ENDPOINTS_MAX,
    family::OuterFamily,
    layout, register,
    text::{Text, protocol},
};

/// The owner: the cell that writes these maps.
pub const OWNER: &str = "policy";

/// Most entries of one endpoint's policy.
pub const POLICY_MAX: SizeKey = SizeKey::new("bpf-policy-map-max", 16_384);
pub const POLICY_STATS_MAX: SizeKey = SizeKey::new("bpf-policy-stats-map-max", 65_536);

/// `cilium_policy_v2_<id>`: the policy of an endpoint.
pub static POLICY: MapFamily<PolicyKey, PolicyEntry> =
    MapFamily::new("cilium_policy_v2", MapKind::LpmTrie, Size::Key(POLICY_MAX), OWNER).with_instances();

/// `skep_policies`: id of an endpoint, host order, to its policy; written by the agent.
pub static POLICIES: OuterFamily<PolicyKey, PolicyEntry> =
    OuterFamily::new("skep_policies", Size::Fixed(ENDPOINTS_MAX), &POLICY, OWNER);

/// `cilium_policystats`, a value for each CPU.
pub static POLICY_STATS: MapFamily<PolicyStatsKey, PolicyStats> = MapFamily::new(
    "cilium_policystats",
    MapKind::LruPerCpuHash,
    Size::Key(POLICY_STATS_MAX),
    OWNER,
)
.with_value_text(total_text);

register!(POLICY, POLICIES, POLICY_STATS);

/// Name of the policy map of an endpoint.
pub fn policy_pin(endpoint: u16) -> String {
    POLICY.instance_name(endpoint)
}

/// The endpoint whose policy map has this name.
pub fn endpoint_of_pin(name: &str) -> Option<u16> {
    POLICY.instance_of(name)
}

/// Bits of a key before the protocol.
pub const POLICY_STATIC_BITS: u32 = 40;

/// Key of a policy (LPM trie). C twin: `struct policy_key` in `bpf/include/endpoint/policy.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PolicyKey {
    /// [`POLICY_STATIC_BITS`] and the bits of protocol and port that count, host order.
    pub prefix_len: u32,
    /// Identity of the other side, host order; 0 = any.
    pub identity: u32,
    /// Bit 0: egress.
    pub direction: u8,
    pub proto: u8,
    /// Destination port, network order; of ICMP the type.
    pub port: U16,
}
const _: () = assert!(size_of::<PolicyKey>() == 12 && offset_of!(PolicyKey, port) == 10);

/// Value of a policy. C twin: `struct policy_entry` in `bpf/include/endpoint/policy.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PolicyEntry {
    /// Network order; 0 = no redirection.
    pub proxy_port: U16,
    /// Bit 0 deny, bits 3–7 bits of protocol and port that count.
    pub flags: u8,
    /// Bits 0–6 type, bit 7 explicit.
    pub auth: u8,
    pub precedence: u32,
    /// Of the rule's log, host order; 0 = none.
    pub cookie: u32,
}
const _: () = assert!(size_of::<PolicyEntry>() == 12 && offset_of!(PolicyEntry, precedence) == 4);

/// Key of `cilium_policystats`. C twin: `struct policy_stats_key` in `bpf/include/endpoint/policy.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PolicyStatsKey {
    /// Id of the endpoint, host order.
    pub endpoint: u16,
    pub pad: u8,
    /// Bits of protocol and port that count.
    pub prefix_len: u8,
    /// Host order; 0 = any.
    pub identity: u32,
    /// Bit 0: egress.
    pub direction: u8,
    pub proto: u8,
    pub port: U16,
}
const _: () = assert!(size_of::<PolicyStatsKey>() == 12 && offset_of!(PolicyStatsKey, identity) == 4);

/// Value of `cilium_policystats`, one a CPU. C twin: `struct policy_stats` in `bpf/include/endpoint/policy.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PolicyStats {
    pub packets: u64,
    pub bytes: u64,
}

layout!(PolicyKey = "policy_key" { prefix_len as prefixlen, identity, direction, proto, port });
layout!(PolicyEntry = "policy_entry" { proxy_port, flags, auth, precedence, cookie });
layout!(PolicyStatsKey = "policy_stats_key" { endpoint, pad, prefix_len, identity, direction, proto, port });
layout!(PolicyStats = "policy_stats" { packets, bytes });

fn direction_text(direction: u8) -> &'static str {
    if direction & 1 == 0 { "Ingress" } else { "Egress" }
}

fn port_text(prefix_len: u32, proto: u8, port: u16) -> String {
    match prefix_len {
        0 => "ANY".to_owned(),
        1..=8 => format!("ANY/{}", protocol(proto)),
        24 => format!("{port}/{}", protocol(proto)),
        bits => {
            let last = port | (u32::from(u16::MAX) >> (bits - 8)) as u16;
            format!("{port}-{last}/{}", protocol(proto))
        }
    }
}

impl PolicyKey {
    /// Bits of protocol and port that count.
    pub fn bits(&self) -> u32 {
        self.prefix_len.saturating_sub(POLICY_STATIC_BITS).min(24)
    }

    /// `Ingress` or `Egress`.
    pub fn direction_text(&self) -> &'static str {
        direction_text(self.direction)
    }

    /// Port and protocol, or `ANY`.
    pub fn port_text(&self) -> String {
        port_text(self.bits(), self.proto, self.port.get())
    }

    /// The key of the counter of this entry of an endpoint.
    pub fn stats_key(&self, endpoint: u16) -> PolicyStatsKey {
        PolicyStatsKey {
            endpoint,
            pad: 0,
            prefix_len: self.bits() as u8,
            identity: self.identity,
            direction: self.direction,
            proto: self.proto,
            port: self.port,
        }
    }
}

impl PolicyEntry {
    /// Whether it drops what it matches.
    pub const fn is_deny(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Kind of authentication that it requires.
    pub const fn auth_type(&self) -> u8 {
        self.auth & 0x7f
    }
}

impl Text for PolicyKey {
    fn text(&self) -> String {
        let direction = self.direction_text();
        format!("{direction}: {} {}", self.identity, self.port_text())
    }
}

impl Text for PolicyEntry {
    fn text(&self) -> String {
        // As Cilium prints it: bits of protocol and port that count.
        format!("{} {}", self.proxy_port, self.flags >> 3)
    }
}

impl Text for PolicyStatsKey {
    fn text(&self) -> String {
        let port = port_text(self.prefix_len.into(), self.proto, self.port.get());
        let direction = direction_text(self.direction);
        format!("endpoint={} {direction}: {} {port}", self.endpoint, self.identity)
    }
}

impl Text for PolicyStats {
    fn text(&self) -> String {
        format!("packets={} bytes={}", self.packets, self.bytes)
    }
}

fn total_text(bytes: &[u8]) -> String {
    PolicyStats::total(cpu_values(bytes)).text()
}

impl PolicyStats {
    /// The sum of the values of all CPUs.
    pub fn total(values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(Self::default(), |sum, value| Self {
            packets: sum.packets.wrapping_add(value.packets),
            bytes: sum.bytes.wrapping_add(value.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_ports_and_ranges() {
        let key = |prefix_len, proto, port| PolicyKey {
            prefix_len,
            identity: 3211,
            direction: 0,
            proto,
            port: U16::new(port),
        };
        assert_eq!(key(40, 0, 0).text(), "Ingress: 3211 ANY");
        assert_eq!(key(48, 17, 0).text(), "Ingress: 3211 ANY/UDP");
        assert_eq!(key(64, 6, 80).text(), "Ingress: 3211 80/TCP");
        assert_eq!(key(58, 6, 9024).text(), "Ingress: 3211 9024-9087/TCP");
    }
}
