// SPDX-License-Identifier: Apache-2.0

//! Cells: `GET /v1/cluster` for `kvstoremesh-dbg`, and `GET /readyz` for kubelet. Provide: [`Listening`] each, in their
//! modules.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::{Json, Router, routing::get};
use hive::{Cell, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError};
use parking_lot::Mutex;
use skep_clustermesh_mesh::ClusterMesh;
use skep_listen::http::{Http1, TowerToHyperService};
use skep_listen::{BindError, BoundTcp, Server, Tcp};

use crate::config::{API_SERVE_ADDR, ApiConfig, HEALTH_PORT, HealthConfig};
use crate::ready::Readiness;

/// Serves `GET /v1/cluster`: how the remote clusters are.
pub fn api() -> Cell {
    Cell::module("kvstoremesh-api-server", "API of kvstoremesh")
        .config::<ApiConfig>()
        .provide(Listening::<ApiConfig>::new_api)
        .run(keep::<ApiConfig>)
}

/// Serves `GET /readyz`: whether this replica is ready.
pub fn health() -> Cell {
    Cell::module("health-api-server", "Answers readiness probes")
        .config::<HealthConfig>()
        .provide(Listening::<HealthConfig>::new_health)
        .run(keep::<HealthConfig>)
}

/// Serves even if no cell requires it.
fn keep<C: Send + Sync + 'static>(_: Arc<Listening<C>>) {}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is in use, or the address is not one of this machine. Change the setting that the cause names.
    #[error("cannot serve")]
    Bind(#[from] BindError),
    /// The job that serves cannot be started.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// The addresses that requests are answered at, once they are. `C` is the configuration that says which.
#[derive(Debug)]
pub struct Listening<C> {
    addresses: Mutex<Vec<SocketAddr>>,
    config: std::marker::PhantomData<fn() -> C>,
}

impl Listening<ApiConfig> {
    fn new_api(
        config: Cfg<ApiConfig>,
        mesh: Arc<ClusterMesh>,
        lifecycle: Lifecycle,
        jobs: Jobs,
    ) -> Arc<Self> {
        let router = Router::new().route("/v1/cluster", get(move || async move { Json(mesh.status()) }));
        Self::new(config.addresses(), API_SERVE_ADDR, router, &lifecycle, jobs)
    }
}

impl Listening<HealthConfig> {
    fn new_health(
        config: Cfg<HealthConfig>,
        readiness: Arc<Readiness>,
        lifecycle: Lifecycle,
        jobs: Jobs,
    ) -> Arc<Self> {
        let answer = move || async move {
            if readiness.is_ready() {
                (StatusCode::OK, "Ready")
            } else {
                (StatusCode::INTERNAL_SERVER_ERROR, "NotReady")
            }
        };
        let router = Router::new().route("/readyz", get(answer));
        Self::new(config.addresses(), HEALTH_PORT, router, &lifecycle, jobs)
    }
}

impl<C: 'static> Listening<C> {
    fn new(
        addresses: Vec<SocketAddr>,
        setting: &'static str,
        router: Router,
        lifecycle: &Lifecycle,
        jobs: Jobs,
    ) -> Arc<Self> {
        let listening = Arc::new(Self {
            addresses: Mutex::default(),
            config: std::marker::PhantomData,
        });
        let started = listening.clone();
        lifecycle.on_start("listen", move |_: HookCtx| {
            let result = listen(&addresses, setting, &router, &jobs);
            let result = result.map(|bound| *started.addresses.lock() = bound);
            async move { result }
        });
        listening
    }

    /// The addresses, while requests are answered.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }
}

/// Listens on all addresses. One is enough if it is a matter of families: one may be switched off in the kernel.
fn listen(
    addresses: &[SocketAddr],
    setting: &'static str,
    router: &Router,
    jobs: &Jobs,
) -> Result<Vec<SocketAddr>, ServeError> {
    let mut bound = Vec::new();
    let mut failed = None;
    for address in addresses {
        match Tcp::new(*address).setting(setting).bind() {
            Ok(listener) => {
                bound.push(listener.address());
                serve(setting, listener, router.clone(), jobs)?;
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if bound.is_empty() => Err(error.into()),
        Some(error) => {
            tracing::info!(setting, %error, "Listening on one address family only");
            Ok(bound)
        }
        None => Ok(bound),
    }
}

fn serve(setting: &'static str, listener: BoundTcp, router: Router, jobs: &Jobs) -> Result<(), SpawnError> {
    let name = if listener.address().is_ipv4() {
        "serve-ipv4"
    } else {
        "serve-ipv6"
    };
    // The job runs once for each start: the listener is passed on to it.
    let server = Arc::new(Mutex::new(Some(Server::new(setting, listener))));
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
