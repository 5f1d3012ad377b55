// SPDX-License-Identifier: Apache-2.0

//! Cell: policies of endpoints into their maps.
//! Requires: the maps; optionally `Arc<dyn MapStates>`, without which every policy allows everything.
//! Provides: [`PolicyMaps`], read-only table `policy-maps`.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Member, SpawnError};
use skep_bpf_maps::policy;
use skep_datapath_maps::{MapOwner, Maps};
use statedb::{Db, Table};

use crate::{AllowAll, Config, EndpointPolicy, MapStates, PolicyMaps, PolicyReconciler};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("policy-maps", "Policies of endpoints in maps")
        .config::<Config>()
        .provide_private(parts)
        .provide(policies)
        .provide(table)
        .provide(owner)
        .run(start)
        .library() // endpoints request their policies
}

struct Parts {
    policies: PolicyMaps,
    reconciler: PolicyReconciler,
}

fn parts(
    db: Db,
    maps: Arc<Maps>,
    source: Option<Arc<dyn MapStates>>,
    config: Cfg<Config>,
) -> Result<Arc<Parts>, statedb::Error> {
    let source = source.unwrap_or_else(|| Arc::new(AllowAll::default()));
    let (policies, reconciler) = PolicyMaps::new(db, &maps, source, &config, |timing| timing)?;
    Ok(Arc::new(Parts { policies, reconciler }))
}

fn policies(parts: Arc<Parts>) -> PolicyMaps {
    parts.policies.clone()
}

fn table(policies: PolicyMaps) -> Table<EndpointPolicy> {
    policies.table()
}

fn owner() -> Member<MapOwner> {
    Member(MapOwner::new(policy::OWNER))
}

fn start(parts: Arc<Parts>, jobs: Jobs) -> Result<(), SpawnError> {
    let shared = parts.clone();
    jobs.spawn(Job::once("reconcile", move |cx: JobCtx| {
        let parts = shared.clone();
        async move { parts.reconciler.run(&cx.token, &cx.health).await }
    }))?;
    let shared = parts.clone();
    jobs.spawn(Job::once("refresh", move |cx: JobCtx| {
        let parts = shared.clone();
        async move { parts.reconciler.refresh(&cx.token, &cx.health).await }
    }))?;
    jobs.keep("follow-desired", parts, follow)
}

/// Keeps desired policies as the source says.
async fn follow(parts: &Parts, cx: &JobCtx) -> Result<(), statedb::Error> {
    let mut changes = parts.policies.source.changes();
    cx.health.ok("Running");
    loop {
        changes.mark_unchanged();
        parts.policies.update()?;
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
}
