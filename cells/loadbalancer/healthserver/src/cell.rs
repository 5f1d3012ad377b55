// SPDX-License-Identifier: Apache-2.0

//! Cell: answers health checks of external load balancers on node ports.
//! Requires: the load balancer's [`Writer`]. Provides nothing; feature `testing` adds script commands.

use std::sync::Arc;

use hive::{BoxError, Cell, Cfg, Job, JobCtx, Jobs};
use skep_base_settings::KubeProxyReplacement;
use skep_loadbalancer_model::Writer;
use statedb::Db;

use crate::config::{Config, ListenAddress};
use crate::control::{Control, INITIALIZER, Ports};

/// Runs a health-check server for every service that has a `healthCheckNodePort`.
pub fn cell() -> Cell {
    Cell::module("loadbalancer-healthserver", "Health-check servers for services")
        .config::<Config>()
        .run(start)
}

/// Script commands `http/get` and `svc/set-proxy-redirect`.
#[cfg(feature = "testing")]
pub fn testing() -> Cell {
    Cell::module("healthserver-testing", "Commands for health-check tests").provide(crate::command::commands)
}

fn start(
    config: Cfg<Config>,
    replacement: Cfg<KubeProxyReplacement>,
    writer: Writer,
    db: Db,
    listen_on: Option<ListenAddress>,
    jobs: Jobs,
) -> Result<(), BoxError> {
    if !config.enabled || !replacement.enabled {
        return Ok(());
    }
    // The maps are pruned, and ids of an earlier run dropped, only when frontends of virtual addresses are known, too.
    let initializer = match config.serve_virtual {
        true => Some(writer.register_initializer(INITIALIZER)?),
        false => None,
    };
    let control = Arc::new(Control {
        db,
        writer,
        jobs: jobs.clone(),
        listen_on: listen_on.map(|address| address.0),
        ports: Arc::new(Ports::default()),
        initializer,
    });
    jobs.spawn(Job::once("control-loop", move |cx: JobCtx| {
        control.clone().run(cx)
    }))?;
    Ok(())
}
