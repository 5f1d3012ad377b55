// SPDX-License-Identifier: Apache-2.0

//! ICMP echo requests of both families, by raw sockets (CAP_NET_RAW).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use tokio::{
    net::UdpSocket,
    time::{Instant, timeout_at},
};

/// Time between two requests of a probe.
const PAUSE: Duration = Duration::from_millis(100);
const HEADER: usize = 8;

/// Types of requests and replies.
struct Family {
    request: u8,
    reply: u8,
}

const V4: Family = Family { request: 8, reply: 0 };
const V6: Family = Family {
    request: 128,
    reply: 129,
};

/// Sends up to `requests` echo requests; returns the round-trip time of the first reply.
pub(crate) async fn ping(address: IpAddr, requests: u32, timeout: Duration) -> io::Result<Duration> {
    let deadline = Instant::now() + timeout;
    let exchange = exchange(address, requests);
    timeout_at(deadline, exchange).await.unwrap_or_else(|_| {
        Err(io::Error::from_raw_os_error(
            rustix::io::Errno::TIMEDOUT.raw_os_error(),
        ))
    })
}

async fn exchange(address: IpAddr, requests: u32) -> io::Result<Duration> {
    let (domain, protocol, family) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, V4),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, V6),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(domain, SocketType::RAW, flags, Some(protocol))?;
    rustix::net::connect(&socket, &SocketAddr::new(address, 0))?;
    // Connected, a raw socket is used as one of datagrams is.
    let socket = UdpSocket::from_std(socket.into())?;
    let id: u16 = rand::random();
    let mut sent: Vec<Instant> = Vec::new();
    loop {
        if sent.len() < requests as usize {
            sent.push(Instant::now());
            socket.send(&request(&family, id, sent.len() as u16)).await?;
        }
        let more = sent.len() < requests as usize;
        let reply = reply(&socket, address.is_ipv4(), &family, id);
        let sequence = match more {
            true => match tokio::time::timeout(PAUSE, reply).await {
                Ok(sequence) => sequence?,
                Err(_) => continue,
            },
            false => reply.await?,
        };
        if let Some(at) = usize::from(sequence).checked_sub(1).and_then(|at| sent.get(at)) {
            return Ok(at.elapsed());
        }
    }
}

/// Waits for a reply; returns its sequence number.
async fn reply(socket: &UdpSocket, is_ipv4: bool, family: &Family, id: u16) -> io::Result<u16> {
    let mut packet = [0; 512];
    loop {
        let length = socket.recv(&mut packet).await?;
        if let Some(sequence) = sequence_of(&packet[..length], is_ipv4, family, id) {
            return Ok(sequence);
        }
    }
}

/// Sequence number of the reply to one of our requests. IPv4 packets come with their header.
fn sequence_of(packet: &[u8], is_ipv4: bool, family: &Family, id: u16) -> Option<u16> {
    let header = match is_ipv4 {
        true => usize::from(packet.first()? & 0x0f) * 4,
        false => 0,
    };
    let message: &[u8; HEADER] = packet.get(header..header + HEADER)?.try_into().ok()?;
    let is_ours = message[0] == family.reply && message[4..6] == id.to_be_bytes();
    is_ours.then(|| u16::from_be_bytes([message[6], message[7]]))
}

/// An echo request without payload. The kernel computes the checksum of IPv6.
fn request(family: &Family, id: u16, sequence: u16) -> [u8; HEADER] {
    let ([i0, i1], [s0, s1]) = (id.to_be_bytes(), sequence.to_be_bytes());
    let mut message = [family.request, 0, 0, 0, i0, i1, s0, s1];
    let words = message
        .chunks_exact(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_to_own_requests_are_found() {
        // By hand: 8 << 8 | 0, id 0x1234, sequence 1.
        assert_eq!(request(&V4, 0x1234, 1), [8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1]);
        let mut packet = vec![0x45; 20];
        packet.extend([0, 0, 0, 0, 0x12, 0x34, 0, 3]);

        assert_eq!(sequence_of(&packet, true, &V4, 0x1234), Some(3));
        assert_eq!(sequence_of(&packet, true, &V4, 0x1235), None, "of another probe");
        assert_eq!(
            sequence_of(&packet[20..], false, &V6, 0x1234),
            None,
            "of another type"
        );
        assert_eq!(sequence_of(&packet[..24], true, &V4, 0x1234), None, "cut");
        assert_eq!(sequence_of(&[], true, &V4, 0x1234), None);
    }

    #[tokio::test]
    async fn the_own_host_answers() {
        let answer = ping("127.0.0.1".parse().unwrap(), 3, Duration::from_secs(10)).await;

        match answer {
            Ok(latency) => assert!(latency < Duration::from_secs(1), "{latency:?}"),
            // Without CAP_NET_RAW.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
