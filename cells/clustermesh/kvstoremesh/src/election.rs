// SPDX-License-Identifier: Apache-2.0

//! Cell: elects the replica that copies, by a lock of the key-value store, and starts what the leader does.
//! Requires: [`Client`], [`Readiness`], metrics, the scope of the leader.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Health, Job, JobCtx, Jobs, Params, Scope, Shutdown, SpawnError, StartError, error_chain};
use skep_kvstore_client::{Client, Error, Event, Lock};
use tokio::time::timeout;

use crate::cell::Leader;
use crate::metrics::KvstoreMeshMetrics;
use crate::ready::Readiness;

/// What is locked by the leader.
const LOCK: &str = "cilium/kvstoremesh-lock";
/// How long the first attempt takes. Then another replica leads.
const FIRST: Duration = Duration::from_secs(10);
/// Pause after an attempt that failed.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The lease of the lock has ended, because the store could not be reached: another replica may lead.
    #[error("lock `{key}` is lost")]
    Lost { key: String },
}

/// Elects the leader.
pub fn cell() -> Cell {
    Cell::module(
        "kvstoremesh-election",
        "Elects the replica that copies remote clusters",
    )
    .run(start)
}

#[derive(Params)]
struct Candidate {
    client: Client,
    readiness: Arc<Readiness>,
    metrics: Arc<KvstoreMeshMetrics>,
    scope: Scope<Leader>,
    shutdown: Shutdown,
    health: Health,
}

fn start(candidate: Candidate, jobs: Jobs) -> Result<(), SpawnError> {
    let candidate = Arc::new(candidate);
    jobs.spawn(Job::once("elect", move |cx: JobCtx| {
        let candidate = candidate.clone();
        async move { candidate.run(&cx).await }
    }))
}

impl Candidate {
    async fn run(&self, cx: &JobCtx) {
        self.leads(false);
        let Some(lock) = cx.until_cancelled(self.acquire()).await else {
            return;
        };
        tracing::info!(lock = lock.key(), "Acquired leadership");
        self.health.ok("Leading");
        self.leads(true);
        tokio::select! {
            error = self.lead(&lock) => {
                tracing::error!(error = %error_chain(&error), "Leader election lost, shutting down");
                self.shutdown.fail("leader election lost", error);
            }
            () = cx.cancelled() => {}
        }
        if let Err(error) = self.scope.stop().await {
            tracing::warn!(error = %error_chain(&error), "Leader scope did not stop cleanly");
        }
        self.leads(false);
        if let Err(error) = lock.unlock().await {
            tracing::debug!(error = %error_chain(&error), "Unable to release leader lock");
        }
    }

    /// Waits for the lock. While another replica holds it, this one is ready.
    async fn acquire(&self) -> Lock {
        self.client.wait_connected().await;
        let mut patience = FIRST;
        loop {
            match timeout(patience, self.client.lock(LOCK)).await {
                Ok(Ok(lock)) => return lock,
                Err(_) | Ok(Err(Error::LockTimeout { .. })) => {
                    if self.is_held().await {
                        if !self.readiness.is_ready() {
                            tracing::info!(lock = LOCK, "Another replica is the leader");
                        }
                        self.readiness.set();
                        self.health.ok("Following");
                    }
                }
                Ok(Err(error)) => {
                    // The report is logged, with the error.
                    self.health
                        .degraded("Unable to take the lock of the leader, retrying", &error);
                    tokio::time::sleep(RETRY).await;
                }
            }
            patience = Duration::MAX;
        }
    }

    /// Whether a replica holds the lock: not that the store cannot be reached.
    async fn is_held(&self) -> bool {
        let listed = timeout(FIRST, self.client.list(&format!("{LOCK}/"))).await;
        matches!(listed, Ok(Ok(listing)) if !listing.items.is_empty())
    }

    /// Leads until the lock is lost.
    async fn lead(&self, lock: &Lock) -> ElectionError {
        let starting = async {
            match self.scope.start().await {
                Ok(()) | Err(StartError::Cancelled { .. } | StartError::Stopping) => {}
                Err(error) => self.shutdown.fail("the cells of the leader did not start", error),
            }
            std::future::pending().await
        };
        tokio::select! {
            () = lost(&self.client, lock) => ElectionError::Lost { key: lock.key().to_owned() },
            error = starting => error,
        }
    }

    fn leads(&self, leads: bool) {
        self.metrics
            .leads
            .with(["kvstoremesh"])
            .set(f64::from(u8::from(leads)));
    }
}

/// Returns when the key of a lock does not exist any more.
async fn lost(client: &Client, lock: &Lock) {
    let mut watcher = client.list_and_watch(lock.key());
    let mut is_held = false;
    loop {
        match watcher.next().await {
            Event::Create(item) | Event::Modify(item) => is_held |= &*item.key == lock.key(),
            Event::Delete(key) if &*key == lock.key() => return,
            Event::ListDone if !is_held => return,
            Event::Delete(_) | Event::ListDone => {}
        }
    }
}
