// SPDX-License-Identifier: Apache-2.0

//! Forwards connections from this machine's loopback into the lab's network.

use std::{
    io,
    net::{SocketAddr, TcpStream as BlockingStream},
    time::Duration,
};

use skep_listen::{BoundTcp, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

use crate::link;

/// How long a connection inside may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Passes the connections of `listener` on to `address` in the network namespace of process `pid`, until stopped.
pub(super) async fn forward(listener: BoundTcp, pid: u32, address: SocketAddr, stop: CancellationToken) {
    Server::new("forwarded API server", listener)
        .drain(Duration::ZERO)
        .serve(stop, move |accepted| pass(accepted.stream, pid, address))
        .await;
}

async fn pass(mut outside: TcpStream, pid: u32, address: SocketAddr) {
    let result = async {
        let mut inside = connect(pid, address).await?;
        copy_bidirectional(&mut outside, &mut inside).await
    };
    if let Err(err) = result.await {
        tracing::debug!(error = %err, %address, "Connection to the API server closed");
    }
}

/// Whether a server in the network namespace of process `pid` answers `GET /readyz` with 200.
pub(crate) async fn is_ready(pid: u32, address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = connect(pid, address).await?;
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    matches!(tokio::time::timeout(CONNECT, ask).await, Ok(Ok(true)))
}

/// A socket belongs to the network namespace in which it was created.
async fn connect(pid: u32, address: SocketAddr) -> io::Result<TcpStream> {
    let made = tokio::task::spawn_blocking(move || {
        link::inside(pid, move |_| {
            let stream = BlockingStream::connect_timeout(&address, CONNECT);
            Ok(stream.and_then(|stream| stream.set_nonblocking(true).map(|()| stream)))
        })
    });
    let stream = made
        .await
        .map_err(io::Error::other)?
        .map_err(io::Error::other)??;
    TcpStream::from_std(stream)
}
