// SPDX-License-Identifier: Apache-2.0

//! `GET /metrics` for Prometheus.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hive::{Backoff, Cfg, Job, JobCtx, Jobs, Retry};
use tokio::net::TcpListener;

use crate::config::Config;
use crate::exposition::exposition;
use crate::registry::Registry;

/// The format of the answer.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Pause between attempts to listen.
const RETRY: Duration = Duration::from_secs(10);

/// Why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The port is taken, or not for this user.
    #[error("cannot serve metrics on {address}")]
    Listen {
        address: String,
        #[source]
        cause: io::Error,
    },
    /// No more jobs are taken.
    #[error("cannot start the metrics endpoint")]
    Job(#[from] hive::SpawnError),
}

/// Serves the metrics as long as the hive runs, if an address is configured.
pub(crate) fn serve(config: Cfg<Config>, registry: Arc<Registry>, jobs: Jobs) -> Result<(), EndpointError> {
    let addresses = config.addresses();
    if addresses.is_empty() {
        return Ok(());
    }
    let text = config.serve_addr.clone();
    let job = Job::once("prometheus-endpoint", move |cx: JobCtx| {
        let (addresses, registry, address) = (addresses.clone(), registry.clone(), text.clone());
        async move {
            let failed = |cause| EndpointError::Listen {
                address: address.clone(),
                cause,
            };
            let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            cx.health.ok(format!("Serving on {bound}"));
            tracing::info!(address = %bound, "serving metrics");
            let router = Router::new().route("/metrics", get(move || answer(registry.clone())));
            let token = cx.token.clone();
            let serving = axum::serve(listener, router).with_graceful_shutdown(token.cancelled_owned());
            serving.await.map_err(failed)
        }
    });
    jobs.spawn(job.retry(Retry::forever().backoff(Backoff::constant(RETRY))))?;
    Ok(())
}

async fn answer(registry: Arc<Registry>) -> ([(axum::http::HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, FORMAT)], exposition(&registry))
}
