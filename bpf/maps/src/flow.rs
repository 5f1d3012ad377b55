// SPDX-License-Identifier: Apache-2.0

//! The flow table: `skep_flows4`, `skep_flows6`, results of the packet programs for packets of known flows; `skep_epoch`,
//! which invalidates them; `skep_flow_stats`, hits and misses.

use std::{
    mem::{offset_of, size_of},
    net::IpAddr,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, network_endian::U16};

use skep_bpf_sys::{MapKind, map::cpu_values, store::EPOCH};

use crate::{
    IpFamily, MapFamily, Size, SizeKey,
    event::MetricsKey,
    layout,
    policy::PolicyStatsKey,
    register,
    text::{Text, protocol, socket},
};

/// The owner: the cell that loads the programs.
pub const OWNER: &str = crate::conntrack::OWNER;

/// Most flows of an address family.
pub const FLOWS_MAX: SizeKey = SizeKey::new("bpf-flow-table-max", 1);

/// `skep_flows4`.
pub static FLOWS4: MapFamily<FlowKey4, Flow4> =
    MapFamily::new("skep_flows4", MapKind::LruHash, Size::Key(FLOWS_MAX), OWNER).of(IpFamily::V4);
/// `skep_flows6`.
pub static FLOWS6: MapFamily<FlowKey6, Flow6> =
    MapFamily::new("skep_flows6", MapKind::LruHash, Size::Key(FLOWS_MAX), OWNER).of(IpFamily::V6);
/// `skep_epoch`: flows of other epochs are invalid. The store of maps raises it by each write.
pub static FLOW_EPOCH: MapFamily<u32, FlowEpoch> =
    MapFamily::new(EPOCH, MapKind::Array, Size::Fixed(1), OWNER).mmapable();
/// `skep_flow_stats`: counters by [`FLOW_COUNTERS`].
pub static FLOW_STATS: MapFamily<u32, u64> = MapFamily::new(
    "skep_flow_stats",
    MapKind::PerCpuArray,
    Size::Fixed(FLOW_COUNTERS.len() as u32),
    OWNER,
)
.with_value_text(sum_text);

register!(FLOWS4, FLOWS6, FLOW_EPOCH, FLOW_STATS);

/// Names of the counters, by index. C twin: `enum flow_counter` in `bpf/include/flow/flow.h`.
pub const FLOW_COUNTERS: [&str; 8] = [
    "hit",
    "unknown",
    "epoch",
    "age",
    "different",
    "not-plain",
    "recorded",
    "raised",
];

fn sum_text(bytes: &[u8]) -> String {
    cpu_values::<u64>(bytes).sum::<u64>().to_string()
}

/// What recorded flows are valid in. C twin: `struct flow_epoch` in `bpf/include/flow/flow.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowEpoch {
    pub epoch: u32,
    /// Maps that are being written: meanwhile no flow is valid.
    pub writers: u32,
}
layout!(FlowEpoch = "flow_epoch" { epoch, writers });

impl Text for FlowEpoch {
    fn text(&self) -> String {
        format!("Epoch={} Writers={}", self.epoch, self.writers)
    }
}

/// Result for packets of a flow. C twin: `struct flow` in `bpf/include/flow/flow.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    pub epoch: u32,
    /// On the clock of maps.
    pub now: u32,
    pub mark_before: u32,
    pub mark_after: u32,
    /// VNI, or metadata of the XDP program.
    pub input: u32,
    pub ifindex: u32,
    pub tunnel_id: u32,
    pub addresses: u32,
    pub ports: u32,
    /// Longest packet.
    pub length: u16,
    /// 1 pass, 2 redirect, 3 to the peer of the interface, 4 to the next hop, 5 encapsulate, 6 back.
    pub exit: u8,
    pub redirect_flags: u8,
    pub tcp_flags: u8,
    /// Decrement of the hop limit.
    pub hops: u8,
    /// Bits: 1 MAC addresses, 2 addresses and ports, 4 mark.
    pub changes: u8,
    pub next_family: u8,
    pub counters: u8,
    pub policies: u8,
    pub pad: [u8; 2],
    pub next: [u8; 16],
    pub macs: [u8; 12],
    pub counted: [MetricsKey; 3],
    pub allowed: [PolicyStatsKey; 2],
}
const _: () = assert!(size_of::<Flow>() == 124 && offset_of!(Flow, macs) == 64);

impl Flow {
    fn exit(&self) -> String {
        match self.exit {
            1 => "pass".to_owned(),
            2 | 3 => format!("ifindex={}", self.ifindex),
            4 => format!("next-hop ifindex={}", self.ifindex),
            5 => format!("tunnel vni={}", self.tunnel_id),
            6 => "back".to_owned(),
            _ => "invalid".to_owned(),
        }
    }
}

macro_rules! flow {
    ($key:ident, $entry:ident, $c_key:literal, $c_entry:literal, $bytes:literal) => {
        /// Key of one address family. C twin in `bpf/include/flow/flow.inc.h`.
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
            pub saddr: [u8; $bytes],
            pub daddr: [u8; $bytes],
            pub sport: U16,
            pub dport: U16,
            /// Interface of the program, host order.
            pub ifindex: u32,
            pub proto: u8,
            /// 0 ingress, 1 egress, 2 XDP.
            pub hook: u8,
            pub pad: [u8; 2],
        }
        const _: () = assert!(size_of::<$key>() == 12 + 2 * $bytes);
        layout!(
            $key = $c_key {
                saddr,
                daddr,
                sport,
                dport,
                ifindex,
                proto,
                hook,
                pad
            }
        );

        impl Text for $key {
            fn text(&self) -> String {
                let from = socket(IpAddr::from(self.saddr), self.sport.get());
                let to = socket(IpAddr::from(self.daddr), self.dport.get());
                let hook = ["ingress", "egress", "xdp"]
                    .get(usize::from(self.hook))
                    .unwrap_or(&"invalid");
                format!(
                    "{} {from} -> {to} ifindex={} {hook}",
                    protocol(self.proto),
                    self.ifindex
                )
            }
        }

        /// Value of one address family. C twin in `bpf/include/flow/flow.inc.h`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $entry {
            pub flow: Flow,
            pub saddr: [u8; $bytes],
            pub daddr: [u8; $bytes],
            pub sport: U16,
            pub dport: U16,
        }
        const _: () = assert!(size_of::<$entry>() == 128 + 2 * $bytes);
        layout!(
            $entry = $c_entry {
                flow,
                saddr,
                daddr,
                sport,
                dport
            }
        );

        impl Text for $entry {
            fn text(&self) -> String {
                let from = socket(IpAddr::from(self.saddr), self.sport.get());
                let to = socket(IpAddr::from(self.daddr), self.dport.get());
                format!(
                    "{from} -> {to} {} Epoch={} Time={}",
                    self.flow.exit(),
                    self.flow.epoch,
                    self.flow.now
                )
            }
        }
    };
}

flow!(FlowKey4, Flow4, "flow_key4", "flow4", 4);
flow!(FlowKey6, Flow6, "flow_key6", "flow6", 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_shown() {
        let key = FlowKey4 {
            saddr: [10, 1, 0, 165],
            daddr: [10, 96, 0, 1],
            sport: U16::new(48001),
            dport: U16::new(443),
            ifindex: 7,
            proto: 6,
            hook: 0,
            pad: [0; 2],
        };
        assert_eq!(
            key.text(),
            "TCP 10.1.0.165:48001 -> 10.96.0.1:443 ifindex=7 ingress"
        );
        let mut entry = Flow4::read_from_bytes(&[0; 136]).unwrap();
        (entry.flow.exit, entry.flow.ifindex, entry.flow.epoch) = (3, 9, 4);
        assert_eq!(entry.text(), "0.0.0.0:0 -> 0.0.0.0:0 ifindex=9 Epoch=4 Time=0");
    }
}
