// SPDX-License-Identifier: Apache-2.0

//! Forwards connections from this machine's loopback into the lab's network.

use std::{
    io,
    net::{SocketAddr, TcpStream as BlockingStream},
    time::Duration,
};

use skep_listen::{BoundTcp, Server};
use tokio::{io::copy_bidirectional, net::TcpStream};
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
        tracing::debug!(error = %err, %address, "a connection to the API server ended");
    }
}

/// A socket belongs to the network namespace in which it was created.
async fn connect(pid: u32, address: SocketAddr) -> io::Result<TcpStream> {
    let made = tokio::task::spawn_blocking(move || {
        link::inside(pid, async move |_| {
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
