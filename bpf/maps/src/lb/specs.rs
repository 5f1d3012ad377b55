// SPDX-License-Identifier: Apache-2.0

//! The load-balancer maps by name: type, sizes, flags.

use super::*;
use skep_bpf_sys::map::{MapFlags, MapKind, MapSpec, NestedSpec};

/// Everything the load balancer pins, for one set of sizes.
///
/// ```
/// use skep_bpf_maps::lb::{LbMapSizes, LbMapSpecs};
///
/// let specs = LbMapSpecs::new(LbMapSizes::default());
/// assert_eq!(specs.services4.name(), "cilium_lb4_services_v2");
/// ```
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "fields are named like the maps they describe")]
pub struct LbMapSpecs {
    pub services4: MapSpec<Service4Key, ServiceValue>,
    pub services6: MapSpec<Service6Key, ServiceValue>,
    pub backends4: MapSpec<BackendKey, Backend4>,
    pub backends6: MapSpec<BackendKey, Backend6>,
    pub reverse_nat4: MapSpec<ReverseNatKey, ReverseNat4>,
    pub reverse_nat6: MapSpec<ReverseNatKey, ReverseNat6>,
    pub affinity4: MapSpec<Affinity4Key, Affinity>,
    pub affinity6: MapSpec<Affinity6Key, Affinity>,
    pub affinity_match: MapSpec<AffinityMatchKey, u8>,
    pub source_range4: MapSpec<SourceRange4Key, u8>,
    pub source_range6: MapSpec<SourceRange6Key, u8>,
    pub maglev4: NestedSpec<MaglevKey, u32>,
    pub maglev6: NestedSpec<MaglevKey, u32>,
    pub reverse_sk4: MapSpec<ReverseSk4Key, ReverseSk4>,
    pub reverse_sk6: MapSpec<ReverseSk6Key, ReverseSk6>,
    pub skip4: MapSpec<Skip4Key, u8>,
    pub skip6: MapSpec<Skip6Key, u8>,
}

/// Names of the maps that exist only for IPv4: unpinned when the family is switched off.
pub const IPV4_MAPS: [&str; 8] = [
    "cilium_lb4_services_v2",
    "cilium_lb4_backends_v3",
    "cilium_lb4_reverse_nat",
    "cilium_lb4_affinity",
    "cilium_lb4_source_range",
    "cilium_lb4_maglev",
    "cilium_lb4_reverse_sk",
    "cilium_skip_lb4",
];

/// Names of the maps that exist only for IPv6: unpinned when the family is switched off.
pub const IPV6_MAPS: [&str; 8] = [
    "cilium_lb6_services_v2",
    "cilium_lb6_backends_v3",
    "cilium_lb6_reverse_nat",
    "cilium_lb6_affinity",
    "cilium_lb6_source_range",
    "cilium_lb6_maglev",
    "cilium_lb6_reverse_sk",
    "cilium_skip_lb6",
];

impl LbMapSpecs {
    /// Specifications of all maps with these sizes.
    pub const fn new(sizes: LbMapSizes) -> Self {
        let plain = if sizes.preallocate {
            MapFlags::NONE
        } else {
            MapFlags::NO_PREALLOC
        };
        let agent_only = plain.or(MapFlags::RDONLY_PROG);
        // Tries cannot be preallocated, and the two skip maps never are.
        let sparse = MapFlags::NO_PREALLOC.or(MapFlags::RDONLY_PROG);
        let lru = if sizes.distributed_lru {
            MapFlags::NO_COMMON_LRU
        } else {
            MapFlags::NONE
        };
        Self {
            services4: MapSpec::new(
                "cilium_lb4_services_v2",
                MapKind::Hash,
                sizes.services,
                agent_only,
            ),
            services6: MapSpec::new(
                "cilium_lb6_services_v2",
                MapKind::Hash,
                sizes.services,
                agent_only,
            ),
            backends4: MapSpec::new("cilium_lb4_backends_v3", MapKind::Hash, sizes.backends, plain),
            backends6: MapSpec::new("cilium_lb6_backends_v3", MapKind::Hash, sizes.backends, plain),
            reverse_nat4: MapSpec::new("cilium_lb4_reverse_nat", MapKind::Hash, sizes.reverse_nat, plain),
            reverse_nat6: MapSpec::new("cilium_lb6_reverse_nat", MapKind::Hash, sizes.reverse_nat, plain),
            affinity4: MapSpec::new("cilium_lb4_affinity", MapKind::LruHash, sizes.affinity, lru),
            affinity6: MapSpec::new("cilium_lb6_affinity", MapKind::LruHash, sizes.affinity, lru),
            affinity_match: MapSpec::new(
                "cilium_lb_affinity_match",
                MapKind::Hash,
                sizes.affinity,
                agent_only,
            ),
            source_range4: MapSpec::new(
                "cilium_lb4_source_range",
                MapKind::LpmTrie,
                sizes.source_range,
                sparse,
            ),
            source_range6: MapSpec::new(
                "cilium_lb6_source_range",
                MapKind::LpmTrie,
                sizes.source_range,
                sparse,
            ),
            maglev4: NestedSpec::new(
                "cilium_lb4_maglev",
                "cilium_maglev_inner",
                sizes.maglev,
                agent_only,
                sizes.maglev_table,
            ),
            maglev6: NestedSpec::new(
                "cilium_lb6_maglev",
                "cilium_maglev_inner",
                sizes.maglev,
                agent_only,
                sizes.maglev_table,
            ),
            reverse_sk4: MapSpec::new("cilium_lb4_reverse_sk", MapKind::LruHash, sizes.reverse_sk, lru),
            reverse_sk6: MapSpec::new("cilium_lb6_reverse_sk", MapKind::LruHash, sizes.reverse_sk, lru),
            skip4: MapSpec::new("cilium_skip_lb4", MapKind::Hash, sizes.skip, sparse),
            skip6: MapSpec::new("cilium_skip_lb6", MapKind::Hash, sizes.skip, sparse),
        }
    }
}
