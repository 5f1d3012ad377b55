// SPDX-License-Identifier: Apache-2.0

//! Cells: services into maps.
//! Need: a database, [`Maglev`], sources of services. Give: [`Writer`], the three tables (read-only), [`InitWait`],
//! commands `lb/*`.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_maglev::Maglev;
use statedb::{Db, Table};

use crate::command;
use crate::config::{Config, Families, KubeProxyReplacement};
use crate::maps::LbMaps;
use crate::maps::cell::{TestConfig, in_memory, kernel};
use crate::node::{NoAddresses, NodeAddresses};
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
    Cell::group([config_cell(), writer_cell(), crate::reflector::cell(), reconciler_cell()])
}

fn writer_cell() -> Cell {
    Cell::module("loadbalancer-writer", "Tables of services frontends and backends").provide(writer)
}

fn reconciler_cell() -> Cell {
    Cell::module("loadbalancer-reconciler", "Frontends into maps")
        .provide(ops)
        .provide_private(reconciler)
        .provide(init_wait)
        .provide(command::commands)
        .run(start)
}

type ReadTables = (Table<Service>, Table<Frontend>, Table<Backend>);

fn writer(db: Db, config: Cfg<Config>) -> Result<(Writer, ReadTables), statedb::Error> {
    let tables = Tables::new(&db)?;
    let readers = tables.readers();
    let settings = WriterSettings {
        has_topology: config.topology,
        node_ports: config.node_ports.0.clone(),
        ..WriterSettings::default()
    };
    Ok((Writer::new(db, tables, settings), readers))
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
    nodes: Option<Arc<dyn NodeAddresses>>,
) -> Arc<FrontendReconciler> {
    let timing = Timing {
        retry_min: config.retry_min,
        retry_max: config.retry_max,
        init_wait_timeout: config.init_wait_timeout,
    };
    let nodes = nodes.unwrap_or_else(|| Arc::new(NoAddresses));
    Arc::new(FrontendReconciler::new(writer, ops, nodes, timing))
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
