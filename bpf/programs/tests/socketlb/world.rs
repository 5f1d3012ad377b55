// SPDX-License-Identifier: Apache-2.0

//! What every test here needs: a node with loaded programs, servers that say who they are, clients.

use std::{
    error::Error,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use skep_bpf_maps::{
    lb::{Affinity, Affinity4Key, Affinity6Key, BackendKey, LbMapSizes, Service4Key, Service6Key},
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{NodeOptions, SocketLb};
use skep_bpf_sys::{MapError, MapStore, link::CgroupLinks, map::PerCpuMap, testing::Node};

pub(crate) type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SIZES: LbMapSizes = LbMapSizes::small(1024);
const PATIENCE: Duration = Duration::from_secs(30);
/// How many addresses of each family the node has: `10.244.0.1` and `fd00::1`, and those that follow.
const ADDRESSES: u8 = 4;

/// An address family. Each has maps and translation of its own: what is true for one is asked of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// `10.244.0.n` or `fd00::n`: the node's own up to 4, unused above.
    pub(crate) fn node(self, n: u8, port: u16) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::new(10, 244, 0, n), port).into(),
            Self::V6 => (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()), port).into(),
        }
    }

    /// `10.96.0.n` or `fd10::n`: virtual addresses of services.
    pub(crate) fn service(self, n: u8, port: u16) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::new(10, 96, 0, n), port).into(),
            Self::V6 => (Ipv6Addr::new(0xfd10, 0, 0, 0, 0, 0, 0, n.into()), port).into(),
        }
    }

    pub(crate) fn loopback(self, port: u16) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::LOCALHOST, port).into(),
            Self::V6 => (Ipv6Addr::LOCALHOST, port).into(),
        }
    }

    pub(crate) fn unspecified(self, port: u16) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::UNSPECIFIED, port).into(),
            Self::V6 => (Ipv6Addr::UNSPECIFIED, port).into(),
        }
    }

    /// A TCP server on each of the first `count` addresses of the node.
    pub(crate) fn tcp_servers(self, count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|n| tcp_server(self.node(n, 0))).collect()
    }

    /// A UDP server on each of the first `count` addresses of the node.
    pub(crate) fn udp_servers(self, count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|n| udp_server(self.node(n, 0))).collect()
    }

    /// A UDP socket on no address and port in particular.
    pub(crate) fn udp_client(self) -> UdpSocket {
        udp_client(self.unspecified(0))
    }
}

/// How sockets may write an address: an IPv4 one also as IPv6 sockets do.
pub(crate) fn spellings(address: SocketAddr) -> Vec<SocketAddr> {
    match address.ip() {
        IpAddr::V4(ip) => vec![address, (ip.to_ipv6_mapped(), address.port()).into()],
        IpAddr::V6(_) => vec![address],
    }
}

/// A node with the programs attached.
pub(crate) struct World<'node> {
    pub(crate) node: &'node Node,
    pub(crate) store: Arc<MapStore>,
    pub(crate) maps: LbMaps,
}

pub(crate) fn links_directory(node: &Node) -> PathBuf {
    node.bpf_root().join("cilium/socketlb/links/cgroup")
}

pub(crate) fn attach(node: &Node, store: &MapStore, options: &NodeOptions) -> Outcome {
    let programs = SocketLb::load(store, SIZES, options, |_| true)?;
    let directory = links_directory(node);
    programs.attach(&CgroupLinks::new(&directory, node.cgroup_root())?, &directory)?;
    Ok(())
}

/// Runs `test` for each address family, on a node of its own; see [`with`].
#[track_caller]
pub(crate) fn with_each(
    name: &str,
    options: &NodeOptions,
    test: impl Fn(&World<'_>, Family) -> Outcome + Sync,
) {
    for family in [Family::V4, Family::V6] {
        // Names the thread, too: a failed assertion tells its family.
        with(&format!("{name}-{family:?}"), options.clone(), |world| {
            test(world, family)
        });
    }
}

/// Runs `test` on a node with the addresses 10.244.0.1-4 and fd00::1-4, all programs attached.
#[track_caller]
pub(crate) fn with(name: &str, options: NodeOptions, test: impl FnOnce(&World<'_>) -> Outcome + Send) {
    let result = Node::run(name, |node| {
        for family in [Family::V4, Family::V6] {
            for n in 1..=ADDRESSES {
                node.add_address(family.node(n, 0).ip())?;
            }
        }
        let store = node.store();
        let maps = LbMaps::open(&store, SIZES)?;
        attach(node, &store, &options)?;
        test(&World { node, store, maps })
    });
    if let Err(error) = result {
        let mut chain = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            chain.push_str(&format!(": {next}"));
            cause = next.source();
        }
        panic!("{name}: {chain}");
    }
}

impl World<'_> {
    /// How often the programs counted `reason`, on all CPUs and lines.
    pub(crate) fn counted(&self, reason: u8) -> u64 {
        let path = self.store.path("cilium_metrics");
        let map = PerCpuMap::<skep_bpf_maps::event::MetricsKey, skep_bpf_maps::event::MetricsValue>::open(
            "cilium_metrics",
            &path,
        );
        map.and_then(|map| map.entries())
            .unwrap()
            .into_iter()
            .filter(|(key, _)| key.reason == reason && key.direction == 3)
            .flat_map(|(_, values)| values)
            .map(|value| value.count)
            .sum()
    }

    /// Deletes a backend's entry, whatever still points to it.
    pub(crate) fn delete_backend(&self, backend: SocketAddr, proto: u8) -> Result<bool, MapError> {
        let key = BackendKey::new(self.maps.backend(backend, proto)?);
        match backend {
            SocketAddr::V4(_) => self.maps.backends4.delete(&key),
            SocketAddr::V6(_) => self.maps.backends6.delete(&key),
        }
    }

    /// Deletes one slot's entry, whatever the master entry says.
    pub(crate) fn delete_slot(&self, frontend: &Frontend, slot: u16) -> Result<bool, MapError> {
        let (port, proto, scope) = (frontend.address.port(), frontend.proto, frontend.scope);
        match frontend.address.ip() {
            IpAddr::V4(ip) => {
                let master = Service4Key::new(ip, port, proto, scope);
                self.maps.services4.delete(&master.at(slot))
            }
            IpAddr::V6(ip) => {
                let master = Service6Key::new(ip, port, proto, scope);
                self.maps.services6.delete(&master.at(slot))
            }
        }
    }

    /// What is remembered of the node's own network namespace and the service `id`.
    pub(crate) fn affinity(&self, family: Family, id: u16) -> Result<Option<Affinity>, MapError> {
        self.affinity_of(self.node.netns_cookie(), family, id)
    }

    /// What is remembered of the network namespace with this cookie and the service `id`.
    pub(crate) fn affinity_of(
        &self,
        cookie: u64,
        family: Family,
        id: u16,
    ) -> Result<Option<Affinity>, MapError> {
        match family {
            Family::V4 => self.maps.affinity4.lookup(&Affinity4Key::netns(cookie, id)),
            Family::V6 => self.maps.affinity6.lookup(&Affinity6Key::netns(cookie, id)),
        }
    }

    /// Replaces what is remembered of the node's own network namespace and the service `id`.
    pub(crate) fn set_affinity(&self, family: Family, id: u16, entry: &Affinity) -> Result<(), MapError> {
        let cookie = self.node.netns_cookie();
        match family {
            Family::V4 => self
                .maps
                .affinity4
                .update(&Affinity4Key::netns(cookie, id), entry),
            Family::V6 => self
                .maps
                .affinity6
                .update(&Affinity6Key::netns(cookie, id), entry),
        }
    }

    /// How many sockets have a way back, in both families.
    pub(crate) fn ways_back(&self) -> Result<usize, MapError> {
        Ok(self.maps.reverse_sk4.entries()?.len() + self.maps.reverse_sk6.entries()?.len())
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A TCP server that answers every connection with its own address.
pub(crate) fn tcp_server(address: impl ToSocketAddrs) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let local = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(local.to_string().as_bytes());
        }
    });
    local
}

/// A UDP server that answers every datagram with its own address.
pub(crate) fn udp_server(address: impl ToSocketAddrs) -> SocketAddr {
    let socket = UdpSocket::bind(address).unwrap();
    let local = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(local.to_string().as_bytes(), from);
        }
    });
    local
}

/// The error number of a call that must fail.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// Connects by TCP; returns who answered and what the socket says its peer is.
pub(crate) fn ask_tcp(address: SocketAddr) -> io::Result<(SocketAddr, SocketAddr)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let peer = stream.peer_addr()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((at(&answer), peer))
}

pub(crate) fn udp_client(address: impl ToSocketAddrs) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends from an unconnected socket; returns who answered and what the answer's source looks like.
pub(crate) fn ask_udp(socket: &UdpSocket, address: SocketAddr) -> io::Result<(SocketAddr, SocketAddr)> {
    socket.send_to(b"?", address)?;
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer)?;
    Ok((at(std::str::from_utf8(&buffer[..length]).unwrap()), from))
}

/// Sends on a connected socket; returns who answered.
pub(crate) fn ask_connected(socket: &UdpSocket) -> io::Result<SocketAddr> {
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(at(std::str::from_utf8(&buffer[..length]).unwrap()))
}
