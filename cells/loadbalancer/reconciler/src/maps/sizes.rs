// SPDX-License-Identifier: Apache-2.0

//! Sizes of the maps by the settings.

use skep_bpf_maps::lb::{DEFAULT_LB_MAP_MAX, LbMapSizes};
use skep_loadbalancer_model::Config;

/// Sizes of the maps, for Maglev tables of a size and sockets translated back as the node's memory allows.
pub fn map_sizes(config: &Config, maglev_table: u32, reverse_sk: u32) -> LbMapSizes {
    let max = u32::try_from(config.map_max).unwrap_or(DEFAULT_LB_MAP_MAX);
    let limit = |own: i64| u32::try_from(own).ok().filter(|own| *own > 0).unwrap_or(max);
    LbMapSizes {
        services: limit(config.service_map_max),
        backends: limit(config.backend_map_max),
        reverse_nat: limit(config.rev_nat_map_max),
        affinity: limit(config.affinity_map_max),
        source_range: limit(config.source_range_map_max),
        maglev: limit(config.maglev_map_max),
        maglev_table,
        reverse_sk: u32::try_from(config.sock_rev_map_max)
            .ok()
            .filter(|own| *own > 0)
            .unwrap_or(reverse_sk),
        preallocate: config.preallocate,
        ..LbMapSizes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_cilium() {
        let config = <Config as hive::Config>::defaults().unwrap();

        let sizes = map_sizes(&config, 16381, 262_144);

        assert_eq!(
            (sizes.services, sizes.maglev, sizes.reverse_sk),
            (65536, 65536, 262_144)
        );
    }

    #[test]
    fn limits_of_single_maps_win() {
        let config = Config {
            map_max: 100,
            service_map_max: 7,
            ..<Config as hive::Config>::defaults().unwrap()
        };

        let sizes = map_sizes(&config, 251, 1024);

        assert_eq!(
            (sizes.services, sizes.backends, sizes.maglev_table),
            (7, 100, 251)
        );
    }
}
