// SPDX-License-Identifier: Apache-2.0

//! Queries by TCP: a connection to the server for each one of a client, closed with it.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{DnsProxy, Request};

/// Time that clients may be silent.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of connections of a socket.
const CONNECTIONS: usize = 4096;
/// Pause after an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers the queries of connections.
pub(crate) async fn serve(proxy: Arc<DnsProxy>, listener: TcpListener) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if tasks.len() < CONNECTIONS => accepted,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        match accepted {
            Ok((stream, client)) => {
                let proxy = proxy.clone();
                tasks.spawn(async move {
                    if let Err(error) = answer_all(&proxy, stream).await {
                        tracing::debug!(%client, %error, "DNS connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "Cannot accept a DNS connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer_all(proxy: &DnsProxy, mut stream: TcpStream) -> io::Result<()> {
    let request = Request {
        client: stream.peer_addr()?,
        // The socket has the address that the client connected to.
        server: stream.local_addr()?,
        is_tcp: true,
    };
    stream.set_nodelay(true)?;
    let mut connection = None;
    loop {
        let query = match tokio::time::timeout(IDLE, read(&mut stream)).await {
            Ok(Ok(Some(query))) => query,
            Ok(Ok(None)) | Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
        };
        let Some(reply) = proxy.answer(&request, &query, &mut connection).await else {
            // A server is silent: the client shall not wait for what comes after.
            return Ok(());
        };
        write(&mut stream, &reply).await?;
    }
}

/// Reads a message with its length; none at the end.
pub(super) async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        length => length?,
    };
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

pub(super) async fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(bytes);
    stream.write_all(&message).await
}
