// SPDX-License-Identifier: Apache-2.0

//! Cell: the load balancer's maps.
//! Provides: `Arc<LoadBalancerMaps>`, and what the owner of these maps says of them. Requires: settings, [`Maps`].

use std::sync::Arc;

use hive::{Cell, Cfg, Member};
use skep_base_settings::{AddressFamilies, MapConfig};
use skep_bpf_maps::lb::{LbMapSizes, OWNER};
use skep_datapath_maps::{MapOwner, Maps};

use super::LoadBalancerMaps;

/// The maps, wherever [`Maps`] has them.
pub fn cell() -> Cell {
    Cell::module("loadbalancer-maps", "Load-balancing maps")
        .provide(owner)
        .provide(handles)
}

fn handles(maps: Arc<Maps>) -> Arc<LoadBalancerMaps> {
    Arc::new(LoadBalancerMaps::new(&maps))
}

fn owner(config: Cfg<MapConfig>, families: Cfg<AddressFamilies>, sizes: Arc<LbMapSizes>) -> Member<MapOwner> {
    let owner = MapOwner::new(OWNER)
        .sizes(*sizes)
        .ip(families.ipv4, families.ipv6)
        .pressure_every(config.pressure_interval);
    Member(owner)
}
