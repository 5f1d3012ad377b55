// SPDX-License-Identifier: Apache-2.0

//! The job of the DNS proxy.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use hive::JobCtx;
use skep_base_net::NetError;
use skep_policy_repository::Repository;
use tokio::task::JoinSet;

use crate::proxy::{self, DnsProxy, Listeners};

/// Pause before a port that is taken is tried again, and how often.
const RETRY: Duration = Duration::from_secs(4);
const ATTEMPTS: u32 = 5;
/// Time between two looks at the routes.
const ROUTES: Duration = Duration::from_secs(30);

/// Why the proxy does not run. What policies redirect to it is dropped meanwhile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// Another program has the port: set another one by `tofqdns-proxy-port`, or end it.
    #[error("cannot listen at port {port}")]
    Listen {
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Routes(#[from] NetError),
    #[error("thread ended")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("socket of the DNS proxy")]
    Socket(#[source] io::Error),
}

/// Runs the proxy.
pub(crate) struct ProxyServer {
    pub(crate) proxy: Arc<DnsProxy>,
    pub(crate) repository: Repository,
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
    /// `proxy_ports_state.json`
    pub(crate) file: PathBuf,
}

impl ProxyServer {
    /// A job.
    pub(crate) async fn run(self: &Arc<Self>, cx: &JobCtx) -> Result<(), ServerError> {
        cx.health.starting("Waiting for restored endpoints");
        self.proxy.names.wait_restored().await;
        self.route().await?;
        let listeners = self.listen().await?;
        let port = listeners.port;
        if let Err(error) = proxy::save_port(&self.file, port) {
            tracing::warn!(file = %self.file.display(), %error, "Failed to save the port of the DNS proxy");
        }
        let mut tasks = JoinSet::new();
        for (is_ipv6, udp, tcp) in listeners.sockets {
            tasks.spawn(proxy::serve_udp(self.proxy.clone(), udp, is_ipv6));
            tasks.spawn(proxy::serve_tcp(self.proxy.clone(), tcp));
        }
        self.repository.set_dns_port(Some(port));
        cx.health.ok(format!("Port {port}"));
        let mut routes = tokio::time::interval(ROUTES);
        loop {
            tokio::select! {
                Some(ended) = tasks.join_next() => {
                    self.repository.set_dns_port(None);
                    ended?.map_err(ServerError::Socket)?;
                }
                _ = routes.tick() => self.route().await?,
            }
        }
    }

    async fn route(&self) -> Result<(), ServerError> {
        let (ipv4, ipv6) = (self.ipv4, self.ipv6);
        tokio::task::spawn_blocking(move || proxy::route_marked(ipv4, ipv6)).await??;
        Ok(())
    }

    /// The configured port; else that of the run before, which policy maps have; else any.
    async fn listen(&self) -> Result<Listeners, ServerError> {
        let config = self.proxy.names.config();
        let age = Duration::from_secs(config.port_age_limit.saturating_mul(60));
        let restored = || proxy::restored_port(&self.file, age);
        let port = match config.proxy_port {
            0 => restored().unwrap_or_default(),
            port => port,
        };
        let mut attempt = 1;
        loop {
            match Listeners::open(self.ipv4, self.ipv6, port) {
                Ok(listeners) => return Ok(listeners),
                Err(source) if attempt >= ATTEMPTS => {
                    if config.proxy_port == 0 && port != 0 {
                        tracing::warn!(port, error = %source, "The port of the DNS proxy is taken, using another one");
                        let opened = Listeners::open(self.ipv4, self.ipv6, 0);
                        return opened.map_err(|source| ServerError::Listen { port: 0, source });
                    }
                    return Err(ServerError::Listen { port, source });
                }
                Err(error) => {
                    tracing::warn!(port, attempt, %error, "Failed to listen for DNS queries");
                    attempt += 1;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}
