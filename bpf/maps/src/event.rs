// SPDX-License-Identifier: Apache-2.0

//! What programs report: `cilium_metrics`, `cilium_events`, `cilium_signals`, and the rate limit of events.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::{MapKind, map::cpu_values};

use crate::{MapFamily, Size, conntrack, layout, register, text::Text};

mod file;
pub mod reason;

pub use file::source_file;

/// The owner: the cell that loads the programs that write these maps.
pub const OWNER: &str = "socket-lb";

/// `cilium_metrics`, a value for each CPU; read it with [`PerCpuMap`](skep_bpf_sys::map::PerCpuMap).
pub static METRICS: MapFamily<MetricsKey, MetricsValue> =
    MapFamily::new("cilium_metrics", MapKind::PerCpuHash, Size::Fixed(1024), OWNER)
        .sparse()
        .with_value_text(total_text);

/// `cilium_ratelimit`: token buckets.
pub static RATELIMIT: MapFamily<RateLimitKey, RateLimitValue> =
    MapFamily::new("cilium_ratelimit", MapKind::LruHash, Size::Fixed(1024), OWNER);

/// `cilium_ratelimit_metrics`: events dropped, by the usage number of their bucket (host order).
pub static RATELIMIT_METRICS: MapFamily<u32, u64> =
    MapFamily::new("cilium_ratelimit_metrics", MapKind::Hash, Size::Fixed(64), OWNER)
        .sparse()
        .with_key_text(usage_bytes_text);

/// `cilium_events`: a ring buffer for each possible CPU.
pub static EVENTS: MapFamily<u32, u32> = MapFamily::new(
    "cilium_events",
    MapKind::PerfEventArray,
    Size::PossibleCpus,
    OWNER,
);

/// `cilium_signals`: a ring buffer for each possible CPU, for programs at interfaces to say that a map is full.
pub static SIGNALS: MapFamily<u32, u32> = MapFamily::new(
    "cilium_signals",
    MapKind::PerfEventArray,
    Size::PossibleCpus,
    conntrack::OWNER,
);

register!(METRICS, RATELIMIT, RATELIMIT_METRICS, EVENTS, SIGNALS);

/// Key of `cilium_metrics`. C twin: `struct metrics_key` in `bpf/include/event/metrics.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MetricsKey {
    /// Why it was counted; 130 and more are drops.
    pub reason: u8,
    /// Bits 0–1: 1 ingress, 2 egress, 3 service; the others zero.
    pub direction: u8,
    pub line: u16,
    pub file: u8,
    pub reserved: [u8; 3],
}
const _: () = assert!(size_of::<MetricsKey>() == 8 && offset_of!(MetricsKey, line) == 2);
const _: () = assert!(offset_of!(MetricsKey, file) == 4);

/// Value of `cilium_metrics`, one a CPU. C twin: `struct metrics_value` in `bpf/include/event/metrics.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MetricsValue {
    pub count: u64,
    /// Bytes of the packets, host order.
    pub bytes: u64,
}
const _: () = assert!(size_of::<MetricsValue>() == 16);

/// Key of `cilium_ratelimit`. C twin: `struct ratelimit_key` in `bpf/include/event/ratelimit.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RateLimitKey {
    /// 1 ICMPv6 replies, 2 events, 3 socket events; host order.
    pub usage: u32,
    /// Interface (usage 1), host order.
    pub ifindex: u32,
}
const _: () = assert!(size_of::<RateLimitKey>() == 8);

/// Value of `cilium_ratelimit`. C twin: `struct ratelimit_value` in `bpf/include/event/ratelimit.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RateLimitValue {
    /// Monotonic nanoseconds of the last refill, host order.
    pub last_topup: u64,
    pub tokens: u64,
}
const _: () = assert!(size_of::<RateLimitValue>() == 16);

/// First byte of a socket trace event.
pub const SOCKET_TRACE: u8 = 7;

/// Socket trace event. C twin: `struct socket_trace` in `bpf/include/event/socket_trace.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SocketTrace {
    /// [`SOCKET_TRACE`].
    pub kind: u8,
    /// See [`TracePoint`].
    pub point: u8,
    /// 0 unknown, 1 TCP, 2 UDP.
    pub l4_proto: u8,
    /// Bit 0: the address is IPv6.
    pub flags: u8,
    /// Port of the peer, host order.
    pub port: u16,
    pub pad: u16,
    pub cookie: u64,
    /// Id of the calling task's cgroup, host order.
    pub cgroup_id: u64,
    /// Address of the peer, network order; IPv4 in the first 4 bytes.
    pub address: [u8; 16],
}
const _: () = assert!(size_of::<SocketTrace>() == 40 && offset_of!(SocketTrace, port) == 4);
const _: () = assert!(offset_of!(SocketTrace, cookie) == 8 && offset_of!(SocketTrace, cgroup_id) == 16);
const _: () = assert!(offset_of!(SocketTrace, address) == 24 && offset_of!(SocketTrace, flags) == 3);
const _: () = assert!(offset_of!(SocketTrace, point) == 1 && offset_of!(SocketTrace, l4_proto) == 2);

/// Where in the translation an event was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TracePoint {
    Unknown = 0,
    /// A service was found for the address of a call.
    PreForward = 1,
    /// The address was replaced by a backend's.
    PostForward = 2,
    /// A peer address is about to be looked up.
    PreReverse = 3,
    /// The peer address was replaced by the service's.
    PostReverse = 4,
}

impl SocketTrace {
    pub fn trace_point(&self) -> TracePoint {
        match self.point {
            1 => TracePoint::PreForward,
            2 => TracePoint::PostForward,
            3 => TracePoint::PreReverse,
            4 => TracePoint::PostReverse,
            _ => TracePoint::Unknown,
        }
    }

    pub fn addr(&self) -> IpAddr {
        if self.flags & 1 != 0 {
            IpAddr::V6(Ipv6Addr::from(self.address))
        } else {
            let [a, b, c, d, ..] = self.address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
    }
}

layout!(MetricsKey = "metrics_key" { reason, direction, line, file, reserved });
layout!(MetricsValue = "metrics_value" { count, bytes });
layout!(RateLimitKey = "ratelimit_key" { usage, ifindex });
layout!(RateLimitValue = "ratelimit_value" { last_topup, tokens });

impl MetricsKey {
    /// Why it was counted: the number if it has no name.
    pub fn reason_text(&self) -> String {
        reason::text(self.reason).map_or_else(|| format!("reason {}", self.reason), str::to_owned)
    }

    pub const fn direction_text(&self) -> &'static str {
        match self.direction & 3 {
            1 => "INGRESS",
            2 => "EGRESS",
            3 => "SERVICE",
            _ => "UNKNOWN",
        }
    }
}

/// What a counter of the programs counts, and in which direction.
impl Text for MetricsKey {
    fn text(&self) -> String {
        format!("{} {}", self.reason_text(), self.direction_text())
    }
}

impl Text for MetricsValue {
    fn text(&self) -> String {
        format!("{} {}", self.count, self.bytes)
    }
}

impl Text for RateLimitKey {
    fn text(&self) -> String {
        format!("{} {}", usage_text(self.usage), self.ifindex)
    }
}

impl Text for RateLimitValue {
    fn text(&self) -> String {
        format!("{} {}", self.tokens, self.last_topup)
    }
}

fn total_text(bytes: &[u8]) -> String {
    MetricsValue::total(cpu_values(bytes)).text()
}

impl MetricsValue {
    /// The sum of the values of all CPUs.
    pub fn total(values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(Self::default(), |sum, value| Self {
            count: sum.count.wrapping_add(value.count),
            bytes: sum.bytes.wrapping_add(value.bytes),
        })
    }
}

/// What a token bucket is for.
fn usage_text(usage: u32) -> String {
    match usage {
        1 => "icmpv6".to_owned(),
        2 => "events".to_owned(),
        3 => "socket-events".to_owned(),
        other => format!("usage {other}"),
    }
}

fn usage_bytes_text(bytes: &[u8]) -> String {
    u32::read_from_bytes(bytes).map_or_else(|_| format!("{bytes:?}"), usage_text)
}
