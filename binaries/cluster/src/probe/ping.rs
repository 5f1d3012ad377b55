// SPDX-License-Identifier: Apache-2.0

//! ICMP echo requests: by a socket of `net.ipv4.ping_group_range`, or a raw one.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};

const HEADER: usize = 8;
const ATTEMPTS: u32 = 2;

/// Sends echo requests and waits for a reply. With `is_full` the packet is as large as the route allows, and not fragmented.
pub(crate) fn ping(address: IpAddr, limit: Duration, is_full: bool) -> io::Result<()> {
    let (domain, protocol, headers) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 20),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 40),
    };
    let (socket, is_raw) = match rustix::net::socket(domain, SocketType::DGRAM, Some(protocol)) {
        Ok(socket) => (socket, false),
        Err(_) => (
            rustix::net::socket(domain, SocketType::RAW, Some(protocol))?,
            true,
        ),
    };
    rustix::net::connect(&socket, &SocketAddr::new(address, 0))?;
    let mut size = HEADER;
    if is_full {
        let mtu = match address {
            IpAddr::V4(_) => {
                sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
                sockopt::ip_mtu(&socket)?
            }
            IpAddr::V6(_) => {
                sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
                sockopt::ipv6_mtu(&socket)?
            }
        };
        size = (mtu as usize).saturating_sub(headers).max(HEADER);
        println!("{address}: MTU {mtu}");
    }
    // `read` and `write` of a connected socket; it is no stream.
    let mut socket = TcpStream::from(socket);
    let id = std::process::id() as u16;
    for sequence in 1..=ATTEMPTS as u16 {
        socket.write_all(&request(address.is_ipv4(), id, sequence, size))?;
        let deadline = Instant::now() + limit / ATTEMPTS;
        let mut packet = vec![0; 65_536];
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            socket.set_read_timeout(Some(rest.max(Duration::from_millis(1))))?;
            let length = match socket.read(&mut packet) {
                Ok(length) => length,
                Err(error) if code_is_timeout(&error) => break,
                Err(error) => return Err(error),
            };
            let skipped = match is_raw && address.is_ipv4() {
                true => usize::from(packet[0] & 0x0f) * 4,
                false => 0,
            };
            let wanted = if address.is_ipv4() { 0 } else { 129 };
            if let Some([kind, _, _, _, i0, i1, ..]) = packet.get(skipped..length)
                && *kind == wanted
                // A socket of a group has an id that the kernel chose.
                && (!is_raw || [*i0, *i1] == id.to_be_bytes())
            {
                return Ok(());
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn code_is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// An echo request with a payload of zeros. The kernel computes the checksum of IPv6.
fn request(is_ipv4: bool, id: u16, sequence: u16, size: usize) -> Vec<u8> {
    let ([i0, i1], [s0, s1]) = (id.to_be_bytes(), sequence.to_be_bytes());
    let mut message = vec![if is_ipv4 { 8 } else { 128 }, 0, 0, 0, i0, i1, s0, s1];
    let words = message
        .chunks_exact(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message.resize(size.max(HEADER), 0);
    message
}
