// SPDX-License-Identifier: Apache-2.0

//! Connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::pods::Session;
use super::respond::{self, Body};
use super::route::Router;
use super::tls::Tls;
use crate::error::ApiError;
use crate::pods::PodRuntime;
use crate::server::ApiServer;

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Bearer token that clients must show; empty: everybody may do everything.
    pub token: String,
    /// Serve HTTPS with this certificate. kubectl shows a token over HTTPS only.
    pub tls: Option<Tls>,
    /// Longest request body in bytes.
    pub body_limit: usize,
    /// Connections served at a time; further ones wait.
    pub connections: usize,
    /// Who runs the pods: without, there are no logs and no programs in pods. Whoever may reach such a server without a
    /// `token` may start programs.
    pub pods: Option<Arc<dyn PodRuntime>>,
    /// Hint in the error for subresources of pods that are not supported: how to get the same elsewhere. May be empty.
    pub pods_hint: String,
}

impl Default for HttpOptions {
    fn default() -> Self {
        // The limit of real servers: twice what etcd takes.
        HttpOptions {
            token: String::new(),
            tls: None,
            body_limit: 3 * 1024 * 1024,
            connections: 4096,
            pods: None,
            pods_hint: String::new(),
        }
    }
}

/// Time that a client has for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that open requests have to end after a stop.
const DRAIN: Duration = Duration::from_secs(2);

/// An API server that listens.
pub struct HttpServer {
    listener: TcpListener,
    api: ApiServer,
    options: HttpOptions,
}

impl HttpServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn bind(address: SocketAddr, api: ApiServer, options: HttpOptions) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self::with_listener(listener, api, options))
    }

    /// Serves connections of a listener that exists already.
    pub fn with_listener(listener: TcpListener, api: ApiServer, options: HttpOptions) -> Self {
        HttpServer {
            listener,
            api,
            options,
        }
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`: then watches end, open requests are finished, and all connections close.
    pub async fn serve(self, stop: CancellationToken) {
        let address = self.address().map(|a| a.to_string()).unwrap_or_default();
        let router = Arc::new(Router {
            api: self.api,
            token: self.options.token.clone(),
            address,
            pods: self.options.pods.clone(),
            pods_hint: self.options.pods_hint.clone(),
            stop: stop.clone(),
        });
        let acceptor = self.options.tls.as_ref().map(Tls::acceptor);
        // Connections end with this future: none outlives the job that runs it.
        let mut connections = JoinSet::new();
        let mut expiry = router.api.expiry_interval().map(|period| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        });
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= self.options.connections {
                tokio::select! {
                    _ = connections.join_next() => {}
                    () = stop.cancelled() => break,
                }
                continue;
            }
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        connections.spawn(accept(stream, acceptor.clone(), router.clone(), self.options.body_limit, stop.clone()));
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: others may close.
                        tracing::warn!(error = %error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                () = tick(&mut expiry) => router.api.expire_events(),
                () = stop.cancelled() => break,
            }
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// Waits for the next tick; never returns if there is none.
async fn tick(interval: &mut Option<tokio::time::Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

async fn accept(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Arc<Router>,
    limit: usize,
    stop: CancellationToken,
) {
    let Some(acceptor) = acceptor else {
        return connection(stream, router, limit, stop).await;
    };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)) => accepted,
        () = stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => connection(stream, router, limit, stop).await,
        Ok(Err(error)) => tracing::debug!(error = %error, "no TLS connection"),
        Err(_) => tracing::debug!("no TLS connection in time"),
    }
}

async fn connection<S>(stream: S, router: Arc<Router>, limit: usize, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // What goes on after the connection has become a WebSocket: in this task, so that it ends with the server.
    let session: Arc<Mutex<Option<Session>>> = Arc::default();
    let begun = session.clone();
    let service = service_fn(move |request| answer(router.clone(), limit, request, begun.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error = %error, "connection ended");
    }
    let session = session.lock().take();
    if let Some(session) = session {
        tokio::select! {
            () = session => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn answer(
    router: Arc<Router>,
    limit: usize,
    mut request: Request<Incoming>,
    session: Arc<Mutex<Option<Session>>>,
) -> Result<Response<Body>, Infallible> {
    match router.pod_call(&request) {
        Ok(None) => {}
        Err(error) => return Ok(respond::error(&error)),
        Ok(Some(call)) => {
            let upgraded = hyper::upgrade::on(&mut request);
            return Ok(match call.answer(upgraded, router.stop.clone()).await {
                Ok((response, begun)) => {
                    *session.lock() = begun;
                    response
                }
                Err(error) => respond::error(&error),
            });
        }
    }
    let (parts, body) = request.into_parts();
    let bytes: Bytes = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let mut response = respond::error(&ApiError::too_large(limit));
            response
                .headers_mut()
                .insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
            return Ok(response);
        }
        Err(error) => {
            return Ok(respond::error(&ApiError::bad_request(format!(
                "cannot read the body: {error}"
            ))));
        }
    };
    Ok(router.answer(&parts, &bytes))
}
