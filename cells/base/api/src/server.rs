// SPDX-License-Identifier: Apache-2.0

//! Listens, and passes requests to the routes of all cells.

use std::{
    fmt::Debug,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{Extension, Router};
use hive::{Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle};
use parking_lot::Mutex;
use skep_listen::{
    BindError, Listener, Server, Tcp, Unix,
    http::{Http1, TowerToHyperService},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{config::Config, local::LocalApi, routes::Paths, status::StatusCollector};

const SOCKET_PATH: &str = "socket-path";
const HEALTH_PORT: &str = "agent-health-port";
/// Permission bits of the API's socket: its group may use the API.
const MODE: u32 = 0o660;
/// The group of the API's socket, as that of Cilium's agent, on nodes that have it.
const GROUP: &str = "cilium";

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens on the API's socket. Stop it, or change `socket-path`.
    #[error("cannot serve the agent's API: does another agent run on this node?")]
    InUse(#[source] BindError),
    /// The directory of the socket cannot be written, or the port is in use.
    #[error(transparent)]
    Bind(BindError),
    /// The job that serves cannot be started.
    #[error(transparent)]
    Job(#[from] hive::SpawnError),
}

impl From<BindError> for ServeError {
    fn from(cause: BindError) -> Self {
        match cause {
            BindError::InUse { .. } => Self::InUse(cause),
            _ => Self::Bind(cause),
        }
    }
}

/// Registers the listeners with the lifecycle.
pub(crate) fn serve(
    config: Cfg<Config>,
    paths: Paths,
    status: StatusCollector,
    lifecycle: Lifecycle,
    jobs: Jobs,
) {
    let Paths(api) = paths;
    let socket = Unix::new(&config.socket_path)
        .mode(MODE)
        .group(GROUP)
        .setting(SOCKET_PATH);
    let jobs_of_api = jobs.clone();
    lifecycle.on_start("listen", move |_: HookCtx| {
        let (socket, jobs, api) = (socket.clone(), jobs_of_api.clone(), api.clone());
        async move { listen(&socket, &jobs, api) }
    });
    if config.agent_health_port != 0 {
        let (port, router) = (config.agent_health_port, crate::status::health_router(status));
        lifecycle.on_start("listen for health checks", move |_: HookCtx| {
            let (jobs, router) = (jobs.clone(), router.clone());
            async move { listen_for_health(port, &jobs, router) }
        });
    }
}

fn listen(socket: &Unix, jobs: &Jobs, api: Router) -> Result<(), ServeError> {
    let server = Server::new("API", socket.bind()?);
    Ok(serve_job("serve", server, api, jobs)?)
}

fn listen_for_health(port: u16, jobs: &Jobs, router: Router) -> Result<(), ServeError> {
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    let mut failed = None;
    let mut is_listening = false;
    for address in addresses {
        match Tcp::new(address).setting(HEALTH_PORT).bind() {
            Ok(listener) => {
                is_listening = true;
                let name = if address.is_ipv4() {
                    "health-ipv4"
                } else {
                    "health-ipv6"
                };
                serve_job(name, Server::new(name, listener), router.clone(), jobs)?;
            }
            Err(err) => failed = Some(err),
        }
    }
    match failed {
        // One family is enough: the other one may be switched off in the kernel.
        Some(err) if !is_listening => Err(err.into()),
        _ => Ok(()),
    }
}

fn serve_job<L>(
    name: &'static str,
    server: Server<L>,
    router: Router,
    jobs: &Jobs,
) -> Result<(), hive::SpawnError>
where
    L: Listener + Send + 'static,
    L::Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    L::Addr: Debug + Send + Sync + 'static,
{
    // The job runs once for each start: the listener is passed on to it.
    let server = Arc::new(Mutex::new(Some(server)));
    jobs.spawn(Job::once(name, move |cx: JobCtx| {
        let (server, router) = (server.lock().take(), router.clone());
        async move {
            let Some(server) = server else { return };
            cx.health.ok("Listening");
            // What is sent without end must not hold up the stop.
            let local = LocalApi::new(router.clone());
            let router = router
                .layer(Extension(local))
                .layer(Extension(statedb::http::Stop(cx.token.clone())));
            let service = TowerToHyperService::new(router);
            Http1::new().serve_all(server, service, cx.token.clone()).await;
        }
    }))
}
