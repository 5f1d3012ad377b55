// SPDX-License-Identifier: Apache-2.0

//! Node ports, from a client outside of the node to backends elsewhere.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use skep_bpf_maps::{
    lb::{REVERSE_NAT4, REVERSE_NAT6, ReverseNat4, ReverseNat6, ReverseNatKey, ServiceFlags},
    testing::{Frontend, LbMaps},
};
use skep_bpf_sys::{MapStore, testing::Pod};
use skep_datapath_socketlb::SocketDatapath;

use crate::world::*;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const WAIT: Duration = Duration::from_secs(5);
pub(crate) const REPLACEMENT: &str = "--kube-proxy-replacement";
/// The client is in the control group of the node: its sockets are left alone, its packets come from outside.
pub(crate) const PACKETS: &str = "--bpf-lb-sock-hostns-only";

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn node_port(agent: &Agent, maps: &LbMaps, id: u16, at: &str, proto: u8, backend: &str) -> Outcome {
    let flags = ServiceFlags::NODE_PORT | ServiceFlags::ROUTABLE;
    let frontend = Frontend::new(id, address(at), proto, &[address(backend)]);
    provide(agent, maps, &frontend.flags(flags))
}

/// Writes a frontend and where its answers come from.
pub(crate) fn provide(agent: &Agent, maps: &LbMaps, frontend: &Frontend) -> Outcome {
    let sizes = *agent
        .running
        .get::<Arc<SocketDatapath>>()
        .unwrap()
        .settings()
        .sizes;
    let store = agent.running.get::<Arc<MapStore>>().unwrap();
    let (at, key) = (frontend.address, ReverseNatKey::new(frontend.id));
    match at.ip() {
        IpAddr::V4(ip) => store
            .open_or_create(&REVERSE_NAT4.spec(&sizes.into()))?
            .update(&key, &ReverseNat4::new(ip, at.port()))?,
        IpAddr::V6(ip) => store
            .open_or_create(&REVERSE_NAT6.spec(&sizes.into()))?
            .update(&key, &ReverseNat6::new(ip, at.port()))?,
    }
    maps.upsert(frontend)?;
    Ok(())
}

pub(crate) fn maps(agent: &Agent) -> Outcome<LbMaps> {
    let sizes = *agent
        .running
        .get::<Arc<SocketDatapath>>()
        .unwrap()
        .settings()
        .sizes;
    Ok(LbMaps::open(
        &agent.running.get::<Arc<MapStore>>().unwrap(),
        sizes,
    )?)
}

/// One question over a new connection; the answer is the address that the server saw.
pub(crate) fn ask_tcp(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(crate) fn ask_udp(to: SocketAddr) -> std::io::Result<String> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Servers in the client's namespace, on its second addresses: another node, for what it looks like.
fn serve(world: &World) {
    serve_at(&world.client, ["192.0.2.20:8080", "[2001:db8::20]:8080"]);
}

/// Servers that answer with the address that they see.
pub(crate) fn serve_at(pod: &Pod, addresses: [&'static str; 2]) {
    pod.run(|| {
        for at in addresses {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let mut stream = stream;
                    let seen = stream.peer_addr().unwrap().ip().to_string();
                    let _ = stream.write_all(seen.as_bytes());
                }
            });
            let socket = UdpSocket::bind(at).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
                }
            });
        }
    });
}

const FAMILIES: [(&str, &str, &str); 2] = [
    ("192.0.2.1:30080", "192.0.2.20:8080", "192.0.2.1"),
    ("[2001:db8::1]:30080", "[2001:db8::20]:8080", "2001:db8::1"),
];

#[test]
fn node_ports_lead_to_backends_elsewhere() {
    run("node-port", async |world: World| {
        serve(&world);
        for flags in [
            &[REPLACEMENT, PACKETS][..],
            &[REPLACEMENT, PACKETS, "--enable-tcx=false"],
            &[REPLACEMENT, PACKETS, "--bpf-lb-acceleration=testing-only"],
        ] {
            let agent = world.attached(flags).await?;
            let maps = maps(&agent)?;
            for (id, (at, backend, _)) in (1..).zip(FAMILIES) {
                node_port(&agent, &maps, id, at, TCP, backend)?;
                node_port(&agent, &maps, id + 10, at, UDP, backend)?;
            }
            for (at, _, node) in FAMILIES {
                let (tcp, udp) = world.client.run(|| (ask_tcp(address(at)), ask_udp(address(at))));
                assert_eq!(
                    tcp.unwrap(),
                    node,
                    "TCP to {at} with {flags:?}: the backend sees the node"
                );
                assert_eq!(udp.unwrap(), node, "UDP to {at} with {flags:?}");
            }
            agent.stop().await?;
            // Without an agent as well.
            for (at, _, node) in FAMILIES {
                assert_eq!(
                    world.client.run(|| ask_tcp(address(at))).unwrap(),
                    node,
                    "{flags:?}"
                );
            }
        }
        Ok(())
    });
}

/// Says that something is to stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_connection_fails_while_agents_come_and_go() {
    run("replace", async |world: World| {
        serve(&world);
        let agent = world.attached(&[REPLACEMENT, PACKETS]).await?;
        node_port(&agent, &maps(&agent)?, 1, FAMILIES[0].0, TCP, FAMILIES[0].1)?;
        let (stop, asked, failed) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));

        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                world.client.run(|| {
                    while !stop.load(Ordering::Relaxed) {
                        failed.fetch_add(ask_tcp(address(FAMILIES[0].0)).is_err().into(), Ordering::Relaxed);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            // A panic ends the client as well, which the scope waits for.
            let _stop = Stop(&stop);
            let handle = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| {
                handle.block_on(async {
                    agent.stop().await?;
                    for flags in [
                        &[REPLACEMENT, PACKETS][..],
                        &[REPLACEMENT, PACKETS, "--trace-payloadlen=64"],
                        &[REPLACEMENT],
                    ] {
                        let agent = world.attached(flags).await?;
                        agent.stop().await?;
                    }
                    Outcome::Ok(())
                })
            })
        });

        result?;
        assert!(asked.load(Ordering::Relaxed) > 20, "{asked:?}");
        assert_eq!(failed.load(Ordering::Relaxed), 0, "of {asked:?}");
        Ok(())
    });
}
