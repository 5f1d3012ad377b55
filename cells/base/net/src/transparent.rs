// SPDX-License-Identifier: Apache-2.0

//! Sockets of transparent proxies: their addresses may be those of others. They need `CAP_NET_ADMIN`.

use std::{
    io,
    mem::size_of_val,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

/// Connections that wait for `accept`.
const BACKLOG: i32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
    /// Sends UDP packets with the header that it is given, and receives none.
    RawUdp,
}

/// A socket to open: non-blocking, of one address family.
#[derive(Debug, Clone, Copy)]
pub struct ProxySocket {
    pub transport: Transport,
    pub is_ipv6: bool,
    /// Mark of its packets.
    pub mark: u32,
    /// Own address; also one that the node does not have.
    pub bind: Option<SocketAddr>,
    /// It is a server: TCP sockets listen, UDP sockets report the original destinations of packets.
    pub is_listener: bool,
}

impl ProxySocket {
    /// Opens the socket in the network namespace of this thread.
    ///
    /// # Errors
    ///
    /// The error of the kernel, such as `EADDRINUSE`.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let family = match self.is_ipv6 {
            false => AddressFamily::INET,
            true => AddressFamily::INET6,
        };
        let (kind, protocol) = match self.transport {
            Transport::Udp => (SocketType::DGRAM, None),
            Transport::Tcp => (SocketType::STREAM, None),
            Transport::RawUdp => (SocketType::RAW, Some(ipproto::UDP)),
        };
        let socket = socket_with(
            family,
            kind,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            protocol,
        )?;
        set(&socket, libc::SOL_SOCKET, libc::SO_MARK, &self.mark)?;
        if self.bind.is_some() || self.transport == Transport::RawUdp {
            match self.is_ipv6 {
                false => set(&socket, libc::SOL_IP, libc::IP_TRANSPARENT, &1_i32)?,
                true => set(&socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, &1_i32)?,
            }
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        if self.is_ipv6 && self.transport != Transport::RawUdp {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        if self.transport == Transport::RawUdp {
            // Else it gets a copy of each UDP packet of the node.
            let nothing = libc::sock_filter {
                code: 6, // BPF_RET
                jt: 0,
                jf: 0,
                k: 0,
            };
            let mut program = [nothing];
            let filter = libc::sock_fprog {
                len: 1,
                filter: program.as_mut_ptr(),
            };
            set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        }
        if self.is_listener && self.transport == Transport::Udp {
            match self.is_ipv6 {
                false => set(&socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR, &1_i32)?,
                true => set(&socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR, &1_i32)?,
            }
        }
        if let Some(address) = self.bind {
            bind(&socket, &address)?;
        }
        if self.is_listener && self.transport == Transport::Tcp {
            listen(&socket, BACKLOG)?;
        }
        Ok(socket)
    }
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(value)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes at `value`, which are there, and what a filter points to, which the caller holds.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
