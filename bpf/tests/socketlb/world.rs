// SPDX-License-Identifier: Apache-2.0

//! What every test here needs: a node with loaded programs, servers that say who they are, clients.

use std::{
    error::Error,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use skep_bpf::{
    MapStore,
    lb::LbMapSizes,
    link::CgroupLinks,
    load::{SocketLb, SocketOptions},
    map::PerCpuMap,
    testing::{LbMaps, Node},
};

pub(crate) type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SIZES: LbMapSizes = LbMapSizes::small(1024);
const PATIENCE: Duration = Duration::from_secs(5);

/// A node with the programs attached.
pub(crate) struct World<'node> {
    pub(crate) node: &'node Node,
    pub(crate) store: Arc<MapStore>,
    pub(crate) maps: LbMaps,
}

pub(crate) fn links_directory(node: &Node) -> PathBuf {
    node.bpf_root().join("cilium/socketlb/links/cgroup")
}

/// Loads and attaches all programs.
pub(crate) fn attach(node: &Node, store: &MapStore, options: &SocketOptions) -> Outcome {
    let programs = SocketLb::load(store, SIZES, options, |_| true)?;
    let directory = links_directory(node);
    programs.attach(&CgroupLinks::new(&directory, node.cgroup_root())?, &directory)?;
    Ok(())
}

/// Runs `test` on a node with the addresses 10.244.0.1-4 and fd00::1-2, all programs attached.
#[track_caller]
pub(crate) fn with(name: &str, options: SocketOptions, test: impl FnOnce(&World<'_>) -> Outcome + Send) {
    let result = Node::run(name, |node| {
        for address in [
            "10.244.0.1",
            "10.244.0.2",
            "10.244.0.3",
            "10.244.0.4",
            "fd00::1",
            "fd00::2",
        ] {
            node.add_address(ip(address))?;
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
        panic!("{chain}");
    }
}

impl World<'_> {
    /// How often the programs counted `reason`, on all CPUs and lines.
    pub(crate) fn counted(&self, reason: u8) -> u64 {
        let path = self.store.path("cilium_metrics");
        let map = PerCpuMap::<skep_bpf::event::MetricsKey, skep_bpf::event::MetricsValue>::open(
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
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A TCP server that answers every connection with its own address.
pub(crate) fn tcp_server(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(at(address)).unwrap();
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
pub(crate) fn udp_server(address: &str) -> SocketAddr {
    let socket = UdpSocket::bind(at(address)).unwrap();
    let local = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(local.to_string().as_bytes(), from);
        }
    });
    local
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

pub(crate) fn udp_client(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at(address)).unwrap();
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
