// SPDX-License-Identifier: Apache-2.0

//! HTTP/1 on the connections of a server.
//!
//! Services are those of hyper; [`TowerToHyperService`] makes one of a tower service, such as axum's `Router`. HTTP/2 is
//! not spoken: clients of plain HTTP would have to know beforehand that a server has it.

use std::error::Error;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
pub use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::net::Listener;
use tokio_util::sync::CancellationToken;

use crate::{Handshake, Server};

/// Time for the head of a request, and between two requests of a connection, unless [`Http1::head_timeout`] says
/// otherwise.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Any error of a service or a body.
type BoxError = Box<dyn Error + Send + Sync>;

/// How HTTP/1 is spoken.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::convert::Infallible;
///
/// use hyper::service::service_fn;
/// use skep_listen::http::Http1;
/// use skep_listen::{Server, Tcp};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio_util::sync::CancellationToken;
///
/// let listener = Tcp::new("127.0.0.1:0".parse().unwrap()).bind().unwrap();
/// let address = listener.address();
/// let hello = service_fn(|_| async { Ok::<_, Infallible>(http::Response::new("hello".to_owned())) });
/// let stop = CancellationToken::new();
/// let serving = tokio::spawn(Http1::new().serve_all(Server::new("hello", listener), hello, stop.clone()));
///
/// let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
/// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
/// let mut answer = String::new();
/// client.read_to_string(&mut answer).await.unwrap();
/// assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.ends_with("hello"));
///
/// stop.cancel();
/// serving.await.unwrap();
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Http1 {
    head_timeout: Duration,
    title_case: bool,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            head_timeout: HEAD_TIMEOUT,
            title_case: false,
        }
    }
}

impl Http1 {
    /// Clients have 30 seconds for the head of a request; names of headers are written in lower case.
    pub fn new() -> Self {
        Self::default()
    }

    /// Time for the head of a request, and between two requests of a connection.
    #[must_use]
    pub fn head_timeout(mut self, time: Duration) -> Self {
        self.head_timeout = time;
        self
    }

    /// Writes names of headers as `Content-Type`, for clients that compare them by case.
    #[must_use]
    pub fn title_case_headers(mut self) -> Self {
        self.title_case = true;
        self
    }

    /// Serves all connections of `server` until `stop`: then requests that are being answered have the time of
    /// [`Server::drain`].
    pub async fn serve_all<L, H, S, B>(self, server: Server<L, H>, service: S, stop: CancellationToken)
    where
        L: Listener,
        L::Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        L::Addr: Debug + Send + Sync + 'static,
        H: Handshake<L::Io>,
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let serve = move |connection: crate::Connection<H::Stream, L::Addr>| {
            let (http, service) = (self.clone(), service.clone());
            async move { http.serve(connection.stream, service, connection.stop).await }
        };
        server.serve(stop, serve).await;
    }

    /// Serves one connection until the client closes it, it is upgraded, or `stop`: then a request that is being answered
    /// is the last one.
    pub async fn serve<I, S, B>(&self, stream: I, service: S, stop: CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Error: Into<BoxError>,
        B: Body + 'static,
        B::Error: Into<BoxError>,
    {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .title_case_headers(self.title_case)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error = &error as &dyn Error, "HTTP connection ended");
        }
    }
}
