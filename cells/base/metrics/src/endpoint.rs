// SPDX-License-Identifier: Apache-2.0

//! `GET /metrics` for Prometheus.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
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
    /// Not `host:port` or `:port`.
    #[error("`{0}` in --prometheus-serve-addr is not an address such as `:9962`")]
    Address(String),
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
    if config.serve_addr.is_empty() {
        return Ok(());
    }
    let addresses = parse(&config.serve_addr)?;
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

/// The addresses to try in turn: without a host those of all interfaces.
fn parse(text: &str) -> Result<Vec<SocketAddr>, EndpointError> {
    let bad = || EndpointError::Address(text.to_owned());
    match text.strip_prefix(':') {
        Some(port) => {
            let port: u16 = port.parse().map_err(|_| bad())?;
            Ok(vec![
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ])
        }
        None => {
            let address = text.replace("localhost:", "127.0.0.1:");
            Ok(vec![address.parse().map_err(|_| bad())?])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_lack_the_host() {
        let texts =
            |text: &str| parse(text).map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());

        assert_eq!(texts(":9962").unwrap(), ["[::]:9962", "0.0.0.0:9962"]);
        assert_eq!(texts("127.0.0.1:1").unwrap(), ["127.0.0.1:1"]);
        assert_eq!(texts("localhost:1").unwrap(), ["127.0.0.1:1"]);
        assert_eq!(
            texts("9962").unwrap_err().to_string(),
            "`9962` in --prometheus-serve-addr is not an address such as `:9962`"
        );
    }
}
