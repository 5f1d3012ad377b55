// SPDX-License-Identifier: Apache-2.0

//! Desired neighbours: next hops of addresses that the datapath forwards to.

mod calculator;
mod forwardable;
mod reconciler;
mod refresher;
mod row;

use std::time::Duration;

use hive::{Cfg, Jobs, Params};
use skep_base_metrics::{Counter, Metrics};
use skep_node_local::{Device, Neighbor, Route};
use statedb::{Db, RwTable, Table};
use std::sync::Arc;

use calculator::Calculator;
pub(crate) use forwardable::new_table as new_forwardable;
pub use forwardable::{ForwardableIp, ForwardableIpOwner, ForwardableIps, OwnerKind};
use refresher::Refresher;
pub use row::DesiredNeighbor;
pub(crate) use row::new_table as new_desired;

/// Neighbours of next hops.
#[derive(Debug, Clone, hive::Config)]
pub struct NeighborConfig {
    /// Discover the hardware addresses of nodes and backends, or of the gateways to them.
    #[config(default = false)]
    pub enable_l2_neigh_discovery: bool,
    /// The kernel keeps discovered neighbours up to date by itself (Linux 5.16).
    #[config(default = false, hidden)]
    pub use_kernel_managed_arp_ping: bool,
}

/// Shortest time between two computations of `desired-neighbors`.
#[derive(Debug, Clone, Copy)]
pub struct CalculatorInterval(pub Duration);

impl hive::Value for CalculatorInterval {}

#[derive(Debug, Metrics)]
#[metrics(prefix = "neighbor")]
pub(crate) struct NeighborMetrics {
    /// Neighbours that were probed again, because they were stale or deleted.
    #[metric(name = "entry_refresh_count")]
    refreshes: Counter,
}

#[derive(Params)]
pub(crate) struct NeighborParams {
    db: Db,
    config: Cfg<NeighborConfig>,
    interval: CalculatorInterval,
    metrics: Arc<NeighborMetrics>,
    forwardable: Table<ForwardableIp>,
    desired: RwTable<DesiredNeighbor>,
    devices: Table<Device>,
    routes: Table<Route>,
    kernel: Table<Neighbor>,
    jobs: Jobs,
}

/// Registers calculator, reconciler and refresher, if neighbours are to be discovered.
pub(crate) fn start(params: NeighborParams) -> Result<(), hive::BoxError> {
    let NeighborParams {
        db,
        config,
        interval,
        metrics,
        forwardable,
        desired,
        devices,
        routes,
        kernel,
        jobs,
    } = params;
    if !config.enable_l2_neigh_discovery {
        return Ok(());
    }
    let mut txn = db.write(&[&desired]);
    let initializer = desired.register_initializer(&mut txn, "calculator")?;
    txn.commit();
    reconciler::spawn(&db, desired.clone(), config.use_kernel_managed_arp_ping, &jobs)?;
    let calculator = Calculator {
        db: db.clone(),
        interval: interval.0,
        forwardable,
        desired: desired.clone(),
        devices,
        routes,
        initializer,
    };
    jobs.keep("desired-neighbor-calculator", calculator, Calculator::run)?;
    let refresher = Refresher {
        db,
        desired,
        kernel,
        metrics,
    };
    Ok(jobs.keep("desired-neighbor-refresher", refresher, Refresher::run)?)
}
