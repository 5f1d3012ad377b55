// SPDX-License-Identifier: Apache-2.0

//! Queries to servers.
//!
//! Servers see an address of the node, and a random port and id for each query by UDP. In transparent mode they see the
//! address and the port of the pod, if they are in the cluster on another node or the same: then all queries of a port to a
//! server share a socket, and are distinguished by their ids.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use skep_base_net::transparent::{ProxySocket, Transport};
use skep_identity::{NumericIdentity, Reserved};
use tokio::{net::TcpSocket, net::TcpStream, sync::Mutex as AsyncMutex, sync::mpsc};

use super::{MARK, ProxyEndpoint, Request, tcp};
use crate::{
    message::{self, MessageError, Query, Response},
    rules::Server,
};

/// Largest answer.
const BUFFER: usize = 65_535;

/// Why a server was not asked, or what it says not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("cannot reach DNS server {server}")]
    Io {
        server: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("DNS server {server} closed the connection")]
    Closed { server: SocketAddr },
    #[error("DNS server {server}")]
    Message {
        server: SocketAddr,
        #[source]
        source: MessageError,
    },
}

/// Asks servers.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) is_transparent: bool,
    /// Of TCP connections with the address of a pod.
    pub(crate) linger: Option<Duration>,
    shared: Mutex<HashMap<(SocketAddr, SocketAddr), Weak<Shared>>>,
}

/// A socket with the address of a pod, and who waits for which id.
#[derive(Debug)]
struct Shared {
    socket: tokio::net::UdpSocket,
    waiting: Mutex<HashMap<u16, mpsc::Sender<Vec<u8>>>>,
    /// One of those that wait receives for all.
    reader: AsyncMutex<()>,
}

/// Mark of the packets of an identity.
fn mark(identity: NumericIdentity) -> u32 {
    let identity = identity.get();
    MARK | (identity & 0xffff) << 16 | (identity >> 16) & 0xff
}

/// A wait that ends with it.
struct Waiting<'a> {
    shared: &'a Shared,
    id: u16,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.waiting.lock().remove(&self.id);
    }
}

impl Upstream {
    pub(crate) fn new(is_transparent: bool, linger: Option<Duration>) -> Self {
        Self {
            is_transparent,
            linger,
            shared: Mutex::default(),
        }
    }

    /// Asks the server. Returns its answer with what it says; others are passed over.
    pub(crate) async fn exchange(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        server: &Server,
        query: &Query,
        bytes: &[u8],
        connection: &mut Option<TcpStream>,
    ) -> Result<(Vec<u8>, Response), UpstreamError> {
        let source = self.source(request, endpoint, server);
        let failed = |source| UpstreamError::Io {
            server: request.server,
            source,
        };
        match (request.is_tcp, source) {
            (true, source) => {
                self.ask_tcp(request, endpoint, source, query, bytes, connection)
                    .await
            }
            (false, None) => ask_udp(request, endpoint, query, bytes).await.map_err(failed),
            (false, Some(source)) => self
                .ask_shared(request, endpoint, source, query, bytes)
                .await
                .map_err(failed),
        }
    }

    /// The address that the server sees; none: one of the node.
    fn source(&self, request: &Request, endpoint: ProxyEndpoint, server: &Server) -> Option<SocketAddr> {
        let reserved = Reserved::ALL
            .iter()
            .find(|reserved| reserved.identity() == server.identity);
        let is_outside = matches!(
            reserved,
            Some(
                Reserved::World
                    | Reserved::WorldIpv4
                    | Reserved::WorldIpv6
                    | Reserved::Host
                    | Reserved::RemoteNode
                    | Reserved::KubeApiserver
                    | Reserved::Unmanaged
            )
        );
        let is_local_scope = server.identity.get() >= 1 << 24;
        let is_transparent = self.is_transparent
            && !is_outside
            && !is_local_scope
            && endpoint.identity != NumericIdentity::HOST
            && !request.client.ip().is_loopback();
        is_transparent.then_some(request.client)
    }

    async fn ask_shared(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        source: SocketAddr,
        query: &Query,
        bytes: &[u8],
    ) -> io::Result<(Vec<u8>, Response)> {
        let shared = self.shared(request, endpoint, source).await?;
        let (sender, mut answers) = mpsc::channel(4);
        let id = {
            let mut waiting = shared.waiting.lock();
            let is_free = |id: &u16| !waiting.contains_key(id);
            let free = std::iter::once(query.id).chain(std::iter::repeat_with(rand::random));
            let id = free.take(1000).find(is_free);
            let id = id.ok_or_else(|| io::Error::other("too many DNS queries of one port"))?;
            waiting.insert(id, sender);
            id
        };
        let _waiting = Waiting { shared: &shared, id };
        let mut bytes = bytes.to_vec();
        message::set_id(&mut bytes, id);
        shared.socket.send(&bytes).await?;
        loop {
            let answer = tokio::select! {
                answer = answers.recv() => answer,
                read = shared.read() => { read?; continue }
            };
            let Some(answer) = answer else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            if let Ok(response) = query.read(id, &answer) {
                return Ok((answer, response));
            }
        }
    }

    async fn shared(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        source: SocketAddr,
    ) -> io::Result<Arc<Shared>> {
        let key = (source, request.server);
        let mut sockets = self.shared.lock();
        if let Some(shared) = sockets.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        if sockets.len() >= 1024 {
            sockets.retain(|_, socket| socket.strong_count() > 0);
        }
        let socket = open(request, endpoint, Some(source))?;
        let shared = Arc::new(Shared {
            socket,
            waiting: Mutex::default(),
            reader: AsyncMutex::default(),
        });
        sockets.insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }

    async fn ask_tcp(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        source: Option<SocketAddr>,
        query: &Query,
        bytes: &[u8],
        connection: &mut Option<TcpStream>,
    ) -> Result<(Vec<u8>, Response), UpstreamError> {
        let server = request.server;
        let failed = |source| UpstreamError::Io { server, source };
        // It is lost with an error, and if there is no waiter any more.
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => self.connect(request, endpoint, source).await.map_err(failed)?,
        };
        tcp::write(&mut stream, bytes).await.map_err(failed)?;
        loop {
            let answer = tcp::read(&mut stream).await.map_err(failed)?;
            let answer = answer.ok_or(UpstreamError::Closed { server })?;
            match query.read(query.id, &answer) {
                Ok(response) => {
                    *connection = Some(stream);
                    return Ok((answer, response));
                }
                // A late answer to the query before.
                Err(MessageError::Mismatch) => {}
                Err(source) => return Err(UpstreamError::Message { server, source }),
            }
        }
    }

    async fn connect(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        source: Option<SocketAddr>,
    ) -> io::Result<TcpStream> {
        let socket = ProxySocket {
            transport: Transport::Tcp,
            is_ipv6: request.server.is_ipv6(),
            mark: mark(endpoint.identity),
            bind: source,
            is_listener: false,
        };
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket.open()?));
        let stream = socket.connect(request.server).await?;
        stream.set_nodelay(true)?;
        if source.is_some() {
            // Else the next connection with the same ports is refused while this one lingers.
            let socket = nix::sys::socket::sockopt::Linger;
            if let Some(linger) = self.linger {
                let linger = nix::libc::linger {
                    l_onoff: 1,
                    l_linger: i32::try_from(linger.as_secs()).unwrap_or(i32::MAX),
                };
                nix::sys::socket::setsockopt(&stream, socket, &linger)?;
            }
        }
        Ok(stream)
    }
}

impl Shared {
    /// Receives answers until this is cancelled.
    async fn read(&self) -> io::Result<()> {
        let _turn = self.reader.lock().await;
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = self.socket.recv(&mut buffer).await?;
            let answer = buffer.get(..length).unwrap_or_default();
            let Some(id) = answer.get(..2) else { continue };
            let id = u16::from_be_bytes([id[0], id[1]]);
            let waiting = self.waiting.lock().get(&id).cloned();
            if let Some(waiting) = waiting {
                // A full one has been sent too much that is no answer.
                let _ = waiting.try_send(answer.to_vec());
            }
        }
    }
}

fn open(
    request: &Request,
    endpoint: ProxyEndpoint,
    source: Option<SocketAddr>,
) -> io::Result<tokio::net::UdpSocket> {
    let socket = ProxySocket {
        transport: Transport::Udp,
        is_ipv6: request.server.is_ipv6(),
        mark: mark(endpoint.identity),
        bind: source,
        is_listener: false,
    };
    let socket = UdpSocket::from(socket.open()?);
    // The kernel passes over packets of others.
    socket.connect(request.server)?;
    tokio::net::UdpSocket::from_std(socket)
}

async fn ask_udp(
    request: &Request,
    endpoint: ProxyEndpoint,
    query: &Query,
    bytes: &[u8],
) -> io::Result<(Vec<u8>, Response)> {
    let socket = open(request, endpoint, None)?;
    let id: u16 = rand::random();
    let mut bytes = bytes.to_vec();
    message::set_id(&mut bytes, id);
    socket.send(&bytes).await?;
    let mut buffer = vec![0; query.max_size.clamp(4096, BUFFER)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match query.read(id, &buffer[..length]) {
            Ok(response) => {
                buffer.truncate(length);
                return Ok((buffer, response));
            }
            Err(error) => tracing::debug!(server = %request.server, %error, "Dropping a DNS answer"),
        }
    }
}
