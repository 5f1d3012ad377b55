// SPDX-License-Identifier: Apache-2.0

//! The way to a server, which can be shut.

use std::{io::ErrorKind, net::SocketAddr};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use crate::Outcome;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Connections are accepted, and nothing passes.
    Closed,
    /// Connections end at once.
    Gone,
}

/// Passes connections to a server, or keeps them waiting.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    way: watch::Sender<Way>,
    task: JoinHandle<()>,
}

impl Gate {
    pub async fn start(to: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (way, now) = watch::channel(Way::Open);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to, now.clone()));
            }
        });
        Ok(Self { address, way, task })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn open(&self) {
        self.way.send_replace(Way::Open);
    }

    /// What is on its way waits.
    pub fn close(&self) {
        self.way.send_replace(Way::Closed);
    }

    /// Connections end, and new ones, too.
    pub fn go_away(&self) {
        self.way.send_replace(Way::Gone);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, to: SocketAddr, mut now: watch::Receiver<Way>) {
    tokio::select! {
        _ = forward(client, to, now.clone()) => {}
        _ = now.wait_for(|way| *way == Way::Gone) => {}
    }
}

/// Until one side ends.
async fn forward(mut client: TcpStream, to: SocketAddr, mut way: watch::Receiver<Way>) -> Option<()> {
    way.wait_for(|way| *way == Way::Open).await.ok()?;
    let mut server = TcpStream::connect(to).await.ok()?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        way.wait_for(|way| *way == Way::Open).await.ok()?;
        tokio::select! {
            ready = client.readable() => {
                ready.ok()?;
                move_on(&client, &mut server, &mut bytes).await?;
            }
            ready = server.readable() => {
                ready.ok()?;
                move_on(&server, &mut client, &mut bytes).await?;
            }
            changed = way.changed() => changed.ok()?,
        }
    }
}

/// Moves what is there; none at the end.
async fn move_on(from: &TcpStream, to: &mut TcpStream, bytes: &mut [u8]) -> Option<()> {
    match from.try_read(bytes) {
        Ok(0) => None,
        Ok(length) => to.write_all(&bytes[..length]).await.ok(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(()),
        Err(_) => None,
    }
}
