// SPDX-License-Identifier: Apache-2.0

//! Cell: addresses of backends as forwardable addresses, whose next hops are discovered (`enable-l2-neigh-discovery`).
//! Requires: the tables of the model, `ForwardableIps`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use hive::{BoxError, Cell, Cfg, JobCtx, Jobs};
use skep_datapath_network::{ForwardableIps, NeighborConfig, OwnerKind};
use skep_loadbalancer_model::Writer;
use statedb::InitGuard;

/// Changes within this time are written at once.
const SETTLE: Duration = Duration::from_millis(500);

/// Keeps the addresses of backends forwardable.
pub fn cell() -> Cell {
    Cell::module(
        "backend-neighbor-sync",
        "Neighbours by which backends are reached",
    )
    .run(start)
}

hive::catalogue!(cell);

struct BackendAddresses {
    writer: Writer,
    ips: ForwardableIps,
    guard: InitGuard,
}

fn start(
    config: Cfg<NeighborConfig>,
    writer: Writer,
    ips: ForwardableIps,
    jobs: Jobs,
) -> Result<(), BoxError> {
    if !config.enable_l2_neigh_discovery {
        return Ok(());
    }
    let guard = ips.register_initializer("backends")?;
    let work = BackendAddresses { writer, ips, guard };
    Ok(jobs.keep("backend-neighbors", work, BackendAddresses::run)?)
}

impl BackendAddresses {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let table = self.writer.backends();
        loop {
            let snapshot = self.writer.db().read();
            let (is_complete, complete) = table.initialized_watch(&snapshot);
            let changed = table.table_watch(&snapshot);
            let mut wanted: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
            for backend in table.all(&snapshot) {
                let address = backend.params.address.ip();
                wanted
                    .entry(address)
                    .or_default()
                    .insert(backend.service.to_string());
            }
            drop(snapshot);
            self.ips.replace(OwnerKind::Service, &wanted)?;
            if is_complete {
                self.ips.initialized(&self.guard)?;
            }
            cx.health.ok(format!("{} addresses of backends", wanted.len()));
            tokio::select! {
                () = complete.closed(), if !is_complete => {}
                () = changed.closed() => {}
            }
            tokio::time::sleep(SETTLE).await;
        }
    }
}
