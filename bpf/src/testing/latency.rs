// SPDX-License-Identifier: Apache-2.0

//! What a call costs through a service, and what it costs without.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType};

use super::{Frontend, LbMaps, Node};
use crate::{
    lb::LbMapSizes,
    link::CgroupLinks,
    load::{SocketLb, SocketOptions},
};

type BoxError = Box<dyn Error + Send + Sync>;

/// Parameters of [`LatencyBench::run`].
#[derive(Debug, Clone, Copy)]
pub struct LatencyBench {
    /// Services in the maps while measuring.
    pub services: u16,
    /// Calls in one round.
    pub calls: u32,
    /// Rounds; the fastest counts, as everything else on the machine only adds.
    pub rounds: u32,
    /// Whether trace events are on, as they are by default.
    pub trace: bool,
}

/// Time of one call.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// UDP `connect()` straight to the backend, no programs attached.
    pub connect_bare: Duration,
    /// UDP `connect()` straight to the backend, programs attached.
    pub connect_direct: Duration,
    /// UDP `connect()` to the service.
    pub connect_service: Duration,
    /// `sendto()` straight to the backend, no programs attached.
    pub send_bare: Duration,
    /// `sendto()` straight to the backend, programs attached.
    pub send_direct: Duration,
    /// `sendto()` to the service.
    pub send_service: Duration,
    /// TCP `socket()`, `connect()` and `close()` straight to the backend, programs attached.
    pub tcp_direct: Duration,
    /// TCP `socket()`, `connect()` and `close()` to the service.
    pub tcp_service: Duration,
}

impl LatencyBench {
    /// Measures in a world of its own.
    ///
    /// # Errors
    ///
    /// Whatever keeps the world from being made or the calls from succeeding.
    pub fn run(self) -> Result<Latency, BoxError> {
        Node::run("latency", |node| self.measure(node))
    }

    fn measure(self, node: &Node) -> Result<Latency, BoxError> {
        let backend_ip = Ipv4Addr::new(10, 244, 0, 1);
        node.add_address(backend_ip.into())?;
        let receiver = UdpSocket::bind((backend_ip, 0))?;
        let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        let backend = receiver.local_addr()?;
        rustix::net::bind(listener.as_fd(), &backend)?;
        rustix::net::listen(listener.as_fd(), 4096)?;

        let bare_connect = self.best(|| connect_udp(backend, self.calls))?;
        let bare_send = self.best(|| send_udp(backend, self.calls))?;

        let store = node.store();
        let sizes = LbMapSizes::uniform(u32::from(self.services) * 4 + 64);
        let maps = LbMaps::open(&store, sizes)?;
        let mut last = backend;
        for n in 0..self.services {
            let [high, low] = n.to_be_bytes();
            last = SocketAddrV4::new(Ipv4Addr::new(10, 96, high, low), 80).into();
            for (id, proto) in [(2 * n + 1, 6), (2 * n + 2, 17)] {
                maps.upsert(&Frontend::new(id, last, proto, &[backend]))?;
            }
        }
        let options = SocketOptions {
            trace: self.trace,
            ..SocketOptions::default()
        };
        let programs = SocketLb::load(&store, sizes, &options, |_| true)?;
        let directory = node.bpf_root().join("links");
        programs.attach(&CgroupLinks::new(&directory, node.cgroup_root())?, &directory)?;

        Ok(Latency {
            connect_bare: bare_connect,
            connect_direct: self.best(|| connect_udp(backend, self.calls))?,
            connect_service: self.best(|| connect_udp(last, self.calls))?,
            send_bare: bare_send,
            send_direct: self.best(|| send_udp(backend, self.calls))?,
            send_service: self.best(|| send_udp(last, self.calls))?,
            tcp_direct: self.best(|| connect_tcp(backend, listener.as_fd(), self.calls / 10))?,
            tcp_service: self.best(|| connect_tcp(last, listener.as_fd(), self.calls / 10))?,
        })
    }

    fn best(self, mut round: impl FnMut() -> Result<Duration, BoxError>) -> Result<Duration, BoxError> {
        let mut best = round()?;
        for _ in 1..self.rounds {
            best = best.min(round()?);
        }
        Ok(best)
    }
}

fn connect_udp(to: SocketAddr, calls: u32) -> Result<Duration, BoxError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let start = Instant::now();
    for _ in 0..calls {
        rustix::net::connect(socket.as_fd(), &to)?;
    }
    Ok(start.elapsed() / calls.max(1))
}

fn send_udp(to: SocketAddr, calls: u32) -> Result<Duration, BoxError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let start = Instant::now();
    for _ in 0..calls {
        socket.send_to(b"x", to)?;
    }
    Ok(start.elapsed() / calls.max(1))
}

fn connect_tcp(
    to: SocketAddr,
    listener: std::os::fd::BorrowedFd<'_>,
    calls: u32,
) -> Result<Duration, BoxError> {
    let mut total = Duration::ZERO;
    for _ in 0..calls.max(1) {
        let start = Instant::now();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        // A reset instead of TIME_WAIT: the next thousand connections need ports, too.
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        rustix::net::connect(&socket, &to)?;
        drop(socket);
        total += start.elapsed();
        drop(rustix::net::accept(listener)?);
    }
    Ok(total / calls.max(1))
}
