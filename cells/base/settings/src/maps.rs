// SPDX-License-Identifier: Apache-2.0

//! Sizes of maps.

use std::time::Duration;

use hive::config::Faults;

/// Most entries that the kernel creates a hash map with: 2³² bytes of buckets, rounded to a power of two.
const MAP_MAX: i64 = 1 << 27;
/// Fewest and most entries of the reverse socket maps.
const REVERSE_SK: std::ops::RangeInclusive<i64> = 1024..=16_777_216;
/// Fewest and most entries of maps of flows.
const FLOWS: std::ops::RangeInclusive<i64> = 1024..=16_777_216;
/// Fewest and most entries of the map of node ids.
const NODE_MAP: std::ops::RangeInclusive<i64> = 16384..=MAP_MAX;

/// Sizes of maps, and how their memory is allocated.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = MapConfig::check)]
pub struct MapConfig {
    /// Maximum number of entries of each load-balancing map without a limit of its own.
    #[config(default = 65536, flag = "bpf-lb-map-max")]
    pub lb_max: i64,
    /// Most service entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-service-map-max", hidden)]
    pub lb_service_max: i64,
    /// Most backends; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-service-backend-map-max", hidden)]
    pub lb_backend_max: i64,
    /// Most reverse NAT entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-rev-nat-map-max", hidden)]
    pub lb_reverse_nat_max: i64,
    /// Most session affinity entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-affinity-map-max", hidden)]
    pub lb_affinity_max: i64,
    /// Most client networks; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-source-range-map-max", hidden)]
    pub lb_source_range_max: i64,
    /// Most Maglev tables; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-maglev-map-max", hidden)]
    pub lb_maglev_max: i64,
    /// Maximum number of reverse translation entries of sockets; 0: derived from the node's memory.
    #[config(default = 0, flag = "bpf-sock-rev-map-max")]
    pub reverse_sk_max: i64,
    /// Maximum number of TCP conntrack entries of each address family; 0: derived from the node's memory.
    #[config(default = 0, flag = "bpf-ct-global-tcp-max")]
    pub ct_tcp_max: i64,
    /// Maximum number of non-TCP conntrack entries of each address family; 0: derived from the node's memory.
    #[config(default = 0, flag = "bpf-ct-global-any-max")]
    pub ct_any_max: i64,
    /// Maximum number of NAT entries of each address family, at most the number of conntrack entries; 0:
    /// derived from the node's memory.
    #[config(default = 0, flag = "bpf-nat-global-max")]
    pub nat_max: i64,
    /// Most MAC addresses of clients, not more than entries of source translation; 0: as many.
    #[config(default = 0, flag = "bpf-neigh-global-max", hidden)]
    pub neighbours_max: i64,
    /// Maximum number of flows of each address family in the flow table; 0: no flow table.
    #[config(default = 0, flag = "bpf-flow-table-max")]
    pub flow_table_max: i64,
    /// Maximum number of tracked fragmented datagrams.
    #[config(default = 8192, flag = "bpf-fragments-map-max")]
    pub fragments_max: i64,
    /// Maximum number of entries of an endpoint's policy map, 256 to 65536.
    #[config(default = 16384, flag = "bpf-policy-map-max")]
    pub policy_max: i64,
    /// Maximum number of policy counters of all endpoints.
    #[config(default = 65536, flag = "bpf-policy-stats-map-max")]
    pub policy_stats_max: i64,
    /// Maximum number of node addresses with an id; at least 16384.
    #[config(default = 16384, flag = "bpf-node-map-max")]
    pub node_map_max: i64,
    /// Preallocate hash maps: faster updates, more memory.
    #[config(default = false, flag = "preallocate-bpf-maps")]
    pub preallocate: bool,
    /// Ratio of system memory for maps that grow with connections; 0: fixed sizes.
    #[config(default = 0.0025, flag = "bpf-map-dynamic-size-ratio")]
    pub dynamic_size_ratio: f64,
    /// Use an LRU list for each CPU in LRU maps.
    #[config(default = false, flag = "bpf-distributed-lru")]
    pub distributed_lru: bool,
    /// Time between two measurements of how full the maps are; 0: none.
    #[config(default = "5m", flag = "lb-pressure-metrics-interval", hidden)]
    pub pressure_interval: Duration,
}

impl MapConfig {
    fn check(&self, faults: &mut Faults) {
        if self.lb_max <= 0 {
            faults.add("bpf-lb-map-max", "must be larger than zero");
        }
        let limits = [
            ("bpf-lb-map-max", self.lb_max.max(0)),
            ("bpf-lb-service-map-max", self.lb_service_max),
            ("bpf-lb-service-backend-map-max", self.lb_backend_max),
            ("bpf-lb-rev-nat-map-max", self.lb_reverse_nat_max),
            ("bpf-lb-affinity-map-max", self.lb_affinity_max),
            ("bpf-lb-source-range-map-max", self.lb_source_range_max),
            ("bpf-lb-maglev-map-max", self.lb_maglev_max),
        ];
        for (flag, limit) in limits {
            if limit < 0 {
                faults.add(flag, "must not be negative");
            } else if limit > MAP_MAX {
                faults.add(flag, format!("too large, a map has at most {MAP_MAX} entries"));
            }
        }
        if self.reverse_sk_max != 0 && !REVERSE_SK.contains(&self.reverse_sk_max) {
            let (least, most) = (REVERSE_SK.start(), REVERSE_SK.end());
            faults.add(
                "bpf-sock-rev-map-max",
                format!("must be 0, or from {least} to {most}"),
            );
        }
        self.check_flows(faults);
        if !(1..=MAP_MAX).contains(&self.policy_stats_max) {
            faults.add("bpf-policy-stats-map-max", format!("must be from 1 to {MAP_MAX}"));
        }
        if !NODE_MAP.contains(&self.node_map_max) {
            let (least, most) = (NODE_MAP.start(), NODE_MAP.end());
            faults.add("bpf-node-map-max", format!("must be from {least} to {most}"));
        }
        if !(0.0..=1.0).contains(&self.dynamic_size_ratio) {
            faults.add("bpf-map-dynamic-size-ratio", "must be from 0 to 1");
        }
        if self.distributed_lru && self.dynamic_size_ratio <= 0.0 {
            faults.add(
                "bpf-distributed-lru",
                "requires bpf-map-dynamic-size-ratio larger than 0",
            );
        }
    }

    fn check_flows(&self, faults: &mut Faults) {
        let (least, most) = (FLOWS.start(), FLOWS.end());
        for (flag, size) in [
            ("bpf-ct-global-tcp-max", self.ct_tcp_max),
            ("bpf-ct-global-any-max", self.ct_any_max),
            ("bpf-nat-global-max", self.nat_max),
            ("bpf-neigh-global-max", self.neighbours_max),
            ("bpf-flow-table-max", self.flow_table_max),
        ] {
            if size != 0 && !FLOWS.contains(&size) {
                faults.add(flag, format!("must be 0, or from {least} to {most}"));
            }
        }
        if !(1..=65_535).contains(&self.fragments_max) {
            faults.add("bpf-fragments-map-max", "must be from 1 to 65535");
        }
        let flows = self.ct_tcp_max.saturating_add(self.ct_any_max);
        if self.ct_tcp_max > 0 && self.ct_any_max > 0 && self.nat_max > flows {
            faults.add(
                "bpf-nat-global-max",
                format!("must not exceed {flows}, bpf-ct-global-tcp-max and bpf-ct-global-any-max together"),
            );
        }
        if self.nat_max > 0 && self.neighbours_max > self.nat_max {
            faults.add(
                "bpf-neigh-global-max",
                format!("must not exceed {}, bpf-nat-global-max", self.nat_max),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn faults(edit: &dyn Fn(&mut MapConfig)) -> String {
        testing::faults(MapConfig::check, edit)
    }

    #[test]
    fn sizes_beyond_those_of_the_kernel_are_refused_by_name() {
        let too_large = "too large, a map has at most 134217728 entries";
        for (flag, edit) in [
            ("bpf-lb-map-max", (|c, n| c.lb_max = n) as fn(&mut MapConfig, i64)),
            ("bpf-lb-service-map-max", |c, n| c.lb_service_max = n),
            ("bpf-lb-service-backend-map-max", |c, n| c.lb_backend_max = n),
            ("bpf-lb-rev-nat-map-max", |c, n| c.lb_reverse_nat_max = n),
            ("bpf-lb-affinity-map-max", |c, n| c.lb_affinity_max = n),
            ("bpf-lb-source-range-map-max", |c, n| c.lb_source_range_max = n),
            ("bpf-lb-maglev-map-max", |c, n| c.lb_maglev_max = n),
        ] {
            for size in [99_999_999_999_999, 2_000_000_000, 134_217_729] {
                let text = faults(&|config| edit(config, size));
                assert!(text.contains(flag) && text.contains(too_large), "{size}: {text}");
                assert!(!text.contains("larger than zero"), "{size}: {text}");
            }
            assert_eq!(faults(&|config| edit(config, 134_217_728)), "", "{flag}");
            let text = faults(&|config| edit(config, -1));
            assert!(text.contains(flag) && !text.contains("too large"), "{text}");
        }
        assert!(faults(&|config| config.lb_max = 0).contains("must be larger than zero"));
        for size in [0, 16_383, 134_217_729] {
            assert_eq!(
                faults(&|config| config.node_map_max = size),
                "bpf-node-map-max: must be from 16384 to 134217728"
            );
        }
    }

    #[test]
    fn maps_of_flows_have_limits() {
        for edit in [
            (|c, n| c.ct_tcp_max = n) as fn(&mut MapConfig, i64),
            |c, n| c.ct_any_max = n,
            |c, n| c.nat_max = n,
            |c, n| c.neighbours_max = n,
            |c, n| c.flow_table_max = n,
        ] {
            assert!(faults(&|config| edit(config, 1023)).contains("must be 0, or from 1024 to 16777216"));
            assert_eq!(faults(&|config| edit(config, 1024)), "");
        }
        let text = faults(&|config| {
            (config.ct_tcp_max, config.ct_any_max, config.nat_max) = (2048, 1024, 4096);
        });
        assert!(text.contains("must not exceed 3072"), "{text}");
        let text = faults(&|config| (config.nat_max, config.neighbours_max) = (2048, 4096));
        assert!(text.contains("must not exceed 2048"), "{text}");
        assert!(faults(&|config| config.fragments_max = 0).contains("bpf-fragments-map-max"));
        let text = faults(&|config| config.policy_stats_max = 0);
        assert!(text.contains("bpf-policy-stats-map-max"), "{text}");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        assert!(faults(&|config| config.reverse_sk_max = 5).contains("from 1024 to 16777216"));
        assert!(faults(&|config| config.dynamic_size_ratio = 1.5).contains("from 0 to 1"));
        let text = faults(&|config| {
            config.distributed_lru = true;
            config.dynamic_size_ratio = 0.0;
        });
        assert!(text.contains("bpf-distributed-lru"), "{text}");
    }
}
