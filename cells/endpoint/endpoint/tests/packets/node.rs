// SPDX-License-Identifier: Apache-2.0

//! A node and pods in network namespaces, connected as a CNI plugin does it.

use std::{
    error::Error,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    process::Command,
    time::Duration,
};

use nix::sys::{
    socket::{
        AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv, send, setsockopt,
        socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike as _},
};
use skep_bpf_sys::testing::{Node, Pod};
use skep_endpoint::{EndpointSpec, Mac};

pub(super) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PORT: u16 = 8080;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a test on a node, with a runtime whose threads are in the node's namespaces.
pub(super) fn with_node(name: &str, test: impl AsyncFnOnce(&Node) -> Outcome + Send) {
    let result: Outcome = Node::run(name, |node| {
        setting("ipv4/ip_forward", "1")?;
        setting("ipv6/conf/all/forwarding", "1")?;
        // The kernel looks for neighbours from link-local addresses, at once.
        for scope in ["all", "default"] {
            setting(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(test(node))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}

pub(super) fn ip(arguments: &[&str]) -> Outcome<String> {
    let output = Command::new("ip").args(arguments).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("ip {arguments:?}: {text}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn setting(path: &str, value: &str) -> Outcome {
    Ok(fs::write(format!("/proc/sys/net/{path}"), value)?)
}

/// IPv4 and IPv6 packets that the kernel of the node has forwarded.
pub(super) fn forwarded() -> Outcome<u64> {
    let (v4, v6) = (
        fs::read_to_string("/proc/thread-self/net/snmp")?,
        fs::read_to_string("/proc/thread-self/net/snmp6")?,
    );
    let mut lines = v4.lines().filter(|line| line.starts_with("Ip: "));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let values = lines.next().unwrap_or_default().split_whitespace();
    let of_v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams");
    let of_v6 = v6
        .lines()
        .find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
    let count = |text: Option<&str>| -> Outcome<u64> { Ok(text.unwrap_or_default().trim().parse()?) };
    Ok(count(of_v4.map(|(_, value)| value))? + count(of_v6)?)
}

/// Index and MAC address of an interface.
fn identify(name: &str) -> Outcome<(u32, Mac)> {
    let text = ip(&["-o", "link", "show", name])?;
    let index = text.split(':').next().unwrap_or_default().parse()?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    Ok((index, words.nth(1).unwrap_or_default().parse()?))
}

/// A pod with an interface. No interface has the address of its gateway: programs answer for it.
pub(super) struct Plugged {
    pub(super) pod: Pod,
    pub(super) spec: EndpointSpec,
}

impl Plugged {
    pub(super) fn connect(&self, to: IpAddr) -> Outcome<TcpStream> {
        let to = SocketAddr::new(to, PORT);
        let stream = self.pod.run(|| TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

pub(super) fn plug(node: &Node, number: u8) -> Outcome<Plugged> {
    let mut spec = bare(number)?;
    let peer = format!("tmp{number}");
    let pod = node.pod(&spec.interface)?;
    ip(&["link", "set", &peer, "netns", &pod.path().display().to_string()])?;
    let (v4, v6) = (spec.ipv4.unwrap(), spec.ipv6.unwrap());
    let inside = pod.run(|| -> Outcome<(u32, Mac)> {
        setting("ipv4/ping_group_range", "0 2147483647")?;
        ip(&["link", "set", &peer, "name", "eth0"])?;
        ip(&["link", "set", "eth0", "up"])?;
        ip(&["addr", "add", &format!("{v4}/32"), "dev", "eth0"])?;
        ip(&["addr", "add", &format!("{v6}/128"), "dev", "eth0", "nodad"])?;
        ip(&["route", "add", "10.0.1.1/32", "dev", "eth0", "scope", "link"])?;
        ip(&["route", "add", "default", "via", "10.0.1.1"])?;
        ip(&["-6", "route", "add", "fd00::1/128", "dev", "eth0"])?;
        ip(&["-6", "route", "add", "default", "via", "fd00::1"])?;
        identify("eth0")
    });
    spec.mac = inside?.1;
    Ok(Plugged { pod, spec })
}

/// An interface of the node, and an endpoint that is not in a pod yet.
pub(super) fn bare(number: u8) -> Outcome<EndpointSpec> {
    let (name, peer) = (format!("lxc{number}"), format!("tmp{number}"));
    ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer])?;
    setting(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
    ip(&["link", "set", &name, "up"])?;
    let (ifindex, host_mac) = identify(&name)?;
    Ok(EndpointSpec {
        container_id: name.clone(),
        container_interface: "eth0".to_owned(),
        interface: name,
        ifindex,
        ipv4: format!("10.0.1.{}", u16::from(number) + 1).parse().ok(),
        ipv6: format!("fd00::1:{number:x}").parse().ok(),
        host_mac,
        ..EndpointSpec::default()
    })
}

/// Answers what is sent to a pod, by TCP and UDP, until the test ends.
pub(super) fn serve(pod: &Pod, address: IpAddr) {
    let (listener, socket) = pod.run(|| {
        let listener = TcpListener::bind((address, PORT)).unwrap();
        (listener, UdpSocket::bind((address, PORT)).unwrap())
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|length| length > 0) {
                    let _ = stream.write_all(&byte);
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut bytes = [0; 16];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..length], from);
        }
    });
}

pub(super) fn echo(stream: &mut TcpStream) -> Outcome {
    let mut byte = [0];
    stream.write_all(b"x")?;
    stream.read_exact(&mut byte)?;
    assert_eq!(&byte, b"x");
    Ok(())
}

pub(super) fn datagram(pod: &Pod, from: IpAddr, to: IpAddr) -> Outcome {
    let to = SocketAddr::new(to, PORT);
    let socket = pod.run(|| UdpSocket::bind((from, 0)))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = [0; 16];
    socket.send_to(b"hello", to)?;
    let (length, answerer) = socket.recv_from(&mut bytes)?;
    assert_eq!((&bytes[..length], answerer), (&b"hello"[..], to));
    Ok(())
}

/// One echo request, and its answer. The kernel fills in identifier and checksum.
pub(super) fn ping(pod: &Pod, to: IpAddr) -> Outcome {
    let (family, protocol, request, answer) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8, 0),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128, 129),
    };
    let made: nix::Result<OwnedFd> =
        pod.run(|| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol));
    let socket = made?;
    setsockopt(
        &socket,
        ReceiveTimeout,
        &TimeVal::milliseconds(PATIENCE.as_millis() as i64),
    )?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to, 0)))?;
    let message = [request, 0, 0, 0, 0, 0, 0, 1];
    send(socket.as_raw_fd(), &message, nix::sys::socket::MsgFlags::empty())?;
    let mut received = [0; 64];
    recv(
        socket.as_raw_fd(),
        &mut received,
        nix::sys::socket::MsgFlags::empty(),
    )?;
    assert_eq!(received[0], answer);
    Ok(())
}
