// SPDX-License-Identifier: Apache-2.0

//! Packets with the addresses of others: original destinations of what is received, sources of what is sent.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
};

use nix::{
    cmsg_space,
    libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo, sockaddr_in, sockaddr_in6},
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg},
};
use skep_base_net::transparent::{ProxySocket, Transport};
use tokio::{io::Interest, net::UdpSocket};

use super::MARK;

/// Bytes of a UDP header.
const HEADER: usize = 8;
const UDP: u32 = 17;

/// A received packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) client: SocketAddr,
    /// Original destination.
    pub(super) server: SocketAddr,
    pub(super) length: usize,
}

/// Receives a packet into a buffer, which is large enough for any.
pub(super) async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Packet> {
    socket
        .async_io(Interest::READABLE, || receive_now(socket.as_raw_fd(), buffer))
        .await
}

fn receive_now(socket: i32, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut control = cmsg_space!(sockaddr_in6, sockaddr_in6);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let server = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4OrigDstAddr(address) => Some(address4(&address)),
        ControlMessageOwned::Ipv6OrigDstAddr(address) => Some(address6(&address)),
        _ => None,
    });
    let client = message.address.as_ref().and_then(address);
    match (client, server) {
        (Some(client), Some(server)) => Ok(Packet {
            client,
            server,
            length: message.bytes,
        }),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet without its original destination",
        )),
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage
        .as_sockaddr_in()
        .map(|address| SocketAddrV4::from(*address).into());
    v4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|address| SocketAddrV6::from(*address).into())
    })
}

fn address4(address: &sockaddr_in) -> SocketAddr {
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    SocketAddr::new(ip.into(), u16::from_be(address.sin_port))
}

fn address6(address: &sockaddr_in6) -> SocketAddr {
    let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
    SocketAddr::new(ip.into(), u16::from_be(address.sin6_port))
}

/// Sends UDP packets of one address family with any source: a raw socket.
#[derive(Debug)]
pub(super) struct Sender(UdpSocket);

impl Sender {
    pub(super) fn open(is_ipv6: bool) -> io::Result<Self> {
        let socket = ProxySocket {
            transport: Transport::RawUdp,
            is_ipv6,
            mark: MARK,
            bind: None,
            is_listener: false,
        };
        UdpSocket::from_std(std::net::UdpSocket::from(socket.open()?)).map(Self)
    }

    pub(super) async fn send(&self, source: SocketAddr, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let header = header(source, to, bytes)?;
        // Of raw sockets it is the protocol.
        let to = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
        self.0
            .async_io(Interest::WRITABLE, || {
                let parts = [IoSlice::new(&header), IoSlice::new(bytes)];
                let socket = self.0.as_raw_fd();
                let flags = MsgFlags::empty();
                let sent = match source.ip() {
                    IpAddr::V4(source) => {
                        let info = in_pktinfo {
                            ipi_ifindex: 0,
                            ipi_spec_dst: in_addr {
                                s_addr: u32::from(source).to_be(),
                            },
                            ipi_addr: in_addr { s_addr: 0 },
                        };
                        sendmsg(
                            socket,
                            &parts,
                            &[ControlMessage::Ipv4PacketInfo(&info)],
                            flags,
                            Some(&to),
                        )
                    }
                    IpAddr::V6(source) => {
                        let info = in6_pktinfo {
                            ipi6_addr: in6_addr {
                                s6_addr: source.octets(),
                            },
                            ipi6_ifindex: 0,
                        };
                        sendmsg(
                            socket,
                            &parts,
                            &[ControlMessage::Ipv6PacketInfo(&info)],
                            flags,
                            Some(&to),
                        )
                    }
                };
                Ok(sent?)
            })
            .await
            .map(drop)
    }
}

/// A UDP header. IPv6 packets need a checksum (RFC 8200 8.1).
fn header(source: SocketAddr, to: SocketAddr, bytes: &[u8]) -> io::Result<[u8; HEADER]> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "DNS answer is too long for UDP");
    let length = u16::try_from(bytes.len() + HEADER).map_err(too_long)?;
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&source.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    if let (IpAddr::V6(source), IpAddr::V6(to)) = (source.ip(), to.ip()) {
        let mut sum = u32::from(length) + UDP;
        for part in [&source.octets()[..], &to.octets()[..], &header[..], bytes] {
            for pair in part.chunks(2) {
                let low = pair.get(1).copied().unwrap_or_default();
                sum += u32::from(u16::from_be_bytes([pair[0], low]));
            }
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let sum = match !(sum as u16) {
            0 => 0xffff,
            sum => sum,
        };
        header[6..].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_ports_length_and_for_ipv6_a_checksum() {
        let header4 = header(
            "192.0.2.53:53".parse().unwrap(),
            "192.0.2.1:4000".parse().unwrap(),
            b"abc",
        );
        assert_eq!(header4.unwrap(), [0, 53, 0x0f, 0xa0, 0, 11, 0, 0]);

        let (source, to) = ("[2001:db8::53]:53", "[2001:db8::1]:4000");
        let header6 = header(source.parse().unwrap(), to.parse().unwrap(), b"abc").unwrap();
        // 2*(2001+db8) + 53 + 1 + 17 + 11 + ports + length + "ab" + "c\0"
        let sum: u32 = 2 * (0x2001 + 0xdb8) + 0x53 + 1 + 17 + 11 + 53 + 4000 + 11 + 0x6162 + 0x6300;
        let sum = (sum & 0xffff) + (sum >> 16);
        assert_eq!(header6[6..], (!(sum as u16)).to_be_bytes());
    }
}
