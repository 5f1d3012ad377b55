// SPDX-License-Identifier: Apache-2.0

//! The two route-netlink requests a test world needs, byte by byte.

use std::{io, net::IpAddr, os::fd::AsFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ACK`
const REQUEST: u16 = 1 | 4;
const IFA_LOCAL: u16 = 2;
const IFA_ADDRESS: u16 = 1;
/// `IFA_F_NODAD`: usable at once.
const NO_DAD: u8 = 2;
/// Loopback is always the first interface of a namespace.
const LOOPBACK: i32 = 1;

pub(super) fn bring_up_loopback() -> io::Result<()> {
    // struct ifinfomsg
    let mut body = vec![0_u8; 4];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend((libc::IFF_UP as u32).to_ne_bytes());
    body.extend((libc::IFF_UP as u32).to_ne_bytes());
    request(RTM_NEWLINK, 0, &body)
}

pub(super) fn add_address(address: IpAddr) -> io::Result<()> {
    let (family, bits, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, 32, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, 128, v6.octets().to_vec()),
    };
    // struct ifaddrmsg
    let mut body = vec![family, bits, NO_DAD, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    for attribute in [IFA_LOCAL, IFA_ADDRESS] {
        body.extend((bytes.len() as u16 + 4).to_ne_bytes());
        body.extend(attribute.to_ne_bytes());
        body.extend(&bytes);
    }
    // NLM_F_CREATE
    request(RTM_NEWADDR, 0x400, &body)
}

fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is protocol 0
    )?;
    let mut message = ((body.len() + 16) as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(socket.as_fd(), &message, SendFlags::empty())?;
    let mut answer = [0_u8; 4096];
    let (length, _) = recv(socket.as_fd(), &mut answer, RecvFlags::empty())?;
    // struct nlmsgerr behind the header: 0 or a negative error number.
    match answer.get(16..20).filter(|_| length >= 20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        },
        _ => Err(io::Error::other("short answer from the kernel")),
    }
}
