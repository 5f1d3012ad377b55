// SPDX-License-Identifier: Apache-2.0

//! Sizes of the maps on this machine.

use std::{fs, sync::Arc};

use hive::Cfg;
use skep_base_settings::{MaglevConfig, MapConfig};
use skep_bpf_maps::{
    MapSizes,
    conntrack::{CT_ANY_MAX, CT_TCP_MAX},
    flow::FLOWS_MAX,
    fragment::FRAGMENTS_MAX,
    lb::{DEFAULT_LB_MAP_MAX, DEFAULT_REVERSE_SK, LbMapSizes, dynamic_reverse_sk, round_to_cpus},
    nat::NAT_MAX,
    node::NEIGHBOURS_MAX,
    policy::{POLICY_MAX, POLICY_STATS_MAX},
};
use skep_bpf_sys::map::possible_cpus;

/// Sizes of the load-balancing maps as configured, on a machine with `memory` bytes and `cpus` possible CPUs.
pub fn lb_map_sizes(config: &MapConfig, maglev_table: u32, memory: u64, cpus: u32) -> LbMapSizes {
    let own = |size: i64| u32::try_from(size).ok().filter(|size| *size > 0);
    let max = own(config.lb_max).unwrap_or(DEFAULT_LB_MAP_MAX);
    let sizes = LbMapSizes {
        services: own(config.lb_service_max).unwrap_or(max),
        backends: own(config.lb_backend_max).unwrap_or(max),
        reverse_nat: own(config.lb_reverse_nat_max).unwrap_or(max),
        affinity: own(config.lb_affinity_max).unwrap_or(max),
        source_range: own(config.lb_source_range_max).unwrap_or(max),
        maglev: own(config.lb_maglev_max).unwrap_or(max),
        maglev_table,
        reverse_sk: own(config.reverse_sk_max).unwrap_or_else(|| reverse_sk(config, memory)),
        preallocate: config.preallocate,
        ..LbMapSizes::default()
    };
    if !config.distributed_lru {
        return sizes;
    }
    LbMapSizes {
        affinity: round_to_cpus(sizes.affinity, cpus),
        reverse_sk: round_to_cpus(sizes.reverse_sk, cpus),
        distributed_lru: true,
        ..sizes
    }
}

/// Fewest entries of maps whose size the memory of the machine decides, for each of the smallest map's.
const MIN_DYNAMIC: f64 = 65_536.0;
/// Bytes of all maps of flows for one entry of the smallest.
const BYTES: f64 = 81.0;

/// Sizes of the maps of flows as configured, on this machine.
pub fn packet_map_sizes(config: &MapConfig) -> MapSizes {
    flow_sizes(config, memory(), possible_cpus())
}

fn flow_sizes(config: &MapConfig, memory: u64, cpus: u32) -> MapSizes {
    // Every size is a multiple of the smallest map's, CT_ANY_MAX.
    let share = if config.dynamic_size_ratio > 0.0 {
        (memory as f64 * config.dynamic_size_ratio / BYTES).max(MIN_DYNAMIC)
    } else {
        f64::from(CT_ANY_MAX.default)
    };
    let size = |configured: i64, factor: f64| match u32::try_from(configured) {
        Ok(size) if size > 0 => size,
        _ => (share * factor).min(16_777_216.0) as u32,
    };
    let (tcp, any) = (size(config.ct_tcp_max, 2.0), size(config.ct_any_max, 1.0));
    let flows = tcp.saturating_add(any);
    let nat = match size(config.nat_max, 2.0) {
        nat if nat > flows => flows / 3 * 2,
        nat => nat,
    };
    let neighbours = size(config.neighbours_max, 2.0).min(nat);
    let fragments = u32::try_from(config.fragments_max).unwrap_or(FRAGMENTS_MAX.default);
    let lru = |entries| {
        if config.distributed_lru {
            round_to_cpus(entries, cpus)
        } else {
            entries
        }
    };
    // Without a flow table, the maps have room for one entry.
    let flows_of_table = match u32::try_from(config.flow_table_max) {
        Ok(flows) if flows > 0 => lru(flows),
        _ => FLOWS_MAX.default,
    };
    // Other limits are moved into this range, as Cilium does.
    let policy = config.policy_max.clamp(256, 65_536) as u32;
    let policy_stats = u32::try_from(config.policy_stats_max).unwrap_or(POLICY_STATS_MAX.default);
    MapSizes::default()
        .with(POLICY_MAX, policy)
        .with(POLICY_STATS_MAX, lru(policy_stats))
        .with(CT_TCP_MAX, lru(tcp))
        .with(CT_ANY_MAX, lru(any))
        .with(NAT_MAX, lru(nat))
        .with(FLOWS_MAX, flows_of_table)
        .with(NEIGHBOURS_MAX, lru(neighbours))
        .with(FRAGMENTS_MAX, lru(fragments))
        .with_memory(config.preallocate, config.distributed_lru)
}

/// Entries of the reverse socket maps if none are configured.
fn reverse_sk(config: &MapConfig, memory: u64) -> u32 {
    if config.dynamic_size_ratio > 0.0 {
        dynamic_reverse_sk(memory, config.dynamic_size_ratio)
    } else {
        DEFAULT_REVERSE_SK
    }
}

pub(crate) fn provide(config: Cfg<MapConfig>, maglev: Cfg<MaglevConfig>) -> Arc<LbMapSizes> {
    let table = maglev.table_size.get();
    Arc::new(lb_map_sizes(&config, table, memory(), possible_cpus()))
}

/// Bytes of the machine's memory; 0, which selects the smallest maps, if unknown.
fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes: Option<u64> = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse()
            .ok()
    });
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 16 << 30;

    fn sizes(edit: impl Fn(&mut MapConfig)) -> LbMapSizes {
        let mut config = <MapConfig as hive::Config>::defaults().unwrap();
        edit(&mut config);
        lb_map_sizes(&config, 16_381, MEMORY, 4)
    }

    #[test]
    fn defaults_are_those_of_cilium() {
        assert_eq!(
            sizes(|_| ()),
            LbMapSizes {
                reverse_sk: 530_242,
                ..LbMapSizes::uniform(65_536)
            }
        );
        assert_eq!(
            sizes(|config| config.dynamic_size_ratio = 0.0).reverse_sk,
            262_144
        );
    }

    #[test]
    fn limits_of_single_maps_win() {
        let sizes = sizes(|config| {
            config.lb_max = 1001;
            config.lb_backend_max = 7;
            config.reverse_sk_max = 1025;
        });

        assert_eq!(
            (sizes.services, sizes.backends, sizes.affinity, sizes.reverse_sk),
            (1001, 7, 1001, 1025)
        );
    }

    #[test]
    fn lru_maps_have_a_share_for_each_cpu() {
        let sizes = sizes(|config| {
            config.lb_max = 1001;
            config.reverse_sk_max = 1025;
            config.distributed_lru = true;
        });

        assert!(sizes.distributed_lru);
        assert_eq!(
            (sizes.affinity, sizes.reverse_sk, sizes.services),
            (1004, 1028, 1001)
        );
    }

    #[test]
    fn policies_have_the_configured_sizes() {
        let sizes = |most, stats| {
            let mut config = <MapConfig as hive::Config>::defaults().unwrap();
            (config.policy_max, config.policy_stats_max) = (most, stats);
            let sizes = flow_sizes(&config, MEMORY, 4);
            (sizes.get(POLICY_MAX), sizes.get(POLICY_STATS_MAX))
        };

        assert_eq!(sizes(1000, 2000), (1000, 2000));
        assert_eq!(sizes(1, 1), (256, 1));
        assert_eq!(sizes(100_000, 1), (65_536, 1));
    }

    fn flows(memory: u64, edit: impl Fn(&mut MapConfig)) -> [u32; 4] {
        let mut config = <MapConfig as hive::Config>::defaults().unwrap();
        edit(&mut config);
        let sizes = flow_sizes(&config, memory, 4);
        [CT_TCP_MAX, CT_ANY_MAX, NAT_MAX, NEIGHBOURS_MAX].map(|key| sizes.get(key))
    }

    #[test]
    fn maps_of_flows_grow_with_the_memory() {
        assert_eq!(flows(4 << 30, |_| ()), [265_121, 132_560, 265_121, 265_121]);
        assert_eq!(
            flows(16 << 30, |_| ()),
            [1_060_485, 530_242, 1_060_485, 1_060_485]
        );
        assert_eq!(flows(1 << 30, |_| ()), [131_072, 65_536, 131_072, 131_072]);
        let fixed = |config: &mut MapConfig| config.dynamic_size_ratio = 0.0;
        assert_eq!(flows(1 << 30, fixed), [524_288, 262_144, 524_288, 524_288]);
    }

    #[test]
    fn source_translation_has_no_more_entries_than_there_are_flows() {
        let small = |config: &mut MapConfig| (config.ct_tcp_max, config.ct_any_max) = (2048, 1024);
        assert_eq!(flows(MEMORY, small), [2048, 1024, 2048, 2048]);
    }
}
