// SPDX-License-Identifier: Apache-2.0

//! Jobs of names.

use std::{fs, sync::Arc, time::Duration};

use hive::JobCtx;
use jiff::Timestamp;
use skep_bpf_sys::MapError;
use skep_datapath_hooks::FlowPasses;
use skep_ipcache::{SourceGuard, Writer};
use skep_policy_maps::{EndpointPolicy, MapStates as _};
use skep_policy_repository::Repository;
use statedb::{Change, Db, Table};

use crate::{
    connections::Connections,
    metrics::{NameMetrics, ProxyMetrics},
    names::Names,
    state::SavedAnswer,
};

/// Endpoints that are restored have their policies by then.
const SETTLED: Duration = Duration::from_secs(10);

/// Follows the selectors of policies, and makes known when the names of the run before are claimed.
pub(crate) struct Selectors {
    pub(crate) names: Names,
    pub(crate) repository: Repository,
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
    pub(crate) names_metrics: Arc<NameMetrics>,
    pub(crate) proxy_metrics: Arc<ProxyMetrics>,
}

impl Selectors {
    pub(crate) async fn follow(self: &Arc<Self>, cx: &JobCtx) -> Result<(), statedb::Error> {
        let mut changes = self.repository.changes();
        self.preload();
        cx.health.starting("Waiting for restored endpoints and policies");
        self.names.wait_restored().await;
        loop {
            changes.mark_unchanged();
            if self.repository.name_selectors().is_some() {
                break;
            }
            if changes.changed().await.is_err() {
                return Ok(());
            }
        }
        self.sync().await;
        self.deliver()?;
        let settled = tokio::time::sleep(SETTLED);
        tokio::pin!(settled);
        let mut is_settled = false;
        loop {
            changes.mark_unchanged();
            self.sync().await;
            let selectors = self.names.selectors().len();
            self.names_metrics.selectors.set(selectors as f64);
            let redirects = self.repository.dns_redirects().len();
            self.proxy_metrics.redirects.with(["dns"]).set(redirects as f64);
            cx.health
                .ok(format!("{selectors} selectors, {redirects} redirects"));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
                () = &mut settled, if !is_settled => {
                    is_settled = true;
                    self.names.complete();
                }
            }
        }
    }

    /// What the run before knew is claimed.
    fn deliver(&self) -> Result<(), statedb::Error> {
        let mut txn = self.ipcache.write();
        self.guard.done(&mut txn)?;
        txn.commit();
        Ok(())
    }

    /// Off the workers: names are matched, and a transaction is waited for.
    async fn sync(&self) {
        let names = self.names.clone();
        let done = tokio::task::spawn_blocking(move || names.sync_selectors()).await;
        if let Err(error) = done {
            tracing::error!(%error, "Failed to follow FQDN selectors");
        }
    }

    fn preload(&self) {
        let path = &self.names.config().pre_cache;
        if path.as_os_str().is_empty() {
            return;
        }
        let answers = fs::read(path)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                serde_json::from_slice::<Vec<SavedAnswer>>(&text).map_err(|error| error.to_string())
            });
        match answers {
            Ok(answers) => self.names.preload(&answers),
            Err(error) => {
                tracing::error!(file = %path.display(), error, "Failed to load the file of tofqdns-pre-cache");
            }
        }
    }
}

/// Garbage collection, once.
pub(crate) fn collect(names: &Names, metrics: &NameMetrics, cx: &JobCtx) {
    let collected = names.collect(Timestamp::now());
    metrics.deletions.add(collected.names.len() as f64);
    metrics.names.clear();
    metrics.addresses.clear();
    metrics.zombies.clear();
    let sizes = names.sizes();
    let mut total = 0;
    for size in &sizes {
        let endpoint = size.endpoint.to_string();
        metrics.names.with([endpoint.as_str()]).set(size.names as f64);
        metrics
            .addresses
            .with([endpoint.as_str()])
            .set(size.addresses as f64);
        metrics.zombies.with([endpoint.as_str()]).set(size.zombies as f64);
        total += size.names;
    }
    if !collected.names.is_empty() {
        let shown: Vec<&str> = collected.names.iter().take(20).map(|name| &**name).collect();
        tracing::info!(
            names = collected.names.len(),
            shown = shown.join(", "),
            "FQDN garbage collector work deleted entries"
        );
    }
    cx.health.ok(format!("{total} names"));
}

/// Follows passes of conntrack's garbage collection.
pub(crate) struct Passes {
    pub(crate) names: Names,
    pub(crate) passes: Arc<dyn FlowPasses>,
    pub(crate) connections: Arc<Connections>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error("conntrack entries are not read")]
    Map(#[from] MapError),
    #[error("thread ended")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl Passes {
    pub(crate) async fn follow(self: &Arc<Self>, cx: &JobCtx) -> Result<(), PassError> {
        let mut passes = self.passes.passes();
        loop {
            let pass = *passes.borrow_and_update();
            if let Some(pass) = pass {
                let zombies = self.names.zombies();
                let connections = self.connections.clone();
                let alive = match zombies.is_empty() {
                    true => Vec::new(),
                    false => tokio::task::spawn_blocking(move || connections.alive(&zombies)).await??,
                };
                let time = |time| Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
                cx.health.ok(format!("{} addresses are in use", alive.len()));
                self.names.passed(time(pass.start), time(pass.next), alive);
            }
            if passes.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Follows endpoints: names of those that are gone are removed.
pub(crate) struct Removed {
    pub(crate) names: Names,
    pub(crate) db: Db,
    pub(crate) endpoints: Table<EndpointPolicy>,
}

impl Removed {
    pub(crate) async fn follow(self: &Arc<Self>, cx: &JobCtx) -> Result<(), std::convert::Infallible> {
        let mut changes = self.endpoints.follow(&self.db);
        cx.health.ok("Running");
        loop {
            let watch = {
                let snapshot = self.db.read();
                let (round, watch) = changes.next_watch(&snapshot);
                for change in round {
                    if let Change::Delete { object, .. } = change {
                        self.names.remove(object.endpoint);
                    }
                }
                watch
            };
            watch.closed().await;
        }
    }
}
