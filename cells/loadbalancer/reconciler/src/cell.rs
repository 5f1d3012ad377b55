// SPDX-License-Identifier: Apache-2.0

//! Cells: frontends into maps.
//! Requires: tables and settings of the model, [`Maglev`]. Provides: [`InitWait`], commands `lb/*`.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_base_metrics::ReconcilerMetricSet;
use skep_base_settings::{AddressFamilies, BalancingConfig, ForwardingConfig, ServiceIpamConfig};
use skep_datapath_maps::PressureTrigger;
use skep_loadbalancer_maglev::Maglev;
use skep_loadbalancer_model::{Config, Writer};

use crate::command;
use crate::maps::LoadBalancerMaps;
use crate::{FrontendReconciler, InitWait, Ops, Settings, Timing};

/// The reconciler and its maps, which are in the kernel or in memory as [`Maps`](skep_datapath_maps::Maps) are.
pub fn cell() -> Cell {
    Cell::group([reconciler_cell(), crate::maps::cell::cell()])
}

/// A load balancer in memory, without sources: the database, settings, tables, Maglev and this reconciler with maps in memory.
pub fn in_memory() -> Cell {
    Cell::group([
        statedb::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_maglev::cell(),
        skep_loadbalancer_model::cell(),
        skep_datapath_maps::in_memory_cell(),
        cell(),
    ])
}

const RECONCILER: &str = "loadbalancer-reconciler";

fn reconciler_cell() -> Cell {
    Cell::module(RECONCILER, "Frontends into maps")
        .provide(ops)
        .provide_private(reconciler)
        .provide(init_wait)
        .provide(command::commands)
        .run(start)
        .run(count_first_state)
}

fn ops(
    config: Cfg<Config>,
    balancing: Cfg<BalancingConfig>,
    ipam: Cfg<ServiceIpamConfig>,
    families: Cfg<AddressFamilies>,
    forwarding: Cfg<ForwardingConfig>,
    maps: Arc<LoadBalancerMaps>,
    maglev: Maglev,
) -> Arc<Mutex<Ops>> {
    Arc::new(Mutex::new(Ops::new(
        Settings::new(&config, &balancing, &ipam, &families, &forwarding),
        maps,
        maglev,
    )))
}

fn reconciler(
    writer: Writer,
    ops: Arc<Mutex<Ops>>,
    config: Cfg<Config>,
    metrics: Option<Arc<ReconcilerMetricSet>>,
) -> Arc<FrontendReconciler> {
    let timing = Timing {
        retry_min: config.retry_min,
        retry_max: config.retry_max.max(config.retry_min),
        init_wait_timeout: config.init_wait_timeout,
    };
    let metrics = metrics.map(|set| set.for_module(RECONCILER));
    Arc::new(FrontendReconciler::new(writer, ops, timing, metrics))
}

fn init_wait(writer: Writer, reconciler: Arc<FrontendReconciler>) -> InitWait {
    InitWait::new(writer, reconciler.handle())
}

fn start(reconciler: Arc<FrontendReconciler>, jobs: Jobs) -> Result<(), SpawnError> {
    jobs.keep("start-reconciler", reconciler.clone(), start_when_initialized)?;
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

async fn start_when_initialized(reconciler: &FrontendReconciler, _: &JobCtx) {
    reconciler.start().await;
}

/// How full maps are is counted every few minutes; the services of the start are written after the first time.
fn count_first_state(wait: InitWait, count: Option<PressureTrigger>, jobs: Jobs) -> Result<(), SpawnError> {
    let Some(count) = count else {
        return Ok(());
    };
    jobs.keep("count-first-state", (wait, count), count_when_written)
}

async fn count_when_written((wait, count): &(InitWait, PressureTrigger), _: &JobCtx) {
    wait.wait().await;
    count.trigger();
}

#[cfg(test)]
mod tests;
