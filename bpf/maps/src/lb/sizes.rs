// SPDX-License-Identifier: Apache-2.0

//! How many entries the load-balancer maps hold.

use crate::{MapSizes, SizeKey};

pub const SERVICE_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-service-map-max", DEFAULT_LB_MAP_MAX);
pub const BACKEND_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-service-backend-map-max", DEFAULT_LB_MAP_MAX);
/// Size of the reverse NAT maps.
pub const REV_NAT_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-rev-nat-map-max", DEFAULT_LB_MAP_MAX);
/// Size of the affinity maps, and of that of affinity matches.
pub const AFFINITY_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-affinity-map-max", DEFAULT_LB_MAP_MAX);
/// Size of the source range maps.
pub const SOURCE_RANGE_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-source-range-map-max", DEFAULT_LB_MAP_MAX);
pub const MAGLEV_MAP_MAX: SizeKey = SizeKey::new("bpf-lb-maglev-map-max", DEFAULT_LB_MAP_MAX);
/// Backend ids in one Maglev table.
pub const MAGLEV_TABLE_SIZE: SizeKey = SizeKey::new("bpf-lb-maglev-table-size", DEFAULT_MAGLEV_TABLE);
/// Size of the reverse socket maps.
pub const SOCK_REV_MAP_MAX: SizeKey = SizeKey::new("bpf-sock-rev-map-max", DEFAULT_REVERSE_SK);
/// Entries of the skip-LB maps; not configurable.
pub const SKIP_ENTRIES: u32 = 100;

/// Entries of every load-balancer map, as the settings of load balancing say; [`MapSizes`] has them by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbMapSizes {
    /// `bpf-lb-service-map-max`.
    pub services: u32,
    /// `bpf-lb-service-backend-map-max`.
    pub backends: u32,
    /// `bpf-lb-rev-nat-map-max`.
    pub reverse_nat: u32,
    /// `bpf-lb-affinity-map-max`: both the affinity and the affinity-match maps.
    pub affinity: u32,
    /// `bpf-lb-source-range-map-max`.
    pub source_range: u32,
    /// `bpf-lb-maglev-map-max`.
    pub maglev: u32,
    /// `bpf-lb-maglev-table-size`: backend ids in one lookup table.
    pub maglev_table: u32,
    /// `bpf-sock-rev-map-max`.
    pub reverse_sk: u32,
    /// `preallocate-bpf-maps`: memory of plain hash maps is taken when they are created.
    pub preallocate: bool,
    /// `bpf-distributed-lru`: one LRU list a CPU; sizes of LRU maps should be a multiple of the CPUs
    /// ([`round_to_cpus`]).
    pub distributed_lru: bool,
}

/// Default of `bpf-lb-map-max`, which the other `bpf-lb-*-map-max` default to.
pub const DEFAULT_LB_MAP_MAX: u32 = 65_536;
/// Default of `bpf-lb-maglev-table-size`.
pub const DEFAULT_MAGLEV_TABLE: u32 = 16_381;
/// Entries of the reverse socket maps without dynamic sizing.
pub const DEFAULT_REVERSE_SK: u32 = 262_144;
/// Least entries of the reverse socket maps with dynamic sizing.
pub const MIN_DYNAMIC_REVERSE_SK: u32 = 65_536;
/// Most entries of the reverse socket maps.
pub const MAX_REVERSE_SK: u32 = 16_777_216;

impl Default for LbMapSizes {
    fn default() -> Self {
        Self::uniform(DEFAULT_LB_MAP_MAX)
    }
}

impl LbMapSizes {
    /// All maps that follow `bpf-lb-map-max` with `max` entries, the others with their defaults.
    pub const fn uniform(max: u32) -> Self {
        Self {
            services: max,
            backends: max,
            reverse_nat: max,
            affinity: max,
            source_range: max,
            maglev: max,
            maglev_table: DEFAULT_MAGLEV_TABLE,
            reverse_sk: DEFAULT_REVERSE_SK,
            preallocate: false,
            distributed_lru: false,
        }
    }

    /// Small maps, for tests: `max` entries everywhere and Maglev tables of 251.
    pub const fn small(max: u32) -> Self {
        let mut sizes = Self::uniform(max);
        sizes.maglev_table = 251;
        sizes.reverse_sk = max;
        sizes
    }
}

impl From<LbMapSizes> for MapSizes {
    fn from(sizes: LbMapSizes) -> Self {
        Self::default()
            .with_memory(sizes.preallocate, sizes.distributed_lru)
            .with(SERVICE_MAP_MAX, sizes.services)
            .with(BACKEND_MAP_MAX, sizes.backends)
            .with(REV_NAT_MAP_MAX, sizes.reverse_nat)
            .with(AFFINITY_MAP_MAX, sizes.affinity)
            .with(SOURCE_RANGE_MAP_MAX, sizes.source_range)
            .with(MAGLEV_MAP_MAX, sizes.maglev)
            .with(MAGLEV_TABLE_SIZE, sizes.maglev_table)
            .with(SOCK_REV_MAP_MAX, sizes.reverse_sk)
    }
}

/// Entries of the reverse socket maps for a machine with `memory` bytes and
/// `bpf-map-dynamic-size-ratio` = `ratio`.
///
/// The ratio's share of memory is spread over the maps that grow with connections, in proportion to
/// their default sizes; the reverse socket map gets one entry for every 81 bytes of it, clamped to
/// [`MIN_DYNAMIC_REVERSE_SK`]…[`MAX_REVERSE_SK`].
///
/// ```
/// use skep_bpf_maps::lb::dynamic_reverse_sk;
///
/// assert_eq!(dynamic_reverse_sk(16 << 30, 0.0025), 530_242);
/// assert_eq!(dynamic_reverse_sk(512 << 20, 0.0025), 65_536);
/// ```
pub fn dynamic_reverse_sk(memory: u64, ratio: f64) -> u32 {
    // All five maps together have 21,233,664 bytes for 262,144 entries of this one.
    let entries = memory as f64 * ratio / 81.0;
    (entries as u64).clamp(MIN_DYNAMIC_REVERSE_SK.into(), MAX_REVERSE_SK.into()) as u32
}

/// `entries` rounded up to a multiple of `cpus` (possible CPUs): what LRU maps need when every CPU has
/// its own list.
pub fn round_to_cpus(entries: u32, cpus: u32) -> u32 {
    entries.checked_next_multiple_of(cpus.max(1)).unwrap_or(entries)
}
