// SPDX-License-Identifier: Apache-2.0

//! Cell: rates of pods.
//! Requires: the settings of [`skep_base_settings`], the maps, [`Endpoints`], table `devices`. Provides: [`RateSwitch`], the part `bandwidth-manager` of the status.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Member, Params, SpawnError};
use skep_base_api::StatusProbe;
use skep_base_settings::{AttachConfig, BandwidthConfig, KernelConfig};
use skep_bpf_maps::throttle::{OWNER, THROTTLE};
use skep_datapath_hooks::RateSwitch;
use skep_datapath_maps::{MapOwner, Maps};
use skep_endpoint::Endpoints;
use skep_node_local::Device;
use statedb::{
    Db, RwTable, Table,
    reconciler::{Config, Reconciler},
};

use crate::{
    ConfigError, DesiredQdisc, Rate, kernel,
    manager::{Manager, Probe},
    qdiscs::{self, KernelQdiscs, QdiscOps},
    rates::{self, RateFollower, RateOps},
};

/// Rates of pods.
pub fn cell() -> Cell {
    Cell::module("bandwidth-manager", "Rates of pods")
        .provide(|| Arc::new(RateSwitch::default()))
        .provide_private(qdiscs::new_table)
        .provide_private(rates::new_table)
        .provide(map_owner)
        .provide(status)
        .run(start)
}

/// The map exists only if the setting is on.
fn map_owner(config: Cfg<BandwidthConfig>) -> Member<MapOwner> {
    Member(MapOwner::new(OWNER).ip(config.enabled, config.enabled))
}

fn status(
    config: Cfg<BandwidthConfig>,
    switch: Arc<RateSwitch>,
    devices: Table<Device>,
    db: Db,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Probe {
        config,
        switch,
        devices,
        db,
    }))
}

/// Why the cell does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// Settings that exclude each other, or the kernel.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The module has stopped.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<BandwidthConfig>,
    attach: Cfg<AttachConfig>,
    kernel: Cfg<KernelConfig>,
    maps: Arc<Maps>,
    endpoints: Endpoints,
    switch: Arc<RateSwitch>,
    devices: Table<Device>,
    qdiscs: RwTable<DesiredQdisc>,
    rates: RwTable<Rate>,
    db: Db,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        attach,
        kernel,
        maps,
        endpoints,
        switch,
        devices,
        qdiscs,
        rates,
        db,
        jobs,
    } = params;
    if !config.enabled {
        return Ok(());
    }
    kernel::check(&config, attach.enable_host_legacy_routing)?;
    let settings = |name: &str, blocking| Config {
        name: Some(name.to_owned()),
        blocking,
        ..Config::default()
    };
    let ops = QdiscOps(Arc::new(KernelQdiscs));
    let settings_of_qdiscs = settings("qdiscs", true);
    Reconciler::new(&db, qdiscs.clone(), DesiredQdisc::STATUS, ops, settings_of_qdiscs).spawn(&jobs)?;
    let ops = RateOps {
        map: maps.handle(&THROTTLE),
    };
    // What programs write into the map is not to be reset.
    let settings_of_rates = Config {
        refresh_interval: None,
        ..settings("edts", false)
    };
    Reconciler::new(&db, rates.clone(), Rate::STATUS, ops, settings_of_rates).spawn(&jobs)?;

    let follower = RateFollower::new(endpoints, db.clone(), rates, switch.clone())?;
    jobs.keep("follow-endpoints", follower.clone(), RateFollower::follow)?;
    let manager = Manager {
        config,
        sysctl: kernel.sysctl(),
        switch,
        devices,
        qdiscs,
        rates: follower,
        db,
    };
    jobs.keep("derive-desired-qdiscs", manager, Manager::follow)?;
    Ok(())
}
