// SPDX-License-Identifier: Apache-2.0

//! Connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use parking_lot::Mutex;
use skep_k8s_memory::{ApiError, ApiServer};
use skep_listen::http::Http1;
use skep_listen::tls::Tls;
use skep_listen::{BindError, BoundTcp, Server, Tcp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::audit::Audit;
use super::pods::Session;
use super::respond::{self, Body};
use super::route::Router;
use crate::pods::PodRuntime;

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Bearer token that clients must send; empty: every client may do everything.
    pub token: String,
    /// Serves HTTPS with this certificate. kubectl sends a token over HTTPS only.
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

/// An API server that listens.
pub struct HttpServer {
    listener: BoundTcp,
    api: ApiServer,
    options: HttpOptions,
}

impl HttpServer {
    /// Listens on `address`; port 0 takes a free one. Must be called within a runtime.
    ///
    /// # Errors
    /// If the port is in use, or the address is not one of this machine.
    pub fn bind(address: SocketAddr, api: ApiServer, options: HttpOptions) -> Result<Self, BindError> {
        Ok(Self::with_listener(Tcp::new(address).bind()?, api, options))
    }

    /// Serves connections of a listener that exists already.
    pub fn with_listener(listener: BoundTcp, api: ApiServer, options: HttpOptions) -> Self {
        HttpServer {
            listener,
            api,
            options,
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `stop`: then watches end, open requests are finished, and all connections close.
    pub async fn serve(self, stop: CancellationToken) {
        let router = Arc::new(Router {
            address: self.address().to_string(),
            api: self.api,
            token: self.options.token,
            pods: self.options.pods,
            pods_hint: self.options.pods_hint,
            stop: stop.clone(),
            audit: Audit::default(),
        });
        let expiry = expire_events(router.api.clone());
        let limit = self.options.body_limit;
        let serving = Server::new("API server", self.listener)
            .connections(self.options.connections)
            .handshake(self.options.tls)
            .serve(stop, move |accepted| {
                connection(accepted.stream, router.clone(), limit, accepted.stop)
            });
        tokio::select! {
            () = serving => {}
            () = expiry => {}
        }
    }
}

/// Deletes events whose time is over. Never returns.
async fn expire_events(api: ApiServer) {
    let Some(period) = api.expiry_interval() else {
        return std::future::pending().await;
    };
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        api.expire_events();
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
    Http1::new().serve(stream, service, stop.clone()).await;
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
