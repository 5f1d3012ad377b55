// SPDX-License-Identifier: Apache-2.0

//! Cell: reads events and serves them.
//! Requires: the maps. Provides: [`Monitor`], which takes events of the agent.

use std::{path::PathBuf, sync::Arc, time::Duration};

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Params, Retry, SpawnError};
use jiff::Timestamp;
use skep_bpf_maps::event::EVENTS;
use skep_datapath_maps::Maps;
use skep_datapath_monitor_events::agent::{AgentNotify, notification};

use crate::{Config, Monitor, metrics::MonitorMetrics, ring, server};

/// Pause before rings are opened again, or the socket.
const RETRY: Duration = Duration::from_secs(5);

/// The monitor: events of programs and of the agent on a unix socket.
pub fn cell() -> Cell {
    Cell::module("monitor", "Events of programs and of the agent")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<MonitorMetrics>)
        .provide(Monitor::new)
        .run(start)
        .library() // other cells send events of the agent
}

#[derive(Params)]
pub(crate) struct StartParams {
    config: Cfg<Config>,
    maps: Arc<Maps>,
    monitor: Arc<Monitor>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        maps,
        monitor,
        jobs,
    } = params;
    if !config.enabled {
        return Ok(());
    }
    let retry = || Retry::forever().backoff(Backoff::constant(RETRY));
    let path = move || {
        let map = maps.get(EVENTS.name);
        map.map_or_else(|| PathBuf::from(EVENTS.name), |map| map.path().to_owned())
    };
    let (rings, find) = (monitor.clone(), path.clone());
    jobs.spawn(
        Job::once("read-rings", move |cx: JobCtx| {
            let (monitor, path) = (rings.clone(), find());
            async move { ring::read(&path, &monitor, &cx).await }
        })
        .retry(retry()),
    )?;
    let served = monitor.clone();
    jobs.spawn(
        Job::once("listener", move |cx: JobCtx| {
            let (config, monitor, map) = (config.clone(), served.clone(), path());
            async move { server::serve(&config, map, monitor, cx).await }
        })
        .retry(retry()),
    )?;
    let started = Job::once("report-start", move |_: JobCtx| {
        let monitor = monitor.clone();
        async move { monitor.notify(&agent_started()) }
    });
    jobs.spawn(started.when_ready())
}

fn agent_started() -> AgentNotify {
    AgentNotify {
        kind: notification::AGENT_STARTED,
        text: serde_json::json!({ "time": Timestamp::now().to_string() }).to_string(),
    }
}
