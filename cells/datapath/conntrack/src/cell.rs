// SPDX-License-Identifier: Apache-2.0

//! Cell: garbage collection of connection tracking and NAT.
//! Requires: the store of pinned maps, the maps, the settings of [`skep_base_settings`]. Provides: [`Conntrack`],
//! `Arc<dyn EndpointFlows>`, `Arc<dyn FlowPasses>`.

use std::{sync::Arc, time::Duration};

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Params, Retry, SpawnError};
use skep_base_settings::NodePorts;
use skep_bpf_maps::event::SIGNALS;
use skep_datapath_hooks::{EndpointFlows, FlowPasses};
use skep_datapath_maps::Maps;

use crate::{
    Config, Conntrack, ConntrackError, collectors, metrics::ConntrackMetrics, ports::SourcePorts, signals,
};

/// Pause after a pass that failed, at first.
const RETRY: Duration = Duration::from_secs(10);
/// Longest pause after passes that failed.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Time between two looks at how full maps are.
const PRESSURE: Duration = Duration::from_secs(30);

/// Removes entries of flows that have ended. The first pass comes when the hive is ready: endpoints are restored by then.
pub fn cell() -> Cell {
    module().provide(collectors::pinned)
}

/// The cell without a source of collectors.
pub(crate) fn module() -> Cell {
    Cell::module("ct-gc", "Removes expired connection-tracking and NAT entries")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<ConntrackMetrics>)
        .provide(Conntrack::new)
        .provide(flows)
        .provide(passes)
        .run(start)
        .library() // other cells remove entries of endpoints
}

fn flows(conntrack: Arc<Conntrack>) -> Arc<dyn EndpointFlows> {
    conntrack
}

fn passes(conntrack: Arc<Conntrack>) -> Arc<dyn FlowPasses> {
    conntrack
}

#[derive(Params)]
pub(crate) struct StartParams {
    conntrack: Arc<Conntrack>,
    metrics: Arc<ConntrackMetrics>,
    maps: Arc<Maps>,
    node_ports: Cfg<NodePorts>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        conntrack,
        metrics,
        maps,
        node_ports,
        jobs,
    } = params;
    let retry = || Retry::forever().backoff(Backoff::exponential(RETRY, RETRY_MAX));
    let collecting = conntrack.clone();
    jobs.spawn(
        Job::once("collect", move |cx: JobCtx| {
            let conntrack = collecting.clone();
            async move { collect(&conntrack, &cx).await }
        })
        .when_ready()
        .retry(retry()),
    )?;
    let measured = conntrack.clone();
    let measure = move |_: JobCtx| {
        let conntrack = measured.clone();
        async move { conntrack.report_pressure().await }
    };
    jobs.spawn(Job::every(PRESSURE, "report-pressure", measure))?;
    let ports = Arc::new(SourcePorts::new(maps.clone(), node_ports.range, metrics.clone()));
    let watch = move |_: JobCtx| {
        let ports = ports.clone();
        async move { tokio::task::spawn_blocking(move || ports.check()).await? }
    };
    jobs.spawn(Job::every(PRESSURE, "report-source-ports", watch).run_at_start())?;
    let Some(signals) = maps.get(SIGNALS.name) else {
        // No programs are there that send them.
        return Ok(());
    };
    jobs.spawn(
        Job::once("read-signals", move |cx: JobCtx| {
            let (conntrack, metrics) = (conntrack.clone(), metrics.clone());
            let path = signals.path().to_owned();
            async move { signals::handle(&path, &conntrack, &metrics, &cx).await }
        })
        .when_ready()
        .retry(retry()),
    )
}

/// A pass whenever one is due.
async fn collect(conntrack: &Conntrack, cx: &JobCtx) -> Result<(), ConntrackError> {
    loop {
        tokio::select! {
            () = conntrack.due() => {}
            () = cx.cancelled() => return Ok(()),
        }
        let done = conntrack.collect().await?;
        if done.maps == 0 {
            cx.health.ok("No flows are tracked");
        } else {
            let next = conntrack.interval().await;
            let (alive, deleted) = (done.alive, done.deleted);
            cx.health.ok(format!(
                "{deleted} entries deleted, {alive} are alive, next pass in {next:?}"
            ));
        }
    }
}
