// SPDX-License-Identifier: Apache-2.0

//! What the election requires of the process: a separate client, and a quick exit.

use std::sync::Arc;

use hive::{Cell, Cfg, Health, Job, JobCtx, Jobs, SpawnError};
use skep_k8s_client::remote::{ClientMetrics, Config, RemoteClient, RequestLimit, TargetError, heartbeat};
use skep_k8s_client::{Client as _, DisabledClient};
use skep_operator_leader::{ElectionClient, Lost, Process};

/// Why there is no client for the election.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    /// Address or credentials of the API server are not usable.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The job that watches over the connection cannot be started.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

hive::catalogue!(cell);

/// What the election needs of the process.
pub(crate) fn cell() -> Cell {
    Cell::module("election-client", "Kubernetes client of the election")
        .provide(client)
        .provide(process)
}

/// Requests of the election are few and must not wait for others.
const NO_LIMIT: RequestLimit = RequestLimit { qps: 0.0, burst: 0 };

fn client(
    config: Cfg<Config>,
    metrics: Arc<ClientMetrics>,
    jobs: Jobs,
    health: Health,
) -> Result<ElectionClient, ClientError> {
    let mut settings = config.settings(NO_LIMIT);
    settings.user_agent = "leader-election".to_owned();
    // The other client remembers which server works.
    settings.state_file = None;
    let client = RemoteClient::with_metrics(config.target(), settings, metrics)?;
    if !client.is_enabled() {
        return Ok(ElectionClient(Arc::new(DisabledClient)));
    }
    let beating = client.clone();
    let health = health.scope("connection");
    jobs.spawn(Job::once("heartbeat", move |cx: JobCtx| {
        let (client, health) = (beating.clone(), health.clone());
        async move { heartbeat(&client, &health, &cx).await }
    }))?;
    Ok(ElectionClient(Arc::new(client)))
}

struct ThisProcess;

impl Process for ThisProcess {
    fn end(&self, _: &Lost) {
        // Another replica may lead already. Stop hooks could still write.
        std::process::exit(hive::exit::RUN.into());
    }
}

fn process() -> Arc<dyn Process> {
    Arc::new(ThisProcess)
}
