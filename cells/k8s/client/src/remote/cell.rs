// SPDX-License-Identifier: Apache-2.0

//! Cell: the client of the cluster's API server.
//! Provides: `Arc<dyn Client>`, disabled when no cluster is configured, and `Arc<ClientMetrics>`. Start waits until the
//! server answers.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Health, Hook, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError};

use super::config::{Config, LimitConfig, OperatorLimitConfig, RequestLimit};
use super::connection::RemoteClient;
use super::metrics::ClientMetrics;
use super::target::TargetError;
use crate::client::{Client, DisabledClient};

/// How long start waits for a server.
const START: Duration = Duration::from_secs(60);

/// Time between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// Time between probes of a server that is lost.
const CALM: Duration = Duration::from_secs(1);

/// Why the client cannot be built.
#[derive(Debug, thiserror::Error)]
enum CellError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// The client of the cluster's API server.
pub fn cell() -> Cell {
    Cell::module("k8s-client", "Kubernetes client")
        .config::<Config>()
        .config::<LimitConfig>()
        .provide_private(LimitConfig::limit)
        .provide(skep_base_metrics::provided::<ClientMetrics>)
        .provide(new_client)
}

/// As [`cell`], with the limits of an operator: `operator-k8s-client-qps`, `operator-k8s-client-burst`.
pub fn operator_cell() -> Cell {
    Cell::module("operator-k8s-client", "Kubernetes client of the operator")
        .config::<Config>()
        .config::<OperatorLimitConfig>()
        .provide_private(OperatorLimitConfig::limit)
        .provide(skep_base_metrics::provided::<ClientMetrics>)
        .provide(new_client)
}

fn new_client(
    config: Cfg<Config>,
    limit: RequestLimit,
    metrics: Arc<ClientMetrics>,
    lifecycle: Lifecycle,
    jobs: Jobs,
    health: Health,
) -> Result<Arc<dyn Client>, CellError> {
    let client = RemoteClient::with_metrics(config.target(), config.settings(limit), metrics)?;
    if !client.is_enabled() {
        return Ok(Arc::new(DisabledClient));
    }
    let health = health.scope("connection");
    let (connecting, reported) = (client.clone(), health.clone());
    lifecycle.add(
        Hook::new("connect")
            .on_start(move |_: HookCtx| {
                let (client, health) = (connecting.clone(), reported.clone());
                async move {
                    let version = client.wait_connected(START, RETRY).await?;
                    let server = client.server().unwrap_or_default();
                    tracing::info!(%server, %version, "Connected to Kubernetes");
                    health.ok(format!("Connected to {server}, Kubernetes {version}"));
                    Ok::<(), super::ConnectError>(())
                }
            })
            .start_timeout(START + RETRY),
    );
    let beating = client.clone();
    jobs.spawn(Job::once("k8s-heartbeat", move |cx: JobCtx| {
        let (client, health) = (beating.clone(), health.clone());
        async move { heartbeat(&client, &health, &cx).await }
    }))?;
    Ok(Arc::new(client))
}

/// Probes the server whenever it was silent for too long or a request failed, and moves to the next one of several.
/// A job of a program with a separate client.
pub async fn heartbeat(client: &RemoteClient, health: &Health, cx: &JobCtx) {
    let mut lost = false;
    loop {
        let interval = client.heartbeat_interval();
        // The interval begins with the last answer. Probing a lost server drops all connections: not more often.
        let wait = if lost { interval } else { client.until_heartbeat() };
        let suspicious = tokio::select! {
            () = cx.token.cancelled() => return,
            () = client.inner.suspicious.notified() => true,
            () = tokio::time::sleep(wait), if !interval.is_zero() => false,
        };
        match client.heartbeat(suspicious || lost).await {
            Ok(()) if lost => {
                lost = false;
                client.inner.recoveries.send_modify(|count| *count += 1);
                let server = client.server().unwrap_or_default();
                tracing::info!(%server, "Reconnected to Kubernetes");
                health.ok(format!("Connected to {server}"));
            }
            Ok(()) => {}
            Err(error) => {
                lost = true;
                health.degraded("Kubernetes API server does not respond", &error);
                // Failing requests wake this up at once: do not spin.
                tokio::select! {
                    () = cx.token.cancelled() => return,
                    () = tokio::time::sleep(CALM) => {}
                }
            }
        }
    }
}
