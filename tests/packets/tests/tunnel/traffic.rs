// SPDX-License-Identifier: Apache-2.0

//! Traffic between namespaces, and what is seen of it between nodes.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    thread::JoinHandle,
    time::Duration,
};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, eth, ipproto, recv, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use skep_bpf_sys::testing::Pod;

use crate::node::PORT;

const PATIENCE: Duration = Duration::from_secs(5);

/// Answers one connection in a pod with all that it sends; yields where the connection came from.
pub(crate) fn tcp_server(pod: &Pod, at: SocketAddr) -> JoinHandle<io::Result<SocketAddr>> {
    tcp_serve(pod.run(|| TcpListener::bind(at)).unwrap())
}

/// As [`tcp_server`], of a listener.
pub(crate) fn tcp_serve(listener: TcpListener) -> JoinHandle<io::Result<SocketAddr>> {
    std::thread::spawn(move || {
        let (mut stream, from) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = stream.try_clone()?;
        io::copy(&mut reader, &mut stream)?;
        stream.shutdown(Shutdown::Write)?;
        Ok(from)
    })
}

/// Sends `size` bytes by TCP and reads as many back.
pub(crate) fn tcp_call(to: SocketAddr, size: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let sent: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
    let (mut back, expected) = (Vec::new(), sent.clone());
    let writer = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    stream.read_to_end(&mut back)?;
    writer.join().expect("no panic")?;
    if back == expected {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{} bytes of {size} came back",
            back.len()
        )))
    }
}

/// Answers one datagram; yields where it came from.
pub(crate) fn udp_server(pod: &Pod, at: SocketAddr) -> JoinHandle<io::Result<SocketAddr>> {
    let socket = pod.run(|| UdpSocket::bind(at)).unwrap();
    std::thread::spawn(move || {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut datagram = vec![0; 65_536];
        let (length, from) = socket.recv_from(&mut datagram)?;
        socket.send_to(&datagram[..length], from)?;
        Ok(from)
    })
}

/// Answers datagrams in a pod until none has come for two seconds; yields where the last one came from.
pub(crate) fn udp_echo(pod: &Pod, at: SocketAddr) -> JoinHandle<io::Result<SocketAddr>> {
    let socket = pod.run(|| UdpSocket::bind(at)).unwrap();
    std::thread::spawn(move || {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut datagram = vec![0; 65_536];
        let mut last = None;
        loop {
            match (socket.recv_from(&mut datagram), last) {
                (Ok((length, from)), _) => {
                    // What is too large for the way back is lost, once.
                    let _ = socket.send_to(&datagram[..length], from);
                    last = Some(from);
                    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
                }
                (Err(_), Some(last)) => return Ok(last),
                (Err(error), None) => return Err(error),
            }
        }
    })
}

/// Sends a datagram of this size and reads it back.
pub(crate) fn udp_call(to: SocketAddr, size: usize) -> io::Result<()> {
    let any: IpAddr = if to.is_ipv6() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    call(&UdpSocket::bind((any, 0))?, to, size)
}

fn call(socket: &UdpSocket, to: SocketAddr, size: usize) -> io::Result<()> {
    socket.connect(to)?;
    let mut back = vec![0; 65_536];
    let length = exchange(socket, &vec![0x5a; size], &mut back)?;
    if length == size {
        Ok(())
    } else {
        Err(io::Error::other(format!("{length} bytes of {size}")))
    }
}

/// Sends and receives; sends again while links of the nodes come up and neighbours are looked for.
fn exchange(socket: &UdpSocket, message: &[u8], back: &mut [u8]) -> io::Result<usize> {
    const TRIES: u32 = 5;

    socket.set_read_timeout(Some(PATIENCE / TRIES))?;
    for _ in 1..TRIES {
        socket.send(message)?;
        match socket.recv(back) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
    socket.send(message)?;
    socket.recv(back)
}

/// Sends an echo request with this much data and waits for the reply.
pub(crate) fn ping(to: IpAddr, size: usize) -> io::Result<()> {
    let (family, proto, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(proto))?;
    let socket = UdpSocket::from(socket);
    socket.connect((to, 0))?;
    let mut message = vec![request, 0, 0, 0, 0, 0, 0, 1];
    message.resize(8 + size, 0x5a);
    let mut back = vec![0; 65_536];
    let length = exchange(&socket, &message, &mut back)?;
    if (length, back[0]) == (8 + size, reply) {
        Ok(())
    } else {
        Err(io::Error::other(format!("type {}, {length} bytes", back[0])))
    }
}

/// ICMPv6 errors that a pod receives.
pub(crate) struct Errors(UdpSocket);

/// One of them: who says what of which packet.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) from: IpAddr,
    pub(crate) kind: u8,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

impl Errors {
    pub(crate) fn new(pod: &Pod) -> Self {
        let icmp = Some(ipproto::ICMPV6);
        let socket = pod
            .run(|| socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, icmp).unwrap());
        Self(UdpSocket::from(socket))
    }

    /// The next one about a packet with ports.
    pub(crate) fn next(&self) -> io::Result<Error> {
        self.0.set_read_timeout(Some(PATIENCE))?;
        let mut message = [0; 2048];
        loop {
            let (length, from) = self.0.recv_from(&mut message)?;
            // Behind the header of the message.
            let inside = message[..length].get(8..).unwrap_or_default();
            let is_error = message[0] < 128 && matches!(inside.get(6), Some(6 | 17));
            let side = |address: usize, port: usize| {
                let octets = <[u8; 16]>::try_from(inside.get(address..address + 16)?).ok()?;
                let port = <[u8; 2]>::try_from(inside.get(port..port + 2)?).ok()?;
                Some(SocketAddr::from((octets, u16::from_be_bytes(port))))
            };
            if let (true, Some(source), Some(destination)) = (is_error, side(8, 40), side(24, 42)) {
                return Ok(Error {
                    from: from.ip(),
                    kind: message[0],
                    source,
                    destination,
                });
            }
        }
    }
}

/// All frames at the interfaces of a namespace.
pub(crate) struct Tap(OwnedFd);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outer {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) vni: u32,
}

impl Tap {
    /// Listens from now on, also to frames that programs drop.
    pub(crate) fn new(netns: &Pod) -> Self {
        Self::of(netns, eth::ALL)
    }

    /// Listens to frames with packets of an address family that programs have left to the kernel.
    pub(crate) fn after_programs(netns: &Pod, is_ipv6: bool) -> Self {
        Self::of(netns, if is_ipv6 { eth::IPV6 } else { eth::IP })
    }

    /// As [`Tap::after_programs`], in the namespace of this thread.
    pub(crate) fn here(is_ipv6: bool) -> Self {
        Self::listen(if is_ipv6 { eth::IPV6 } else { eth::IP })
    }

    fn of(netns: &Pod, protocol: Protocol) -> Self {
        netns.run(|| Self::listen(protocol))
    }

    fn listen(protocol: Protocol) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol)).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(200))).unwrap();
        Self(socket)
    }

    /// The kinds of VXLAN packets since the last call.
    pub(crate) fn outer(&self) -> Vec<Outer> {
        let mut seen = Vec::new();
        self.each(|frame| seen.extend(outer(frame)));
        seen.sort();
        seen.dedup();
        seen
    }

    /// How many datagrams for a port there were since the last call.
    pub(crate) fn datagrams_to(&self, port: u16) -> usize {
        let mut count = 0;
        self.each(|frame| {
            let to = udp(frame).and_then(|(.., at)| frame.get(at + 2..at + 4));
            count += usize::from(to == Some(&port.to_be_bytes()));
        });
        count
    }

    /// How many datagrams from an address there were since the last call.
    pub(crate) fn datagrams_from(&self, source: IpAddr) -> usize {
        let mut count = 0;
        self.each(|frame| count += usize::from(udp(frame).is_some_and(|(from, ..)| from == source)));
        count
    }

    fn each(&self, mut see: impl FnMut(&[u8])) {
        let mut frame = vec![0; 65_536];
        while let Ok((length, _)) = recv(&self.0, &mut frame[..], RecvFlags::empty()) {
            see(&frame[..length]);
        }
    }
}

/// Addresses of a datagram, and where its header is.
fn udp(frame: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    match frame.get(12..15)? {
        [8, 0, 0x45] if frame.get(23) == Some(&17) => {
            let address = |at: usize| <[u8; 4]>::try_from(frame.get(at..at + 4)?).ok();
            Some((address(26)?.into(), address(30)?.into(), 34))
        }
        [0x86, 0xdd, _] if frame.get(20) == Some(&17) => {
            let address = |at: usize| <[u8; 16]>::try_from(frame.get(at..at + 16)?).ok();
            Some((address(22)?.into(), address(38)?.into(), 54))
        }
        _ => None,
    }
}

fn outer(frame: &[u8]) -> Option<Outer> {
    let (source, destination, udp) = udp(frame)?;
    let port = u16::from_be_bytes(frame.get(udp + 2..udp + 4)?.try_into().ok()?);
    let header = frame.get(udp + 8..udp + 16)?;
    let vni = u32::from_be_bytes(header[4..].try_into().ok()?) >> 8;
    (port == PORT && header[..4] == [8, 0, 0, 0]).then_some(Outer {
        source,
        destination,
        vni,
    })
}
