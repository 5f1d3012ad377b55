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
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::respond::{self, Body};
use super::route::Router;
use crate::error::ApiError;
use crate::server::ApiServer;

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Bearer token that clients must show; empty: everybody may do everything.
    pub token: String,
    /// Longest request body in bytes.
    pub body_limit: usize,
    /// Connections served at a time; further ones wait.
    pub connections: usize,
    /// What those are told who ask for logs of pods or a shell in them, which this server does not have: how to get
    /// them elsewhere. May be empty.
    pub pods_hint: String,
}

impl Default for HttpOptions {
    fn default() -> Self {
        // The limit of real servers: twice what etcd takes.
        HttpOptions {
            token: String::new(),
            body_limit: 3 * 1024 * 1024,
            connections: 4096,
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
            pods_hint: self.options.pods_hint.clone(),
            stop: stop.clone(),
        });
        // Connections end with this future: none outlives the job that runs it.
        let mut connections = JoinSet::new();
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
                        connections.spawn(connection(stream, router.clone(), self.options.body_limit, stop.clone()));
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: others may close.
                        tracing::warn!(error = %error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                () = stop.cancelled() => break,
            }
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            connections.shutdown().await;
        }
    }
}

async fn connection(stream: TcpStream, router: Arc<Router>, limit: usize, stop: CancellationToken) {
    let service = service_fn(move |request| answer(router.clone(), limit, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
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
}

async fn answer(
    router: Arc<Router>,
    limit: usize,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
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
