// SPDX-License-Identifier: Apache-2.0

//! `cilium_lb4_health`, `cilium_lb6_health`: backends that sockets of a health checker probe.

use skep_bpf_sys::MapKind;

use super::{BACKEND_MAP_MAX, Backend4, Backend6};
use crate::{IpFamily, MapFamily, Size, register};

/// The owner: the cell whose programs write these maps.
pub const HEALTH_OWNER: &str = "health-probes";

/// `cilium_lb4_health`: cookie of a socket, host order, to the backend, of which address, port and protocol are set. C
/// twin: `bpf/include/lb/health.h`.
pub static HEALTH4: MapFamily<u64, Backend4> = MapFamily::new(
    "cilium_lb4_health",
    MapKind::LruHash,
    Size::Key(BACKEND_MAP_MAX),
    HEALTH_OWNER,
)
.of(IpFamily::V4);
/// `cilium_lb6_health`, as [`HEALTH4`].
pub static HEALTH6: MapFamily<u64, Backend6> = MapFamily::new(
    "cilium_lb6_health",
    MapKind::LruHash,
    Size::Key(BACKEND_MAP_MAX),
    HEALTH_OWNER,
)
.of(IpFamily::V6);

register!(HEALTH4, HEALTH6);
