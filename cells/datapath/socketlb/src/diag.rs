// SPDX-License-Identifier: Apache-2.0

//! Destroying sockets by netlink (`inet_diag`), for kernels whose programs cannot (before Linux 6.5).
//!
//! All sockets of the namespace are listed for each family and protocol; those whose peer is a dead backend
//! that they reached through a service are destroyed. Layouts are those of `linux/inet_diag.h`.

use std::{
    collections::HashSet,
    io,
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use skep_bpf_maps::lb::{
    LbMapSizes, REVERSE_SK4, REVERSE_SK6, ReverseSk4, ReverseSk4Key, ReverseSk6, ReverseSk6Key, U16,
};
use skep_bpf_programs::DeadBackend;
use skep_bpf_sys::{Map, MapError, MapStore};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// States of sockets that have a peer: all but TIME_WAIT (6), CLOSE (7), LISTEN (10), NEW_SYN_RECV (12).
const STATES: u32 = !(1 << 6 | 1 << 7 | 1 << 10 | 1 << 12);

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

/// `struct nlmsghdr`
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    seq: u32,
    pid: u32,
}

/// `struct inet_diag_sockid`
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SockId {
    sport: U16,
    dport: U16,
    src: [u8; 16],
    dst: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}
const _: () = assert!(size_of::<SockId>() == 48 && offset_of!(SockId, cookie) == 40);

/// `struct inet_diag_req_v2`
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SockId,
}
const _: () = assert!(size_of::<Request>() == 56);

/// `struct inet_diag_msg`, its first fields.
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Answer {
    family: u8,
    state: u8,
    timer: u8,
    retrans: u8,
    id: SockId,
}

impl Answer {
    fn peer(&self) -> SocketAddr {
        let ip = if i32::from(self.family) == libc::AF_INET {
            let [a, b, c, d, ..] = self.id.dst;
            IpAddr::from([a, b, c, d])
        } else {
            // IPv6 sockets talk to IPv4 backends by mapped addresses.
            Ipv6Addr::from(self.id.dst).to_canonical()
        };
        SocketAddr::new(ip, self.id.dport.get())
    }

    fn cookie(&self) -> u64 {
        let [low, high] = self.id.cookie;
        u64::from(high) << 32 | u64::from(low)
    }
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
                    let peer = socket.peer();
                    if !dead.contains(&(peer, proto)) || !self.came_by_service(socket.cookie(), peer)? {
                        continue;
                    }
                    match kernel.destroy(family, proto, socket.id) {
                        Ok(()) => destroyed.push(socket.cookie()),
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

    fn send(&self, kind: u16, flags: u16, request: Request) -> io::Result<()> {
        let len = (size_of::<Header>() + size_of::<Request>()) as u32;
        let header = Header {
            len,
            kind,
            flags: NLM_F_REQUEST | flags,
            seq: 0,
            pid: 0,
        };
        let mut message = header.as_bytes().to_vec();
        message.extend(request.as_bytes());
        send(self.socket.as_fd(), &message, SendFlags::empty())?;
        Ok(())
    }

    /// All sockets of a family and protocol that have a peer.
    fn sockets(&mut self, family: u8, protocol: u8) -> io::Result<Vec<Answer>> {
        let request = Request {
            family,
            protocol,
            extensions: 0,
            pad: 0,
            states: STATES,
            id: SockId::new_zeroed(),
        };
        self.send(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request)?;
        let mut found = Vec::new();
        loop {
            let (length, _) = recv(self.socket.as_fd(), &mut *self.buffer, RecvFlags::empty())?;
            for message in Messages(&self.buffer[..length]) {
                let (kind, body) = message?;
                match kind {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => error_of(body)?,
                    _ => found.extend(Answer::read_from_prefix(body).ok().map(|(answer, _)| answer)),
                }
            }
        }
    }

    fn destroy(&mut self, family: u8, protocol: u8, id: SockId) -> io::Result<()> {
        let request = Request {
            family,
            protocol,
            extensions: 0,
            pad: 0,
            states: STATES,
            id,
        };
        self.send(SOCK_DESTROY, NLM_F_ACK, request)?;
        let (length, _) = recv(self.socket.as_fd(), &mut *self.buffer, RecvFlags::empty())?;
        match Messages(&self.buffer[..length]).next() {
            Some(Ok((NLMSG_ERROR, body))) => error_of(body),
            Some(Err(error)) => Err(error),
            _ => Err(truncated()),
        }
    }
}

/// The error number of an acknowledgement; 0 is none.
fn error_of(body: &[u8]) -> io::Result<()> {
    match i32::read_from_prefix(body) {
        Ok((0, _)) => Ok(()),
        Ok((error, _)) => Err(io::Error::from_raw_os_error(-error)),
        Err(_) => Err(truncated()),
    }
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "truncated netlink message")
}

/// The messages in what was received: kind and body.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let parsed = Header::read_from_prefix(self.0).ok().and_then(|(header, _)| {
            let body = self.0.get(size_of::<Header>()..header.len as usize)?;
            Some((header, body))
        });
        let Some((header, body)) = parsed else {
            self.0 = &[];
            return Some(Err(truncated()));
        };
        let next = (header.len as usize).next_multiple_of(4).min(self.0.len());
        self.0 = &self.0[next..];
        Some(Ok((header.kind, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_an_error() {
        for garbage in [&[0_u8; 3][..], &[0; 16], &[255; 32]] {
            assert!(Messages(garbage).next().unwrap().is_err(), "{garbage:?}");
        }
        assert!(Messages(&[]).next().is_none());
        assert!(error_of(&[1]).is_err());
    }
}
