// SPDX-License-Identifier: Apache-2.0

//! Cell: NAT maps → table `nat-stats` and a metric. Requires: the maps, the settings of [`skep_base_settings`].
//! Provides: the read-only table.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::NodePorts;
use skep_datapath_maps::Maps;
use statedb::{Db, RwTable};

use crate::{Config, NatStat, metrics::NatMetrics, statistics::Statistics, table::new_table};

/// Counts the source ports that flows to each destination have.
pub fn cell() -> Cell {
    Cell::module("nat-stats", "Who has the source ports of SNAT")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<NatMetrics>)
        .provide_private(new_table)
        .provide(statedb::read_only::<NatStat>)
        .run(start)
        .library() // others may read the table
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    node_ports: Cfg<NodePorts>,
    maps: Arc<Maps>,
    metrics: Arc<NatMetrics>,
    db: Db,
    table: RwTable<NatStat>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        node_ports,
        maps,
        metrics,
        db,
        table,
        jobs,
    } = params;
    if config.entries == 0 {
        return Ok(());
    }
    let statistics = Arc::new(Statistics {
        maps,
        ports: node_ports.range.snat_ports(),
        rows: config.entries as usize,
        db,
        table,
        metrics,
    });
    let count = move |_: JobCtx| {
        let statistics = statistics.clone();
        async move { tokio::task::spawn_blocking(move || statistics.update()).await? }
    };
    jobs.spawn(Job::every(config.interval, "count", count).run_at_start())
}
