// SPDX-License-Identifier: Apache-2.0

//! Cells: services into maps.
//! Need: a database, [`Maglev`], sources of services. Give: [`Writer`], the three tables (read-only), [`InitWait`],
//! commands `lb/*`.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_maglev::Maglev;
use skep_metrics::ReconcilerMetricSet;
use skep_node::{LocalNodeStore, NodeAddress};
use statedb::{Db, Table};

use crate::command;
use crate::config::{Config, Families, KubeProxyReplacement};
use crate::maps::LbMaps;
use crate::maps::cell::{TestConfig, in_memory, kernel};
use crate::node::{AddressTable, NoAddresses, NodeAddresses, NodeWatcher, WatchError};
use crate::reconciler::{FrontendReconciler, InitWait, Ops, Timing};
use crate::table::Tables;
use crate::types::{Backend, Frontend, Service};
use crate::writer::{Writer, WriterSettings};

/// The load balancer with the pinned maps in the kernel.
pub fn cell() -> Cell {
    Cell::group([base(), kernel()])
}

/// The load balancer with maps in memory, for tests and for nodes without BPF.
pub fn in_memory_cell() -> Cell {
    Cell::group([base(), in_memory()])
}

/// Commands and settings for tests; add it to one of the others.
pub fn testing_cell() -> Cell {
    Cell::module("loadbalancer-testing", "Commands for tests")
        .config::<TestConfig>()
        .provide(command::testing::commands)
}

/// Settings alone: what cells without tables need to know.
pub fn config_cell() -> Cell {
    Cell::module("loadbalancer-config", "Settings of the load balancer")
        .config::<Config>()
        .config::<Families>()
        .config::<KubeProxyReplacement>()
}

fn base() -> Cell {
    Cell::group([
        config_cell(),
        writer_cell(),
        crate::reflector::cell(),
        reconciler_cell(),
    ])
}

fn writer_cell() -> Cell {
    Cell::module("loadbalancer-writer", "Tables of services frontends and backends")
        .provide(addresses)
        .provide(writer)
        .run(watch_node)
}

const RECONCILER: &str = "loadbalancer-reconciler";

fn reconciler_cell() -> Cell {
    Cell::module(RECONCILER, "Frontends into maps")
        .provide(ops)
        .provide_private(reconciler)
        .provide(init_wait)
        .provide(command::commands)
        .run(start)
}

type ReadTables = (Table<Service>, Table<Frontend>, Table<Backend>);

// Shared by writer and reconciler, which must agree.
fn addresses(table: Option<Table<NodeAddress>>) -> Arc<dyn NodeAddresses> {
    match table {
        Some(table) => Arc::new(AddressTable::new(table)),
        None => Arc::new(NoAddresses),
    }
}

fn writer(
    db: Db,
    config: Cfg<Config>,
    addresses: Arc<dyn NodeAddresses>,
    node: Option<LocalNodeStore>,
) -> Result<(Writer, ReadTables), statedb::Error> {
    let tables = Tables::new(&db)?;
    let readers = tables.readers();
    let settings = WriterSettings {
        has_topology: config.topology,
        node_ports: config.node_ports.0.clone(),
        ..WriterSettings::default()
    };
    let name = node
        .and_then(|node| node.get())
        .map(|node| node.name.clone())
        .unwrap_or_default();
    Ok((
        Writer::on_node(db, tables, settings, name.as_str(), addresses),
        readers,
    ))
}

fn watch_node(
    writer: Writer,
    addresses: Option<Table<NodeAddress>>,
    node: Option<LocalNodeStore>,
    config: Cfg<Config>,
    jobs: Jobs,
) -> Result<(), WatchError> {
    NodeWatcher::new(writer, addresses, node)?.spawn(&jobs, config.topology)?;
    Ok(())
}

fn ops(
    config: Cfg<Config>,
    families: Cfg<Families>,
    maps: Arc<dyn LbMaps>,
    maglev: Maglev,
) -> Arc<Mutex<Ops>> {
    Arc::new(Mutex::new(Ops::new(config.reconciler(&families), maps, maglev)))
}

fn reconciler(
    writer: Writer,
    ops: Arc<Mutex<Ops>>,
    config: Cfg<Config>,
    nodes: Arc<dyn NodeAddresses>,
    metrics: Option<Arc<ReconcilerMetricSet>>,
) -> Arc<FrontendReconciler> {
    let timing = Timing {
        retry_min: config.retry_min,
        retry_max: config.retry_max.max(config.retry_min),
        init_wait_timeout: config.init_wait_timeout,
    };
    let metrics = metrics.map(|set| set.for_module(RECONCILER));
    Arc::new(FrontendReconciler::new(writer, ops, nodes, timing, metrics))
}

fn init_wait(writer: Writer, reconciler: Arc<FrontendReconciler>) -> InitWait {
    InitWait::new(writer, reconciler.handle())
}

fn start(reconciler: Arc<FrontendReconciler>, jobs: Jobs) -> Result<(), SpawnError> {
    let shared = reconciler.clone();
    jobs.spawn(Job::once("start-reconciler", move |cx: JobCtx| {
        let reconciler = shared.clone();
        async move {
            tokio::select! {
                () = reconciler.start() => {}
                () = cx.cancelled() => {}
            }
        }
    }))?;
    let shared = reconciler.clone();
    jobs.spawn(Job::once("reconcile", move |cx: JobCtx| {
        let reconciler = shared.clone();
        async move { reconciler.run(&cx.token, &cx.health).await }
    }))?;
    jobs.spawn(Job::once("refresh", move |cx: JobCtx| {
        let reconciler = reconciler.clone();
        async move { reconciler.refresh(&cx.token, &cx.health).await }
    }))
}
