// SPDX-License-Identifier: Apache-2.0

//! `cilium_throttle`: rates of endpoints.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use skep_bpf_sys::MapKind;

use crate::{MapFamily, Size, layout, register, text::Text};

/// The owner: the cell that writes this map.
pub const OWNER: &str = "bandwidth-manager";

/// `cilium_throttle`: rates by endpoint and direction.
pub static THROTTLE: MapFamily<ThrottleKey, ThrottleValue> =
    MapFamily::new("cilium_throttle", MapKind::Hash, Size::Fixed(65_535), OWNER);

register!(THROTTLE);

/// Key of `cilium_throttle`. C twin: `struct throttle_key` in `bpf/include/node/throttle.h`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ThrottleKey {
    /// Id of the endpoint, host order.
    pub endpoint: u32,
    /// [`EGRESS`](Self::EGRESS) or [`INGRESS`](Self::INGRESS).
    pub direction: u8,
    pub pad: [u8; 3],
}
const _: () = assert!(size_of::<ThrottleKey>() == 8 && offset_of!(ThrottleKey, direction) == 4);

impl ThrottleKey {
    pub const EGRESS: u8 = 0;
    pub const INGRESS: u8 = 1;

    pub fn new(endpoint: u16, direction: u8) -> Self {
        Self {
            endpoint: endpoint.into(),
            direction,
            pad: [0; 3],
        }
    }
}

/// Value of `cilium_throttle`; integers in host order. C twin: `struct throttle_value` in `bpf/include/node/throttle.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ThrottleValue {
    /// Bytes a second; 0: no limit.
    pub rate: u64,
    /// Departure of the last packet, or the last packet received: monotonic nanoseconds.
    pub last: u64,
    /// Egress: drop horizon in nanoseconds. Ingress: tokens in bytes.
    pub limit: u64,
    /// Priority of packets plus one; 0: unchanged.
    pub priority: u32,
    pub pad: u32,
    pub reserved: [u64; 3],
}
const _: () = assert!(size_of::<ThrottleValue>() == 56 && offset_of!(ThrottleValue, priority) == 24);

layout!(ThrottleKey = "throttle_key" { endpoint, direction, pad });
layout!(ThrottleValue = "throttle_value" { rate, last, limit, priority, pad, reserved });

impl Text for ThrottleKey {
    fn text(&self) -> String {
        let direction = if self.direction == Self::INGRESS {
            "ingress"
        } else {
            "egress"
        };
        format!("{}, {direction}", self.endpoint)
    }
}

impl Text for ThrottleValue {
    fn text(&self) -> String {
        format!("bps={} prio={}", self.rate, self.priority)
    }
}
