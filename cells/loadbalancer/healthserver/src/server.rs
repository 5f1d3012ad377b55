// SPDX-License-Identifier: Apache-2.0

//! A small HTTP/1 server that lives as long as the future that serves it.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections served at once; more wait in the kernel's queue. Load balancers need a handful.
const MAX_CONNECTIONS: usize = 256;
/// How long a client may take to send its request head, and between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept (out of file descriptors), so that the loop doesn't spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on `ip:port`; without `ip` on all addresses of both families.
pub(crate) fn listen(ip: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let open = |ip: IpAddr| listen_at(SocketAddr::new(ip, port), false);
    match ip {
        Some(ip) => open(ip),
        // `::` takes IPv4 as well, unless IPv6 is switched off.
        None => match open(Ipv6Addr::UNSPECIFIED.into()) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => open(Ipv4Addr::UNSPECIFIED.into()),
            result => result,
        },
    }
}

/// Listens on one address. `share` lets another process listen there, too (`SO_REUSEPORT`).
pub(crate) fn listen_at(address: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        TcpSocket::new_v6()?
    } else {
        TcpSocket::new_v4()?
    };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(share)?;
    socket.bind(address)?;
    socket.listen(128)
}

/// Answers every request on `listener`, until dropped: then the listener and all its connections are closed.
pub(crate) async fn serve<F>(listener: TcpListener, respond: F) -> Infallible
where
    F: Fn(&Request<Incoming>) -> Response<String>,
{
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => connections.push(connection(stream, &respond)),
                Err(error) => {
                    tracing::debug!(%error, "Cannot accept a health-check connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(()) = connections.next() => {}
        }
    }
}

async fn connection<F>(stream: TcpStream, respond: &F)
where
    F: Fn(&Request<Incoming>) -> Response<String>,
{
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(&request)));
    let result = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = result {
        tracing::debug!(%error, "Health-check connection ended");
    }
}
