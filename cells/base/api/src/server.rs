// SPDX-License-Identifier: Apache-2.0

//! Listens, and passes requests to the routes of all cells.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{Extension, Router};
use hive::{Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle};
use parking_lot::Mutex;
use tokio::net::{TcpListener, UnixListener};

use crate::{config::Config, routes::Paths, status::Probes};

/// Why the API cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another agent runs on this node, or the flag names somebody else's socket.
    #[error("{} is in use: does another agent run on this node?", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// What is there is not a socket; it is left alone. Remove it, or set `socket-path`.
    #[error("{} is there and is not a socket", path.display())]
    NotSocket {
        /// The file.
        path: PathBuf,
    },
    /// The folder is missing or not writable, or the port is taken.
    #[error("listening on {at}")]
    Listen {
        /// Path or address.
        at: String,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// The server job cannot be started.
    #[error(transparent)]
    Job(#[from] hive::SpawnError),
}

/// Registers the sockets with the lifecycle.
pub(crate) fn serve(config: Cfg<Config>, paths: Paths, status: Probes, lifecycle: Lifecycle, jobs: Jobs) {
    let Paths(api) = paths;
    let path = PathBuf::from(&config.socket_path);
    {
        let (path, jobs) = (path.clone(), jobs.clone());
        lifecycle.on_start("listen", move |_: HookCtx| {
            let (path, jobs, api) = (path.clone(), jobs.clone(), api.clone());
            async move { listen(&path, &jobs, api).await }
        });
    }
    lifecycle.on_stop("unlink", move |_: HookCtx| {
        let path = path.clone();
        // The next agent would find a socket that nobody listens on.
        async move { drop(tokio::fs::remove_file(path).await) }
    });
    if config.agent_health_port != 0 {
        let (port, router) = (config.agent_health_port, crate::status::health_router(status));
        lifecycle.on_start("listen for health checks", move |_: HookCtx| {
            let (jobs, router) = (jobs.clone(), router.clone());
            async move { listen_for_health(port, &jobs, router).await }
        });
    }
}

async fn listen(path: &Path, jobs: &Jobs, api: Router) -> Result<(), ServeError> {
    let failed = |cause| ServeError::Listen {
        at: path.display().to_string(),
        cause,
    };
    if let Some(folder) = path.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(failed)?;
    }
    make_room(path).await?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    tokio::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .await
        .map_err(failed)?;
    Ok(serve_job("serve", listener, api, jobs)?)
}

/// Removes the socket of an agent that ended without cleaning up, and nothing else.
async fn make_room(path: &Path) -> Result<(), ServeError> {
    let Ok(found) = tokio::fs::symlink_metadata(path).await else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(ServeError::NotSocket {
            path: path.to_owned(),
        });
    }
    if tokio::net::UnixStream::connect(path).await.is_ok() {
        return Err(ServeError::InUse {
            path: path.to_owned(),
        });
    }
    tokio::fs::remove_file(path)
        .await
        .map_err(|cause| ServeError::Listen {
            at: path.display().to_string(),
            cause,
        })
}

async fn listen_for_health(port: u16, jobs: &Jobs, router: Router) -> Result<(), ServeError> {
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    let mut refused = None;
    let mut listening = false;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                listening = true;
                let name = if address.is_ipv4() {
                    "health-ipv4"
                } else {
                    "health-ipv6"
                };
                serve_job(name, listener, router.clone(), jobs)?;
            }
            Err(cause) => {
                refused = Some(ServeError::Listen {
                    at: address.to_string(),
                    cause,
                })
            }
        }
    }
    match refused {
        // One family is enough: the other one may be switched off in the kernel.
        Some(err) if !listening => Err(err),
        _ => Ok(()),
    }
}

fn serve_job<L>(name: &'static str, listener: L, router: Router, jobs: &Jobs) -> Result<(), hive::SpawnError>
where
    L: axum::serve::Listener,
    L::Addr: std::fmt::Debug + Sync,
{
    let listener = Arc::new(Mutex::new(Some(listener)));
    jobs.spawn(Job::once(name, move |cx: JobCtx| {
        let (taken, router) = (listener.lock().take(), router.clone());
        async move {
            let Some(listener) = taken else { return Ok(()) };
            cx.health.ok("Listening");
            // What is sent without end must not hold up the stop.
            let router = router.layer(Extension(statedb::http::Stop(cx.token.clone())));
            axum::serve(listener, router)
                .with_graceful_shutdown(cx.token.cancelled_owned())
                .await
        }
    }))
}
