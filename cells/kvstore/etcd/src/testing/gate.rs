// SPDX-License-Identifier: Apache-2.0

//! For tests: a network in front of a server that loses one direction, or everything.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What passes a [`Gate`]. What does not waits in it, as long as the connection stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    All,
    Requests,
    Answers,
    /// Nothing: connections are ended, new ones as well.
    Nothing,
}

/// A port of 127.0.0.1 whose connections lead to another one. It ends, with its connections, when this is dropped.
#[derive(Debug)]
pub struct Gate {
    port: u16,
    passes: watch::Sender<Passes>,
    _task: JoinSet<()>,
}

impl Gate {
    /// A gate in front of a port, through which everything passes.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub async fn before(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (passes, state) = watch::channel(Passes::All);
        let mut task = JoinSet::new();
        task.spawn(accept(listener, target, state));
        Self {
            port,
            passes,
            _task: task,
        }
    }

    /// The port of the gate, on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Sets what passes from now on.
    pub fn set(&self, passes: Passes) {
        self.passes.send_replace(passes);
    }
}

async fn accept(listener: TcpListener, target: u16, state: watch::Receiver<Passes>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if *state.borrow() != Passes::Nothing {
            connections.spawn(connect(client, target, state.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(client: TcpStream, target: u16, mut state: watch::Receiver<Passes>) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = |passes| matches!(passes, Passes::All | Passes::Requests);
    let answers = |passes| matches!(passes, Passes::All | Passes::Answers);
    // Either end, or the gate, ends the connection.
    tokio::select! {
        _ = pass(from_client, to_server, state.clone(), requests) => {}
        _ = pass(from_server, to_client, state.clone(), answers) => {}
        _ = state.wait_for(|passes| *passes == Passes::Nothing) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<Passes>,
    may_pass: impl Fn(Passes) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || state.wait_for(|passes| may_pass(*passes)).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
