// SPDX-License-Identifier: Apache-2.0

//! Cell: elects the leader and starts the [`scope`] of what only the leader runs.
//! Requires: a Kubernetes client, [`ElectionClient`] if another cell provides it, [`Process`], the scope.

use std::pin::pin;
use std::sync::Arc;

use hive::{
    Cell, Cfg, Health, Job, JobCtx, Jobs, Params, Scope, Shutdown, SpawnError, StartError, error_chain,
};
use rand::Rng as _;
use skep_k8s_client::Client;

use crate::config::Config;
use crate::election::{Election, ElectionError, Lost};

/// Names the scope of what only the leader runs.
pub struct Leader;

/// A client of its own for the election: requests of other cells, which are limited in rate, cannot delay a renewal.
#[derive(Clone, hive::Value)]
pub struct ElectionClient(pub Arc<dyn Client>);

/// The process that runs the election.
pub trait Process: Send + Sync {
    /// Ends the process at once, without stop hooks: another one leads, or is about to.
    fn end(&self, lost: &Lost);
}

/// Cells that only the leader runs.
#[track_caller]
#[must_use]
pub fn scope(cells: impl IntoIterator<Item = Cell>) -> Cell {
    Cell::scope::<Leader>("leader", cells)
}

/// Elects the leader.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("leader-election", "Elects the replica that leads")
        .config::<Config>()
        .run(start)
}

#[derive(Params)]
struct Candidate {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    own_client: Option<ElectionClient>,
    process: Arc<dyn Process>,
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

enum End {
    Stopping,
    Lost(Lost),
}

impl Candidate {
    async fn run(&self, cx: &JobCtx) {
        if !self.client.is_enabled() {
            // Without an API server there is no election and no other candidate.
            self.started(self.scope.start().await);
            return;
        }
        let identity = identity();
        let client = match &self.own_client {
            Some(ElectionClient(client)) => client.clone(),
            None => self.client.clone(),
        };
        let mut election = Election::new(client, self.config.settings(identity.clone()));
        if cx
            .until_cancelled(election.acquire(|news| self.follows(news)))
            .await
            .is_none()
        {
            // An attempt may have succeeded when it was dropped: do not let the others wait for it.
            self.release(&mut election).await;
            return;
        }
        tracing::info!(%identity, "Acquired leadership");
        self.health.ok(format!("`{identity}` leads"));
        match self.lead(cx, &mut election, &identity).await {
            End::Lost(lost) => {
                tracing::error!(error = %error_chain(&lost), "Leader election lost, shutting down");
                self.process.end(&lost);
                self.shutdown.fail("leader election lost", lost);
            }
            End::Stopping => self.release(&mut election).await,
        }
    }

    /// Starts the scope, and renews the lease until the end. When the program stops, it stops the scope before this job.
    async fn lead(&self, cx: &JobCtx, election: &mut Election, identity: &str) -> End {
        let report = |renewed: Result<(), &ElectionError>| match renewed {
            Ok(()) => self.health.ok(format!("`{identity}` leads")),
            Err(error) => self.failing(error),
        };
        let mut renewing = pin!(election.renew(report));
        let mut starting = pin!(self.scope.start());
        tokio::select! {
            biased;
            lost = &mut renewing => return End::Lost(lost),
            // When the program stops meanwhile, this returns with an error after all was rolled back.
            started = &mut starting => self.started(started),
        }
        tokio::select! {
            biased;
            lost = &mut renewing => return End::Lost(lost),
            () = cx.cancelled() => {}
        }
        // Only if the program began to stop while the scope started, it still runs.
        let stopping = self.scope.stop();
        tokio::select! {
            biased;
            lost = &mut renewing => return End::Lost(lost),
            stopped = stopping => if let Err(error) = stopped {
                tracing::warn!(error = %error_chain(&error), "Leader scope did not stop cleanly");
            },
        }
        End::Stopping
    }

    fn started(&self, started: Result<(), StartError>) {
        match started {
            Ok(()) | Err(StartError::Cancelled { .. } | StartError::Stopping) => {}
            Err(error) => self.shutdown.fail("the cells of the leader did not start", error),
        }
    }

    fn follows(&self, news: Result<&str, &ElectionError>) {
        match news {
            Ok("") => {}
            Ok(leader) => {
                tracing::info!(%leader, "Another replica is the leader");
                self.health.ok(format!("`{leader}` leads"));
            }
            Err(error) => self.failing(error),
        }
    }

    fn failing(&self, error: &ElectionError) {
        self.health.degraded("Lease", error);
    }

    async fn release(&self, election: &mut Election) {
        match election.release().await {
            Ok(()) => tracing::debug!("Released lease"),
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "Cannot release lease: others wait until it expires");
            }
        }
    }
}

/// Who this process is: the name of the node, and something that no other process has.
fn identity() -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut rng = rand::rng();
    let suffix: String = (0..10)
        .map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())]))
        .collect();
    let system = rustix::system::uname();
    format!("{}-{suffix}", system.nodename().to_string_lossy())
}
