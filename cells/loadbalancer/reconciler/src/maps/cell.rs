// SPDX-License-Identifier: Apache-2.0

//! Cell: the load balancer's maps.
//! Provides: `Arc<dyn LbMaps>`, and what the owner of these maps says of them. Requires: settings, [`Maps`].

use std::sync::Arc;

use hive::{Cell, Cfg, Member};
use skep_bpf_maps::lb::{DEFAULT_REVERSE_SK, LbMapSizes, OWNER};
use skep_datapath_maps::{MapOwner, Maps};
use skep_loadbalancer_model::{Config, Families};
use skep_maglev::Maglev;

use super::bpf::BpfMaps;
use super::{LbMaps, map_sizes};

/// The maps, wherever [`Maps`] has them.
pub fn cell() -> Cell {
    Cell::module("loadbalancer-maps", "Load-balancing maps")
        .provide(owner)
        .provide(handles)
}

fn handles(maps: Arc<Maps>) -> Arc<dyn LbMaps> {
    Arc::new(BpfMaps::new(&maps))
}

fn owner(
    config: Cfg<Config>,
    families: Cfg<Families>,
    maglev: Maglev,
    shared_sizes: Option<Arc<LbMapSizes>>,
) -> Member<MapOwner> {
    // The programs use these maps, too: both must be made with the same sizes.
    let sizes = shared_sizes.as_deref().copied().unwrap_or_else(|| {
        let table = maglev.table_size().get();
        map_sizes(&config, table, DEFAULT_REVERSE_SK)
    });
    let owner = MapOwner::new(OWNER)
        .sizes(sizes)
        .ip(families.ipv4, families.ipv6)
        .pressure_every(config.pressure_interval);
    Member(owner)
}
