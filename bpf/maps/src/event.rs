// SPDX-License-Identifier: Apache-2.0

//! What programs report: `cilium_metrics`, `cilium_events`, and the rate limit of events.

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::map::{MapFlags, MapKind, MapSpec, possible_cpus};

/// `cilium_metrics`, a value for each CPU; read it with [`PerCpuMap`](skep_bpf_sys::map::PerCpuMap).
pub const METRICS: MapSpec<MetricsKey, MetricsValue> =
    MapSpec::new("cilium_metrics", MapKind::PerCpuHash, 1024, MapFlags::NO_PREALLOC);

/// `cilium_ratelimit`: token buckets.
pub const RATELIMIT: MapSpec<RateLimitKey, RateLimitValue> =
    MapSpec::new("cilium_ratelimit", MapKind::LruHash, 1024, MapFlags::NONE);

/// `cilium_ratelimit_metrics`: events dropped, by the usage number of their bucket (host order).
pub const RATELIMIT_METRICS: MapSpec<u32, u64> = MapSpec::new(
    "cilium_ratelimit_metrics",
    MapKind::Hash,
    64,
    MapFlags::NO_PREALLOC,
);

/// `cilium_events`: a ring buffer for each possible CPU.
pub fn events() -> MapSpec<u32, u32> {
    MapSpec::new(
        "cilium_events",
        MapKind::PerfEventArray,
        possible_cpus(),
        MapFlags::NONE,
    )
}

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
    /// Source line, host order.
    pub line: u16,
    /// Source file.
    pub file: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
const _: () = assert!(size_of::<MetricsKey>() == 8 && offset_of!(MetricsKey, line) == 2);
const _: () = assert!(offset_of!(MetricsKey, file) == 4);

/// Value of `cilium_metrics`, one a CPU. C twin: `struct metrics_value` in `bpf/include/event/metrics.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MetricsValue {
    /// How often, host order.
    pub count: u64,
    /// Bytes of the packets, host order.
    pub bytes: u64,
}
const _: () = assert!(size_of::<MetricsValue>() == 16);

/// Reasons that the socket programs count, all with direction 3 (service).
pub mod reason {
    /// A backend slot was missing.
    pub const LB_NO_BACKEND_SLOT: u8 = 5;
    /// A slot named a backend that does not exist.
    pub const LB_NO_BACKEND: u8 = 6;
    /// The reverse entry of a socket could not be written.
    pub const LB_REVERSE_UPDATE: u8 = 7;
    /// The reverse entry of a socket named a service that is gone.
    pub const LB_REVERSE_STALE: u8 = 8;
    /// A released socket's reverse entry was deleted.
    pub const LB_REVERSE_DELETE: u8 = 14;
}

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
    /// Tokens left, host order.
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
    /// Zero.
    pub pad: u16,
    /// Socket cookie, host order.
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
    /// Anything else.
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
    /// The event's point.
    pub fn trace_point(&self) -> TracePoint {
        match self.point {
            1 => TracePoint::PreForward,
            2 => TracePoint::PostForward,
            3 => TracePoint::PreReverse,
            4 => TracePoint::PostReverse,
            _ => TracePoint::Unknown,
        }
    }

    /// Address of the peer.
    pub fn addr(&self) -> IpAddr {
        if self.flags & 1 != 0 {
            IpAddr::V6(Ipv6Addr::from(self.address))
        } else {
            let [a, b, c, d, ..] = self.address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
    }
}
