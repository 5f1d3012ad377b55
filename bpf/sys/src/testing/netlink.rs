// SPDX-License-Identifier: Apache-2.0

//! The route-netlink requests a test world needs.

use std::{io, net::IpAddr};

use crate::netlink::{Body, NLM_F_CREATE, request};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
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
    request(RTM_NEWLINK, 0, &Body::new(&body))
}

pub(super) fn add_address(address: IpAddr) -> io::Result<()> {
    let (family, bits, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, 32, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, 128, v6.octets().to_vec()),
    };
    // struct ifaddrmsg
    let mut structure = vec![family, bits, NO_DAD, 0];
    structure.extend(LOOPBACK.to_ne_bytes());
    let body = Body::new(&structure)
        .attribute(IFA_LOCAL, &bytes)
        .attribute(IFA_ADDRESS, &bytes);
    request(RTM_NEWADDR, NLM_F_CREATE, &body)
}
