// SPDX-License-Identifier: Apache-2.0

//! Cells around a client: metrics, the writer of the heartbeat, a store in memory.
//! The client of etcd is a cell of `skep-kvstore-etcd`.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Health, Job, JobCtx, Jobs, SpawnError};

use crate::client::{CONNECTING, Client, Connection, Driver, Status};
use crate::heartbeat;
use crate::memory::Memory;
use crate::metrics::KvstoreMetrics;
use crate::options::{ClientKind, ClientOptions, RateLimit};

/// Time between two looks at the status of a client.
const STATUS: Duration = Duration::from_secs(1);

hive::catalogue!(metrics);
hive::catalogue!(heartbeat_updater);

/// The metrics of clients: every client of a program, that of the own store and those of remote clusters, counts here.
/// Requires the metrics of limiters, [`skep_base_limiter::cell`].
pub fn metrics() -> Cell {
    Cell::module("kvstore-metrics", "Metrics of clients of key-value stores")
        .provide(KvstoreMetrics::provided)
}

/// Writes the heartbeat, which clients of this and of other clusters watch. One program of a cluster does: the operator, or
/// clustermesh-apiserver.
pub fn heartbeat_updater() -> Cell {
    Cell::module(
        "kvstore-heartbeat-updater",
        "Writes the heartbeat of the key-value store",
    )
    .run(heartbeat::start)
}

/// The client of a store in memory, with that store: for tests and for the lab. Provides [`Client`] and [`Memory`].
pub fn memory() -> Cell {
    Cell::module("kvstore-client", "Client of a key-value store in memory")
        .provide(new_memory)
        .provide(new_memory_client)
}

fn new_memory() -> Memory {
    Memory::new()
}

fn new_memory_client(
    memory: Memory,
    jobs: Jobs,
    health: Health,
    metrics: Option<Arc<KvstoreMetrics>>,
) -> Result<Client, SpawnError> {
    let mut options = ClientOptions::new("memory", ClientKind::Full);
    options.rate = RateLimit {
        qps: 0,
        bootstrap_qps: None,
        max_inflight: 0,
    };
    if let Some(metrics) = metrics {
        options.recorder = metrics;
    }
    let (client, driver) = Client::new(Arc::new(memory), options);
    spawn(&jobs, &health, &client, driver)?;
    Ok(client)
}

/// Runs the driver of a client as a job, and reports how the client is as health below `health`.
///
/// # Errors
///
/// [`SpawnError`] if the module has stopped.
pub fn spawn(jobs: &Jobs, health: &Health, client: &Client, driver: Driver) -> Result<(), SpawnError> {
    jobs.spawn(Job::once("kvstore-driver", move |cx: JobCtx| {
        let driver = driver.clone();
        async move { driver.run(cx.token).await }
    }))?;
    let (client, health) = (client.clone(), health.scope("connection"));
    jobs.spawn(Job::once("kvstore-status", move |cx: JobCtx| {
        report(cx, client.clone(), health.clone())
    }))
}

async fn report(cx: JobCtx, client: Client, health: Health) {
    let mut last = None;
    loop {
        let status = client.status();
        let text = status.to_string();
        if last.as_ref() != Some(&text) {
            report_status(&status, &health);
            last = Some(text);
        }
        if cx.until_cancelled(tokio::time::sleep(STATUS)).await.is_none() {
            return;
        }
    }
}

pub(crate) fn report_status(status: &Status, health: &Health) {
    let text = status.to_string();
    match (&status.connection, &status.failure, &status.quorum_error) {
        (_, Some(error), _) => health.degraded(text.as_str(), error),
        (Connection::Connected, None, Some(error)) => health.degraded(text.as_str(), error),
        (Connection::Connected, None, None) => match &status.refusal {
            Some(error) => health.degraded(text.as_str(), error),
            None => health.ok(text.as_str()),
        },
        // The text names the cause, too.
        (Connection::Connecting(Some(error)), None, _) => health.degraded(CONNECTING, error),
        (Connection::Connecting(None), None, _) => health.starting(text.as_str()),
        (Connection::Disabled, None, _) => health.ok(text.as_str()),
    }
}
