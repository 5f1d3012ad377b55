// SPDX-License-Identifier: Apache-2.0

//! Listens, and answers.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::{Json, Router, routing::get};
use hive::{All, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError};
use parking_lot::Mutex;
use skep_base_metrics::Registry;
use skep_listen::http::{Http1, TowerToHyperService};
use skep_listen::{BindError, BoundTcp, Server, Tcp};

use crate::clusters::RemoteClusters;
use crate::config::{Config, SERVE_ADDR};
use crate::health::{HealthProbe, answer};

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is in use, or the address is not one of this machine. Change `operator-api-serve-addr`.
    #[error("cannot serve the operator's API")]
    Bind(#[from] BindError),
    /// The job that serves cannot be started.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// The addresses that the API listens on, once it does.
#[derive(Debug, Default)]
pub struct Listening(Mutex<Vec<SocketAddr>>);

impl Listening {
    pub(crate) fn new(
        config: Cfg<Config>,
        probes: All<Arc<dyn HealthProbe>>,
        clusters: Arc<RemoteClusters>,
        metrics: Option<Arc<Registry>>,
        lifecycle: Lifecycle,
        jobs: Jobs,
    ) -> Arc<Self> {
        let listening = Arc::new(Self::default());
        let probes: Arc<[Arc<dyn HealthProbe>]> = probes.into_vec().into();
        let started = listening.clone();
        lifecycle.on_start("listen", move |_: HookCtx| {
            let (started, jobs, router) = (
                started.clone(),
                jobs.clone(),
                router(&probes, &clusters, metrics.clone()),
            );
            let addresses = config.addresses();
            async move { started.listen(&addresses, &router, &jobs) }
        });
        listening
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.lock().clone()
    }

    /// Listens on all addresses. One is enough if it is a matter of families: one may be switched off in the kernel.
    fn listen(&self, addresses: &[SocketAddr], router: &Router, jobs: &Jobs) -> Result<(), ServeError> {
        let mut bound = Vec::new();
        let mut failed = None;
        for address in addresses {
            match Tcp::new(*address).setting(SERVE_ADDR).bind() {
                Ok(listener) => {
                    bound.push(listener.address());
                    serve(listener, router.clone(), jobs)?;
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if bound.is_empty() => return Err(error.into()),
            Some(error) => tracing::info!(%error, "Listening on one address family only"),
            None => {}
        }
        *self.0.lock() = bound;
        Ok(())
    }
}

fn router(
    probes: &Arc<[Arc<dyn HealthProbe>]>,
    clusters: &Arc<RemoteClusters>,
    metrics: Option<Arc<Registry>>,
) -> Router {
    let clusters = clusters.clone();
    let healthz = || {
        let probes = probes.clone();
        get(move || async move { answer(&probes).await })
    };
    let values = move || {
        let values = metrics.as_ref().map(|registry| registry.values());
        async { Json(values.unwrap_or_default()) }
    };
    Router::new()
        .route("/healthz", healthz())
        .route("/v1/healthz", healthz())
        .route("/v1/cluster", get(move || async move { Json(clusters.status()) }))
        // Cilium's has the slash.
        .route("/v1/metrics/", get(values.clone()))
        .route("/v1/metrics", get(values))
}

fn serve(listener: BoundTcp, router: Router, jobs: &Jobs) -> Result<(), SpawnError> {
    let name = if listener.address().is_ipv4() {
        "serve-ipv4"
    } else {
        "serve-ipv6"
    };
    // The job runs once for each start: the listener is passed on to it.
    let server = Arc::new(Mutex::new(Some(Server::new("operator API", listener))));
    jobs.spawn(Job::once(name, move |cx: JobCtx| {
        let (server, router) = (server.lock().take(), router.clone());
        async move {
            let Some(server) = server else { return };
            cx.health.ok("Listening");
            let service = TowerToHyperService::new(router);
            Http1::new().serve_all(server, service, cx.token.clone()).await;
        }
    }))
}
