// SPDX-License-Identifier: Apache-2.0

//! Connections to one endpoint: name resolution, TCP, TLS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};

use crate::file::{ConfigError, Endpoint, EtcdConfig};
use crate::tls;

/// How long the connection to one address may take, TLS included.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves host names before DNS does: a cell that knows Kubernetes services can say where
/// `<service>.<namespace>.svc` is without the DNS of the cluster.
#[async_trait]
pub trait Resolver: fmt::Debug + Send + Sync {
    /// Addresses of a host at a port; none to go on with DNS.
    async fn resolve(&self, host: &str, port: u16) -> Vec<SocketAddr>;
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot resolve `{host}`")]
    Resolve {
        host: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("cannot connect to {address}")]
    Tcp {
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    /// The handshake failed: certificates do not fit, or the endpoint speaks no TLS.
    #[error("TLS with {address}")]
    Tls {
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    #[error("no connection to {address} within {after:?}")]
    Timeout { address: SocketAddr, after: Duration },
    #[error("`{host}` has no address")]
    NoAddress { host: String },
    /// A name that no certificate can have.
    #[error("`{host}` is no name of a server")]
    Name {
        host: String,
        #[source]
        cause: InvalidDnsNameError,
    },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) config: Arc<EtcdConfig>,
    pub(crate) resolver: Option<Arc<dyn Resolver>>,
}

impl Connector {
    async fn connect(&self) -> Result<Stream, ConnectError> {
        let endpoint = &self.endpoint;
        // Read anew each time, so that renewed certificates are used.
        let tls = match endpoint.is_tls {
            true => Some(TlsConnector::from(Arc::new(tls::client_config(
                &self.config.tls,
            )?))),
            false => None,
        };
        let mut last = ConnectError::NoAddress {
            host: endpoint.host.clone(),
        };
        for address in self.addresses().await? {
            let attempt = connect_to(address, &endpoint.host, tls.as_ref());
            match tokio::time::timeout(ADDRESS_TIMEOUT, attempt).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = ConnectError::Timeout {
                        address,
                        after: ADDRESS_TIMEOUT,
                    };
                }
            }
        }
        Err(last)
    }

    /// Aliases first, then the resolver, then DNS.
    pub(crate) async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let Endpoint { host, port, .. } = &*self.endpoint;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, *port)]);
        }
        if let Some(ips) = self.config.host_aliases.get(host) {
            return Ok(ips.iter().map(|ip| SocketAddr::new(*ip, *port)).collect());
        }
        if let Some(resolver) = &self.resolver {
            let addresses = resolver.resolve(host, *port).await;
            if !addresses.is_empty() {
                return Ok(addresses);
            }
        }
        let found = tokio::net::lookup_host((host.as_str(), *port)).await;
        found
            .map(Iterator::collect)
            .map_err(|cause| ConnectError::Resolve {
                host: host.clone(),
                cause,
            })
    }
}

async fn connect_to(
    address: SocketAddr,
    host: &str,
    tls: Option<&TlsConnector>,
) -> Result<Stream, ConnectError> {
    let tcp = TcpStream::connect(address)
        .await
        .and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp))
        .map_err(|cause| ConnectError::Tcp { address, cause })?;
    let Some(tls) = tls else {
        return Ok(Stream::Plain(tcp));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|cause| ConnectError::Name {
        host: host.to_owned(),
        cause,
    })?;
    let stream = tls
        .connect(name, tcp)
        .await
        .map_err(|cause| ConnectError::Tls { address, cause })?;
    Ok(Stream::Tls(Box::new(stream)))
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
