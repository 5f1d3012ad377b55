// SPDX-License-Identifier: Apache-2.0

//! What a call costs through a service, and what it costs without; single packets run through a program.

pub mod run;
pub mod signal;

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType};

use crate::{NodeOptions, SocketLb};
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_maps::testing::{Frontend, LbMaps};
use skep_bpf_sys::link::CgroupLinks;
use skep_bpf_sys::testing::Node;

type BoxError = Box<dyn Error + Send + Sync>;

/// Parameters of [`LatencyBench::run`].
#[derive(Debug, Clone, Copy)]
pub struct LatencyBench {
    /// Services in the maps while measuring, each with a TCP and a UDP port.
    pub services: u16,
    pub calls: u32,
    /// Rounds; the median counts. The kinds of calls, and those with and without programs, take turns, so that all of
    /// them get the same quiet and busy moments.
    pub rounds: u32,
    /// Whether trace events are on, as they are by default.
    pub trace: bool,
}

/// Time of one call to a backend.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Straight to the backend, no programs attached.
    pub bare: Duration,
    /// Straight to the backend, programs attached.
    pub direct: Duration,
    pub service: Duration,
}

/// What rounds took, one value a round.
#[derive(Debug, Clone, Default)]
struct Rounds {
    bare: Vec<Duration>,
    direct: Vec<Duration>,
    service: Vec<Duration>,
}

impl Rounds {
    fn median(self) -> Cost {
        Cost {
            bare: median(self.bare),
            direct: median(self.direct),
            service: median(self.service),
        }
    }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Cost {
    /// What the service costs more than the bare call, in nanoseconds.
    pub fn extra(&self) -> i128 {
        self.service.as_nanos().cast_signed() - self.bare.as_nanos().cast_signed()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// UDP `connect()` on a socket that exists.
    pub connect: Cost,
    /// `sendto()` of one byte on an unconnected socket.
    pub send: Cost,
    /// UDP `socket()`, `connect()` and `close()`.
    pub udp: Cost,
    /// TCP `connect()` alone, with the handshake over loopback.
    pub tcp: Cost,
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

        let store = node.store();
        let sizes = LbMapSizes::uniform(u32::from(self.services) * 4 + 64);
        let maps = LbMaps::open(&store, sizes)?;
        let mut service = backend;
        for n in 0..self.services {
            let [high, low] = n.to_be_bytes();
            service = SocketAddrV4::new(Ipv4Addr::new(10, 96, high, low), 80).into();
            for (id, proto) in [(2 * n + 1, 6), (2 * n + 2, 17)] {
                maps.upsert(&Frontend::new(id, service, proto, &[backend]))?;
            }
        }
        let options = NodeOptions {
            trace: self.trace,
            ..NodeOptions::default()
        };
        let programs = SocketLb::load(&store, sizes, &options, |_| true)?;
        let directory = node.bpf_root().join("links");
        let links = CgroupLinks::new(&directory, node.cgroup_root())?;

        let mut found: [Rounds; 4] = Default::default();
        let calls: [&dyn Fn(SocketAddr) -> Result<Duration, BoxError>; 4] = [
            &|to| connect_udp(to, self.calls),
            &|to| send_udp(to, self.calls),
            &|to| fresh_udp(to, self.calls),
            &|to| connect_tcp(to, listener.as_fd(), self.calls / 10),
        ];
        for _ in 0..self.rounds.max(1) {
            for (cost, call) in found.iter_mut().zip(calls) {
                cost.bare.push(call(backend)?);
            }
            programs.attach(&links, &directory)?;
            for (cost, call) in found.iter_mut().zip(calls) {
                cost.direct.push(call(backend)?);
                cost.service.push(call(service)?);
            }
            SocketLb::detach_all(&directory)?;
        }
        let [connect, send, udp, tcp] = found.map(Rounds::median);
        Ok(Latency {
            connect,
            send,
            udp,
            tcp,
        })
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

fn fresh_udp(to: SocketAddr, calls: u32) -> Result<Duration, BoxError> {
    let start = Instant::now();
    for _ in 0..calls {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        rustix::net::connect(&socket, &to)?;
    }
    Ok(start.elapsed() / calls.max(1))
}

fn connect_tcp(to: SocketAddr, listener: BorrowedFd<'_>, calls: u32) -> Result<Duration, BoxError> {
    let mut total = Duration::ZERO;
    for _ in 0..calls.max(1) {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        // A reset instead of TIME_WAIT: the next thousand connections need ports, too.
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        let start = Instant::now();
        rustix::net::connect(&socket, &to)?;
        total += start.elapsed();
        drop(socket);
        drop(rustix::net::accept(listener)?);
    }
    Ok(total / calls.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_every_kind_of_call() {
        let found = LatencyBench {
            services: 10,
            calls: 50,
            rounds: 2,
            trace: true,
        }
        .run()
        .unwrap();

        for cost in [found.connect, found.send, found.udp, found.tcp] {
            for time in [cost.bare, cost.direct, cost.service] {
                assert!(!time.is_zero(), "{cost:?}");
            }
        }
    }

    #[test]
    fn one_slow_round_does_not_count() {
        let seconds = [9, 1, 2].map(Duration::from_secs);
        assert_eq!(median(seconds.to_vec()), Duration::from_secs(2));
    }
}
