// SPDX-License-Identifier: Apache-2.0

//! Destroying sockets by netlink (`inet_diag`), for kernels whose programs cannot (before Linux 6.5).
//!
//! All sockets of the namespace are listed for each family and protocol; those whose peer is a dead backend
//! that they reached through a service are destroyed.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_sock_diag::{
    SockDiagDestroy, SockDiagMessage,
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use skep_bpf_maps::lb::{
    LbMapSizes, REVERSE_SK4, REVERSE_SK6, ReverseSk4, ReverseSk4Key, ReverseSk6, ReverseSk6Key,
};
use skep_bpf_programs::DeadBackend;
use skep_bpf_sys::{Map, MapError, MapStore};

/// Why sockets could not be destroyed.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    /// No socket to the kernel. Needs CAP_NET_ADMIN.
    #[error("cannot talk to the kernel's socket diagnosis")]
    Socket(#[source] io::Error),
    /// The kernel did not list the sockets.
    #[error("cannot list sockets of protocol {proto}")]
    List {
        /// IP protocol number.
        proto: u8,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to destroy a socket.
    #[error("cannot destroy a socket connected to {peer}")]
    Destroy {
        /// Where the socket is connected to.
        peer: SocketAddr,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A reverse socket map was not read.
    #[error("cannot read a reverse socket map")]
    Map(#[from] MapError),
}

impl DiagError {
    /// The kernel was built without the means (CONFIG_INET_DIAG_DESTROY, CONFIG_INET_UDP_DIAG): trying again
    /// is no use.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Socket(source) | Self::List { source, .. } | Self::Destroy { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOENT)
            ),
            Self::Map(_) => false,
        }
    }
}

/// Where a socket is connected to. IPv6 sockets talk to IPv4 backends by mapped addresses.
fn peer(id: &SocketId) -> SocketAddr {
    SocketAddr::new(id.destination_address.to_canonical(), id.destination_port)
}

/// The cookie as programs see it: two numbers of 32 bits, the lower one first.
fn cookie(id: &SocketId) -> u64 {
    let [a, b, c, d, rest @ ..] = id.cookie;
    u64::from(u32::from_ne_bytes(rest)) << 32 | u64::from(u32::from_ne_bytes([a, b, c, d]))
}

/// Destroys sockets by netlink.
#[derive(Debug)]
pub struct DiagTerminator {
    reverse4: Option<Map<ReverseSk4Key, ReverseSk4>>,
    reverse6: Option<Map<ReverseSk6Key, ReverseSk6>>,
}

impl DiagTerminator {
    /// Opens the reverse socket maps of the families that are on.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map cannot be opened or made.
    pub fn open(store: &MapStore, sizes: LbMapSizes, ipv4: bool, ipv6: bool) -> Result<Self, MapError> {
        let sizes = sizes.into();
        Ok(Self {
            reverse4: ipv4
                .then(|| store.open_or_create(&REVERSE_SK4.spec(&sizes)))
                .transpose()?,
            reverse6: ipv6
                .then(|| store.open_or_create(&REVERSE_SK6.spec(&sizes)))
                .transpose()?,
        })
    }

    /// Destroys the client sockets of all `backends` in the calling thread's network namespace; returns
    /// their cookies.
    ///
    /// # Errors
    ///
    /// [`DiagError`]; sockets may have been destroyed already.
    pub fn run(&self, backends: &[DeadBackend]) -> Result<Vec<u64>, DiagError> {
        let dead: HashSet<(SocketAddr, u8)> = backends
            .iter()
            .map(|backend| (backend.address, backend.proto))
            .collect();
        let protos: HashSet<u8> = backends.iter().map(|backend| backend.proto).collect();
        let mut kernel = Kernel::connect().map_err(DiagError::Socket)?;
        let mut destroyed = Vec::new();
        for proto in protos {
            for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
                let failed = |source| DiagError::List { proto, source };
                for socket in kernel.sockets(family, proto).map_err(failed)? {
                    let (peer, cookie) = (peer(&socket), cookie(&socket));
                    if !dead.contains(&(peer, proto)) || !self.came_by_service(cookie, peer)? {
                        continue;
                    }
                    match kernel.destroy(family, proto, socket) {
                        Ok(()) => destroyed.push(cookie),
                        // It was closed meanwhile.
                        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                        Err(source) => return Err(DiagError::Destroy { peer, source }),
                    }
                }
            }
        }
        Ok(destroyed)
    }

    fn came_by_service(&self, cookie: u64, peer: SocketAddr) -> Result<bool, MapError> {
        Ok(match (peer.ip(), &self.reverse4, &self.reverse6) {
            (IpAddr::V4(ip), Some(map), _) => map
                .lookup(&ReverseSk4Key::new(cookie, ip, peer.port()))?
                .is_some(),
            (IpAddr::V6(ip), _, Some(map)) => map
                .lookup(&ReverseSk6Key::new(cookie, ip, peer.port()))?
                .is_some(),
            _ => false,
        })
    }
}

/// A netlink socket to the kernel's socket diagnosis.
struct Kernel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Kernel {
    fn connect() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        Ok(Self {
            socket,
            buffer: vec![0; 64 * 1024],
        })
    }

    fn send<M>(&self, flags: u16, message: M) -> io::Result<()>
    where
        M: NetlinkSerializable + Into<NetlinkPayload<M>>,
    {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(self.socket.as_fd(), &bytes, SendFlags::empty())?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let (length, _) = recv(self.socket.as_fd(), &mut *self.buffer, RecvFlags::empty())?;
        Ok(&self.buffer[..length])
    }

    /// All sockets of a family and protocol that have a peer.
    fn sockets(&mut self, family: u8, protocol: u8) -> io::Result<Vec<SocketId>> {
        let request = request(family, protocol, SocketId::new_v6());
        self.send(NLM_F_DUMP, SockDiagMessage::InetRequest(request))?;
        let mut found = Vec::new();
        loop {
            for message in messages::<SockDiagMessage>(self.receive()?) {
                match message? {
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.into()),
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => {
                        found.push(socket.header.socket_id);
                    }
                    _ => {}
                }
            }
        }
    }

    fn destroy(&mut self, family: u8, protocol: u8, id: SocketId) -> io::Result<()> {
        let request = SockDiagMessage::InetRequest(request(family, protocol, id));
        self.send(NLM_F_ACK, SockDiagDestroy::new(request))?;
        match messages::<SockDiagMessage>(self.receive()?).next() {
            Some(Ok(NetlinkPayload::Error(error))) if error.code.is_none() => Ok(()),
            Some(Ok(NetlinkPayload::Error(error))) => Err(error.into()),
            Some(Err(error)) => Err(error),
            _ => Err(invalid("the request was not acknowledged")),
        }
    }
}

/// A request for sockets that have a peer: new ones, those that listen and those that are closed have none.
fn request(family: u8, protocol: u8, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all() - StateFlags::TIME_WAIT - StateFlags::CLOSE - StateFlags::LISTEN,
        socket_id,
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The messages in what was received.
fn messages<M>(mut received: &[u8]) -> impl Iterator<Item = io::Result<NetlinkPayload<M>>>
where
    M: NetlinkDeserializable<Error = DecodeError>,
{
    std::iter::from_fn(move || {
        if received.is_empty() {
            return None;
        }
        let message = NetlinkMessage::deserialize(received);
        // Each begins at a multiple of four bytes. Behind one that cannot be decoded nothing is looked for.
        let length = message.as_ref().map_or(received.len(), |message| {
            (message.header.length as usize).next_multiple_of(4)
        });
        received = received.get(length..).unwrap_or_default();
        Some(message.map(|message| message.payload).map_err(invalid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_an_error() {
        for garbage in [&[0_u8; 3][..], &[0; 16], &[255; 32]] {
            let mut found = messages::<SockDiagMessage>(garbage);
            assert!(found.next().unwrap().is_err(), "{garbage:?}");
            assert!(found.next().is_none(), "{garbage:?}");
        }
        assert!(messages::<SockDiagMessage>(&[]).next().is_none());
    }

    #[test]
    fn mapped_peers_are_ipv4_backends() {
        let id = SocketId {
            destination_address: "::ffff:10.1.2.3".parse().unwrap(),
            destination_port: 80,
            cookie: [1_u32.to_ne_bytes(), 2_u32.to_ne_bytes()]
                .concat()
                .try_into()
                .unwrap(),
            ..SocketId::new_v6()
        };

        assert_eq!(peer(&id), "10.1.2.3:80".parse().unwrap());
        assert_eq!(cookie(&id), 2 << 32 | 1);
    }
}
