// SPDX-License-Identifier: Apache-2.0

//! The unix socket: every connection is a listener.

use std::{io, path::PathBuf, sync::Arc};

use hive::JobCtx;
use skep_datapath_monitor_events::payload;
use skep_listen::{BindError, Connection, Server, Unix};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{Config, Monitor};

const SETTING: &str = "monitor-socket-path";
/// The group that owns the socket, if the system has it.
const GROUP: &str = "cilium";
/// Listeners at once. Each may hold a queue of events.
const CONNECTIONS: usize = 64;
/// Messages that are written at once.
const BATCH: usize = 256;

/// Why the monitor's socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No program can report anything. Retried: the map is made when the datapath starts.
    #[error("no map of events is pinned at {}", path.display())]
    NotPinned { path: PathBuf },
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// Serves listeners until the job is cancelled. `map` is where the map of events is pinned.
pub(crate) async fn serve(
    config: &Config,
    map: PathBuf,
    monitor: Arc<Monitor>,
    cx: JobCtx,
) -> Result<(), ServeError> {
    if !map.exists() {
        return Err(ServeError::NotPinned { path: map });
    }
    let socket = Unix::new(&config.socket)
        .mode(0o660)
        .group(GROUP)
        .setting(SETTING)
        .bind()?;
    cx.health.ok(format!("Listening on {}", config.socket.display()));
    let handler = move |connection: Connection<UnixStream, _>| {
        let monitor = monitor.clone();
        async move {
            let (reader, writer) = connection.stream.into_split();
            let ended = tokio::select! {
                ended = send(&monitor, writer) => ended,
                ended = closed(reader) => ended,
                () = connection.stop.cancelled() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(listener = connection.number, error = %error, "Monitor listener disconnected");
            }
        }
    };
    Server::new("monitor", socket)
        .connections(CONNECTIONS)
        .serve(cx.token.clone(), handler)
        .await;
    Ok(())
}

async fn send(monitor: &Monitor, mut writer: OwnedWriteHalf) -> io::Result<()> {
    let mut listener = monitor.listen();
    writer.write_all(payload::DEFINITION).await?;
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    loop {
        listener.receive(&mut messages, BATCH).await;
        for message in messages.drain(..) {
            bytes.extend_from_slice(&message);
        }
        writer.write_all(&bytes).await?;
        bytes.clear();
    }
}

/// Waits for the end of the connection. Listeners send nothing; what one sends is not looked at.
async fn closed(mut reader: OwnedReadHalf) -> io::Result<()> {
    let mut buffer = [0; 64];
    while reader.read(&mut buffer).await? > 0 {}
    Ok(())
}
