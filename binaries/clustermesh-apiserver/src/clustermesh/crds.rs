// SPDX-License-Identifier: Apache-2.0

//! Cell: ends the program if the kinds that it reads do not exist in time. Requires: a Kubernetes client.
//! Provides the settings of custom resources. Reading begins without waiting: a kind that is missing is tried again.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, Shutdown, SpawnError};
use skep_k8s_client::Client;
use tokio::time::{sleep, timeout};

/// Kinds that are always read. Slices of endpoints are not waited for.
const KINDS: [&str; 3] = ["ciliumnodes", "ciliumidentities", "ciliumendpoints"];
/// Time between two looks.
const POLL: Duration = Duration::from_secs(1);

/// When a missing kind is an error.
#[derive(Debug, Clone, hive::Config)]
pub(super) struct Config {
    /// Timeout of waiting for CRDs; the program exits afterwards.
    #[config(default = "5m")]
    pub crd_wait_timeout: Duration,
}

hive::catalogue!(cell);

/// Waits for the custom resource definitions.
pub(super) fn cell() -> Cell {
    Cell::module("crd-sync", "Waits for custom resource definitions")
        .config::<Config>()
        .config::<skep_k8s_crds::Config>()
        .run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    shutdown: Shutdown,
    jobs: Jobs,
}

/// Kinds do not exist: register the definitions, or start the operator, which does.
#[derive(Debug, thiserror::Error)]
#[error("no custom resource definitions of {missing} within {within:?}")]
struct MissingKinds {
    missing: String,
    within: Duration,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        client,
        shutdown,
        jobs,
    } = params;
    if !client.is_enabled() {
        return Ok(());
    }
    let within = config.crd_wait_timeout;
    jobs.spawn(Job::once("wait", move |cx: JobCtx| {
        let (client, shutdown) = (client.clone(), shutdown.clone());
        async move {
            let mut missing = KINDS.join(", ");
            let wait = timeout(within, wait_kinds(&*client, &mut missing, &cx));
            if let Some(Err(_)) = cx.until_cancelled(wait).await {
                let error = MissingKinds { missing, within };
                shutdown.fail("cannot publish the state of the cluster", error);
            }
        }
    }))
}

async fn wait_kinds(client: &dyn Client, missing: &mut String, cx: &JobCtx) {
    loop {
        match client.kinds().await {
            Ok(kinds) => {
                let exists = |plural: &str| {
                    kinds
                        .iter()
                        .any(|kind| kind.group == "cilium.io" && kind.plural == plural)
                };
                let absent: Vec<&str> = KINDS.into_iter().filter(|plural| !exists(plural)).collect();
                if absent.is_empty() {
                    cx.health.ok("All custom resource definitions exist");
                    return;
                }
                *missing = absent.join(", ");
                cx.health
                    .starting(format!("Waiting for custom resource definitions: {missing}"));
            }
            Err(error) => {
                cx.health
                    .degraded("Waiting for the Kubernetes API server", &error);
            }
        }
        sleep(POLL).await;
    }
}
