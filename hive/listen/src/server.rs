// SPDX-License-Identifier: Apache-2.0

//! Accepts connections and runs a handler for each.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinError, JoinSet};
use tokio_util::net::Listener;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::accept::{Backoff, Severity};
use crate::handshake::{Handshake, Plain};

/// Connections served at once unless the server says otherwise.
const CONNECTIONS: usize = 1024;
/// Time that connections have to end after the stop, unless the server says otherwise.
const DRAIN: Duration = Duration::from_secs(2);
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// A listener with its limits, ready to serve.
///
/// See the [crate] for an example.
#[derive(Debug)]
pub struct Server<L, H = Plain> {
    name: &'static str,
    listener: L,
    handshake: H,
    connections: usize,
    drain: Duration,
}

/// A connection, for the handler.
#[derive(Debug)]
pub struct Connection<S, A> {
    /// The stream, after the handshake.
    pub stream: S,
    /// Address of the client.
    pub peer: A,
    /// Number of the connection since the server started, from 1.
    pub number: u64,
    /// Cancelled when the server stops: the handler then has the time of [`Server::drain`] to end.
    pub stop: CancellationToken,
}

impl<L> Server<L> {
    /// Serves `listener`; `name` is what logs call it. Without further calls it serves 1024 connections at once, and
    /// drains for 2 seconds.
    pub fn new(name: &'static str, listener: L) -> Self {
        Self {
            name,
            listener,
            handshake: Plain,
            connections: CONNECTIONS,
            drain: DRAIN,
        }
    }
}

impl<L, H> Server<L, H> {
    /// Connections served at once, at least one. Further ones wait in the kernel's queue.
    #[must_use]
    pub fn connections(mut self, limit: usize) -> Self {
        self.connections = limit.max(1);
        self
    }

    /// Time that connections have to end after the stop; those that are left are closed.
    #[must_use]
    pub fn drain(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }

    /// Runs a handshake on each accepted stream, for at most 30 seconds.
    #[must_use]
    pub fn handshake<T>(self, handshake: T) -> Server<L, T> {
        Server {
            name: self.name,
            listener: self.listener,
            handshake,
            connections: self.connections,
            drain: self.drain,
        }
    }
}

impl<L, H> Server<L, H>
where
    L: Listener,
    L::Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    L::Addr: Debug + Send + Sync + 'static,
    H: Handshake<L::Io>,
{
    /// Runs `handler` for each connection, in a task of its own, until `stop`. Then the listener closes at once, and the
    /// connections are drained.
    ///
    /// A handler that panics ends its connection alone. Dropping the future closes the listener and all connections.
    pub async fn serve<F, Fut>(self, stop: CancellationToken, handler: F)
    where
        F: Fn(Connection<H::Stream, L::Addr>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let Self {
            name,
            mut listener,
            handshake,
            connections: limit,
            drain,
        } = self;
        let shared = Arc::new((handshake, handler));
        let mut tasks = JoinSet::new();
        let mut backoff = Backoff::default();
        let mut number = 0_u64;
        let mut is_full = false;
        loop {
            if !is_full && tasks.len() >= limit {
                is_full = true;
                tracing::warn!(listener = name, limit, "Connection limit reached");
            } else if is_full && tasks.len() <= limit / 2 {
                is_full = false;
            }
            let until = backoff.until;
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next() => {
                    report(name, ended);
                    backoff.retry();
                    continue;
                }
                accepted = accept(&mut listener, until), if tasks.len() < limit => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    log_failure(name, &error, backoff.failed(&error));
                    continue;
                }
            };
            if backoff.succeeded() {
                tracing::info!(listener = name, "Accepting connections again");
            }
            number += 1;
            let (shared, stop) = (shared.clone(), stop.clone());
            let connection = async move {
                let (handshake, handler) = &*shared;
                let Some(stream) = shake(name, handshake, stream, &peer, &stop).await else {
                    return;
                };
                handler(Connection {
                    stream,
                    peer,
                    number,
                    stop,
                })
                .await;
            };
            // Connections end with this future: none outlives the job that serves.
            tasks.spawn(connection.in_current_span());
        }
        drop(listener);
        let drained = async {
            while let Some(ended) = tasks.join_next().await {
                report(name, ended);
            }
        };
        if tokio::time::timeout(drain, drained).await.is_err() {
            let connections = tasks.len();
            tracing::info!(listener = name, connections, drain = ?drain, "Closing connections after drain timeout");
            tasks.shutdown().await;
        }
    }
}

/// The next connection, not before `until`.
async fn accept<L: Listener>(
    listener: &mut L,
    until: Option<tokio::time::Instant>,
) -> io::Result<(L::Io, L::Addr)> {
    if let Some(until) = until {
        tokio::time::sleep_until(until).await;
    }
    listener.accept().await
}

/// The stream to serve; `None` if the handshake failed or the server stops.
async fn shake<S, H: Handshake<S>>(
    name: &'static str,
    handshake: &H,
    stream: S,
    peer: &impl Debug,
    stop: &CancellationToken,
) -> Option<H::Stream> {
    let ended = tokio::select! {
        ended = tokio::time::timeout(HANDSHAKE, handshake.handshake(stream)) => ended,
        () = stop.cancelled() => return None,
    };
    match ended {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(listener = name, peer = ?peer, error = %error, "Handshake failed"),
        Err(_) => tracing::debug!(listener = name, peer = ?peer, "Handshake timed out"),
    }
    None
}

fn log_failure(name: &'static str, error: &io::Error, severity: Severity) {
    match severity {
        Severity::Connection => tracing::debug!(listener = name, error = %error, "Cannot accept connection"),
        Severity::Failing => {
            tracing::warn!(listener = name, error = %error, "Cannot accept connections, retrying");
        }
        Severity::StillFailing => {
            tracing::debug!(listener = name, error = %error, "Still cannot accept connections");
        }
    }
}

fn report(name: &'static str, ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        let panic = error.into_panic();
        tracing::error!(
            listener = name,
            panic = panic_text(&*panic),
            "Connection handler panicked"
        );
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "panic without a text",
    }
}
