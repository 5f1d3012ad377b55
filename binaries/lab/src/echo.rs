// SPDX-License-Identifier: Apache-2.0

//! The lab's built-in workloads: an echo server that says who it is, and a client that calls it.
//!
//! Protocol, TCP and UDP alike: for each line (TCP) or datagram (UDP) received, the server answers one line
//! `<name> <peer address> <what was received>`. A TCP connection stays open until the client closes it.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use skep_listen::{BoundTcp, Connection, Server, Tcp};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpStream, UdpSocket},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Transport protocol of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Transport {
    /// Connections; one line in, one line out.
    Tcp,
    /// Datagrams; one in, one out.
    Udp,
}

/// What an echo server listens on.
#[derive(Debug, Clone, Args)]
pub struct EchoServer {
    /// Name it answers with.
    #[arg(long)]
    pub name: String,
    /// TCP ports.
    #[arg(long, value_delimiter = ',')]
    pub tcp: Vec<u16>,
    /// UDP ports.
    #[arg(long, value_delimiter = ',')]
    pub udp: Vec<u16>,
}

impl EchoServer {
    /// Serves until the process ends.
    ///
    /// # Errors
    /// A port that cannot be listened on.
    pub async fn serve(self) -> io::Result<()> {
        let name: Arc<str> = self.name.into();
        let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let mut tasks = tokio::task::JoinSet::new();
        for port in self.tcp {
            let listener = Tcp::all(port).bind().map_err(io::Error::other)?;
            println!("{name} serves TCP {port}");
            tasks.spawn({
                let name = name.clone();
                async move {
                    serve_tcp(listener, name).await;
                    Ok(())
                }
            });
        }
        for port in self.udp {
            let socket = UdpSocket::bind(any(port)).await?;
            println!("{name} serves UDP {port}");
            tasks.spawn(serve_udp(socket, name.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        // Nothing to serve: a pod without ports stays up all the same.
        std::future::pending().await
    }
}

async fn serve_tcp(listener: BoundTcp, name: Arc<str>) {
    let answer = move |accepted: Connection<TcpStream, SocketAddr>| {
        let name = name.clone();
        async move {
            let peer = accepted.peer;
            let (read, mut write) = accepted.stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let answer = format!("{name} {peer} {line}\n");
                if write.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    };
    // Clients of load tests keep thousands.
    let server = Server::new("echo", listener).connections(usize::MAX);
    server.serve(CancellationToken::new(), answer).await;
}

async fn serve_udp(socket: UdpSocket, name: Arc<str>) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        // Errors of earlier answers (a client that has closed its port) arrive here; they end nothing.
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let text = String::from_utf8_lossy(&buffer[..length]);
        let _ = socket
            .send_to(format!("{name} {peer} {}\n", text.trim_end()).as_bytes(), peer)
            .await;
    }
}

/// Calls an echo server many times.
#[derive(Debug, Clone, Args)]
pub struct Calls {
    /// Where to: `address:port`, IPv6 addresses in brackets.
    pub to: String,
    /// By which protocol.
    #[arg(long, value_enum, default_value = "tcp")]
    pub transport: Transport,
    /// How many calls, each by a socket of its own.
    #[arg(long, default_value_t = 1)]
    pub count: u32,
    /// Instead of counting, call until this many seconds have passed.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Pause between two calls, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// How long one call may take, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    pub patience: u64,
    /// One socket for all calls: for UDP a connected one.
    #[arg(long)]
    pub keep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Results of the calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Calls that were answered.
    pub answered: u32,
    /// Calls that failed.
    pub failed: u32,
    /// Answers by the name of the server.
    pub servers: BTreeMap<String, u32>,
    /// Distinct errors, with how often each was seen.
    pub errors: BTreeMap<String, u32>,
}

impl Calls {
    /// Makes the calls.
    ///
    /// # Errors
    /// An address that cannot be read. Failed calls are counted, not errors.
    pub async fn run(&self) -> io::Result<Outcome> {
        let to = self
            .to
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("no address"))?;
        let mut outcome = Outcome::default();
        let start = Instant::now();
        let mut kept = None;
        for call in 0_u32.. {
            let over = match self.seconds {
                Some(seconds) => start.elapsed().as_secs_f64() >= seconds,
                None => call >= self.count,
            };
            if over {
                break;
            }
            let patience = Duration::from_millis(self.patience);
            let answer = match timeout(patience, self.call(to, &mut kept)).await {
                Ok(answer) => answer,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
            };
            match answer {
                Ok(server) => {
                    outcome.answered += 1;
                    *outcome.servers.entry(server).or_default() += 1;
                }
                Err(err) => {
                    kept = None;
                    outcome.failed += 1;
                    *outcome.errors.entry(err.to_string()).or_default() += 1;
                }
            }
            if self.pause > 0 {
                tokio::time::sleep(Duration::from_millis(self.pause)).await;
            }
        }
        Ok(outcome)
    }

    async fn call(&self, to: SocketAddr, kept: &mut Option<Socket>) -> io::Result<String> {
        let mut socket = match kept.take() {
            Some(socket) => socket,
            None => Socket::open(self.transport, to, self.keep).await?,
        };
        let answer = socket.ask(to).await?;
        if self.keep {
            *kept = Some(socket);
        }
        answer
            .split(' ')
            .next()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(format!("unexpected answer `{answer}`")))
    }
}

enum Socket {
    Stream(BufReader<TcpStream>),
    Datagram { socket: UdpSocket, connected: bool },
}

impl Socket {
    async fn open(transport: Transport, to: SocketAddr, connect: bool) -> io::Result<Self> {
        match transport {
            Transport::Tcp => Ok(Self::Stream(BufReader::new(TcpStream::connect(to).await?))),
            Transport::Udp => {
                let any: SocketAddr = if to.is_ipv4() {
                    ([0, 0, 0, 0], 0).into()
                } else {
                    (Ipv6Addr::UNSPECIFIED, 0).into()
                };
                let socket = UdpSocket::bind(any).await?;
                if connect {
                    socket.connect(to).await?;
                }
                Ok(Self::Datagram {
                    socket,
                    connected: connect,
                })
            }
        }
    }

    async fn ask(&mut self, to: SocketAddr) -> io::Result<String> {
        match self {
            Self::Stream(stream) => {
                stream.write_all(b"hello\n").await?;
                let mut line = String::new();
                if stream.read_line(&mut line).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(line)
            }
            Self::Datagram { socket, connected } => {
                let mut buffer = vec![0; 65_536];
                if *connected {
                    socket.send(b"hello").await?;
                    let length = socket.recv(&mut buffer).await?;
                    return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned());
                }
                socket.send_to(b"hello", to).await?;
                let (length, from) = socket.recv_from(&mut buffer).await?;
                // The caller must see the service's address, not the backend's.
                if from != to {
                    return Err(io::Error::other(format!("answer from {from}, expected {to}")));
                }
                Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
            }
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} answered, {} failed", self.answered, self.failed)?;
        for (server, count) in &self.servers {
            write!(out, "\n  {server}: {count}")?;
        }
        for (error, count) in &self.errors {
            write!(out, "\n  error `{error}`: {count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn server() -> (SocketAddr, SocketAddr) {
        let tcp = Tcp::new("127.0.0.1:0".parse().unwrap()).bind().unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = (tcp.address(), udp.local_addr().unwrap());
        tokio::spawn(serve_tcp(tcp, "web-0".into()));
        tokio::spawn(serve_udp(udp, "web-0".into()));
        at
    }

    fn calls(to: SocketAddr, transport: Transport, keep: bool) -> Calls {
        Calls {
            to: to.to_string(),
            transport,
            count: 3,
            seconds: None,
            pause: 0,
            patience: 30_000,
            keep,
            json: false,
        }
    }

    #[tokio::test]
    async fn counts_answers_by_server_over_both_protocols() {
        let (tcp, udp) = server().await;

        for (to, transport) in [(tcp, Transport::Tcp), (udp, Transport::Udp)] {
            for keep in [false, true] {
                let outcome = calls(to, transport, keep).run().await.unwrap();
                assert_eq!(
                    (outcome.answered, outcome.failed),
                    (3, 0),
                    "{transport:?} keep={keep}"
                );
                assert_eq!(outcome.servers["web-0"], 3);
            }
        }
    }

    #[tokio::test]
    async fn counts_refused_connections_as_failed() {
        // Bound, so that the port is taken, and not listening.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let free = silent.local_addr().unwrap();

        let outcome = calls(free, Transport::Tcp, false).run().await.unwrap();

        assert_eq!((outcome.answered, outcome.failed), (0, 3));
        assert!(
            outcome.errors.keys().next().unwrap().contains("refused"),
            "{outcome}"
        );
    }
}
