// SPDX-License-Identifier: Apache-2.0

//! The cell in a hive: what real programs report arrives at the socket.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    error::Error,
    future::Future,
    io::Read as _,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hive::{Hive, Level, Running, Settings};
use skep_bpf_maps::{
    MapSizes,
    endpoint::{Endpoint, endpoint_flags},
    lb::LbMapSizes,
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{
    NodeOptions, Packets,
    testing::run::{SkBuff, run_tc},
};
use skep_bpf_sys::{Map, MapStore, testing::Node};
use skep_datapath_monitor::Monitor;
use skep_datapath_monitor_events::{
    agent::{AgentNotify, notification},
    event::Event,
    packet::{Packet, Start},
    payload::{Payload, PayloadReader},
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(20);
/// The interface of the endpoint: the loopback.
const INTERFACE: u32 = 1;
/// A SYN of 10.1.0.165, which is not the endpoint's address.
const SPOOFED: &str = "fac6a269d4714227ded30bad080045000028123440003f0614190a0100a50a0100ddd6d90050000003e8000000005002ffffbf4d0000";

struct World {
    bpf_root: PathBuf,
    cgroup: PathBuf,
    socket: PathBuf,
    store: Arc<MapStore>,
}

/// Runs an async test on a node with the address 10.244.0.1.
fn run<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    let result = Node::run(name, |node| {
        node.add_address("10.244.0.1".parse()?)?;
        let world = World {
            bpf_root: node.bpf_root(),
            cgroup: node.cgroup_root().to_owned(),
            socket: node.directory().join("monitor1_2.sock"),
            store: node.store(),
        };
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?
            .block_on(test(world))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}

impl World {
    async fn start(&self, flags: &[&str]) -> Outcome<Running> {
        let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        all.push(format!("--bpf-root={}", self.bpf_root.display()));
        all.push(format!("--cgroup-root={}", self.cgroup.display()));
        all.push(format!("--monitor-socket-path={}", self.socket.display()));
        all.push("--bpf-lb-map-max=1024".to_owned());
        all.push("--bpf-sock-rev-map-max=1024".to_owned());
        let cells = [
            skep_base_settings::cell(),
            skep_datapath_maps::cell(),
            skep_datapath_socketlb::cell(),
            skep_datapath_monitor::cell(),
        ];
        let plan = Hive::new(cells)
            .root::<Arc<Monitor>>()
            .root::<Arc<LbMapSizes>>()
            .plan(Settings::new().args(all))?;
        Ok(plan.build()?.start().await?)
    }

    /// The program of an endpoint with the id 7 that drops whatever does not come from its address.
    fn endpoint(&self, running: &Running) -> Outcome<Packets> {
        let sizes = MapSizes::from(*running.get::<Arc<LbMapSizes>>().unwrap())
            .with(skep_bpf_maps::conntrack::CT_TCP_MAX, 1024)
            .with(skep_bpf_maps::conntrack::CT_ANY_MAX, 1024)
            .with(skep_bpf_maps::nat::NAT_MAX, 1024)
            .with(skep_bpf_maps::node::NEIGHBOURS_MAX, 1024);
        let options = NodeOptions {
            // Drops alone, not where packets pass before.
            trace_aggregation: 3,
            ..NodeOptions::default()
        };
        let programs = Packets::load(&self.store, sizes, &options)?;
        let endpoints: Map<u32, Endpoint> = self.store.open("skep_endpoints")?;
        let endpoint = Endpoint {
            ipv4: Ipv4Addr::new(10, 244, 0, 9).octets(),
            identity: 30_511,
            id: 7,
            flags: endpoint_flags::VERIFY_SOURCE,
            ..Endpoint::default()
        };
        endpoints.update(&INTERFACE, &endpoint)?;
        Ok(programs)
    }

    /// Connects, and waits until the rings are read.
    async fn listen(&self, monitor: &Monitor) -> Outcome<Client> {
        let client = connect(&self.socket).await?;
        until("the rings are read", || monitor.rings().is_some()).await;
        Ok(client)
    }
}

/// Sends the endpoint's program so many packets that it drops.
fn spoof(programs: &Packets, count: u32) -> Outcome {
    let context = SkBuff {
        ifindex: INTERFACE,
        ingress_ifindex: INTERFACE,
        ..SkBuff::default()
    };
    let packet = bytes(SPOOFED);
    run_tc(
        programs.program("cil_from_container").unwrap(),
        &packet,
        &context,
        count,
    )?;
    Ok(())
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {PATIENCE:?}: {what}");
}

/// Connects, and waits until the connection is served: it has its first byte.
async fn connect(socket: &Path) -> Outcome<Client> {
    let connected = tokio::time::timeout(PATIENCE, async {
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    });
    let mut stream = connected.await?;
    stream.set_read_timeout(Some(PATIENCE))?;
    tokio::task::spawn_blocking(move || {
        let mut start = [0; 1];
        stream.read_exact(&mut start)?;
        let mut reader = PayloadReader::default();
        reader.push(&start);
        Ok(Client { stream, reader })
    })
    .await?
}

struct Client {
    stream: UnixStream,
    reader: PayloadReader,
}

impl Client {
    /// Reads until `is_last` says so.
    async fn read(
        mut self,
        is_last: impl FnMut(&Payload) -> bool + Send + 'static,
    ) -> Outcome<(Self, Vec<Payload>)> {
        let mut is_last = is_last;
        tokio::task::spawn_blocking(move || {
            let mut payloads = Vec::new();
            loop {
                let payload = self.reader.read_from(&mut self.stream)?;
                let payload = payload.ok_or("the monitor closed the connection")?;
                if is_start(&payload) {
                    continue;
                }
                let done = is_last(&payload);
                payloads.push(payload);
                if done {
                    return Ok((self, payloads));
                }
            }
        })
        .await?
    }
}

/// Whether this is the agent's start notification. It may be sent before or after a test's listener connects.
fn is_start(payload: &Payload) -> bool {
    match payload {
        Payload::Event { data, .. } => matches!(
            Event::decode(data),
            Ok(Event::Agent(AgentNotify {
                kind: notification::AGENT_STARTED,
                ..
            }))
        ),
        _ => false,
    }
}

/// How many events and losses there are.
fn total(payloads: &[Payload]) -> (u64, u64) {
    payloads
        .iter()
        .fold((0, 0), |(events, lost), payload| match payload {
            Payload::Event { .. } => (events + 1, lost),
            Payload::Lost { count, .. } => (events, lost + count),
            Payload::Unknown { .. } => panic!("{payload:?}"),
        })
}

/// Whether so many events were read or lost.
fn all_of(count: u64) -> impl FnMut(&Payload) -> bool + Send + 'static {
    let mut seen = 0;
    move |payload| {
        seen += match payload {
            Payload::Lost { count, .. } => *count,
            _ => 1,
        };
        seen >= count
    }
}

#[test]
fn drops_arrive_at_all_listeners_and_rings_are_closed_without() {
    run("monitor-drop", |world| async move {
        let running = world.start(&[]).await?;
        let monitor = running.get::<Arc<Monitor>>().unwrap();
        let programs = world.endpoint(&running)?;
        assert_eq!(monitor.rings(), None);
        let one = world.listen(&monitor).await?;
        let two = world.listen(&monitor).await?;
        spoof(&programs, 1)?;

        let mut left = Vec::new();
        for client in [one, two] {
            let (client, payloads) = client.read(all_of(1)).await?;
            let [Payload::Event { data, .. }] = payloads.as_slice() else {
                panic!("{payloads:?}");
            };
            let Ok(Event::Drop(drop)) = Event::decode(data) else {
                panic!("{data:?}");
            };
            assert_eq!(drop.reason_text(), "Invalid source ip");
            assert_eq!((drop.header.source, drop.source_identity), (7, 30_511));
            assert_eq!(drop.ifindex, INTERFACE);
            let packet = Packet::dissect(drop.packet, Start::Ethernet, None);
            assert_eq!(packet.connection(), "10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN");
            left.push(client);
        }
        let status = monitor.rings().unwrap();
        assert_eq!((status.pages, status.lost), (64, 0));
        assert!(status.cpus > 0 && status.page_size >= 4096);

        drop(left);
        until("the rings are closed", || monitor.rings().is_none()).await;
        let health = running.health().get("monitor.job-read-rings").unwrap();
        until("health says so", || {
            running.health().get("monitor.job-read-rings").unwrap().message == "No listeners"
        })
        .await;
        assert_eq!(health.level, Level::Ok);
        running.stop().await?;
        assert!(!world.socket.exists());
        Ok(())
    });
}

#[test]
fn translations_of_sockets_arrive() {
    run("monitor-sock", |world| async move {
        let running = world.start(&["--kube-proxy-replacement=true"]).await?;
        let monitor = running.get::<Arc<Monitor>>().unwrap();
        let maps = LbMaps::open(&world.store, *running.get::<Arc<LbMapSizes>>().unwrap())?;
        let service: SocketAddr = "10.96.0.1:53".parse()?;
        let backend: SocketAddr = "10.244.0.1:5353".parse()?;
        maps.upsert(&Frontend::new(1, service, 17, &[backend]))?;
        let client = world.listen(&monitor).await?;

        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(service)?;

        let (_, payloads) = client.read(all_of(2)).await?;
        let seen: Vec<String> = payloads
            .iter()
            .map(|payload| match payload {
                Payload::Event { data, .. } => match Event::decode(data) {
                    Ok(Event::TraceSock(event)) => format!("{} {}:{}", event.point, event.addr(), event.port),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, ["1 10.96.0.1:53", "2 10.244.0.1:5353"]);
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn a_slow_listener_loses_what_the_others_get() {
    const BURSTS: u64 = 40;
    const BURST: u32 = 500;
    const ALL: u64 = BURSTS * BURST as u64;
    run("monitor-slow", |world| async move {
        let running = world.start(&["--monitor-queue-size=1000"]).await?;
        let monitor = running.get::<Arc<Monitor>>().unwrap();
        let programs = world.endpoint(&running)?;
        let mut fast = world.listen(&monitor).await?;
        // Alone first: nothing is lost, though each burst is half of its queue.
        for _ in 0..4 {
            spoof(&programs, BURST)?;
            let (client, payloads) = fast.read(all_of(BURST.into())).await?;
            assert_eq!(total(&payloads), (BURST.into(), 0));
            fast = client;
        }
        let slow = connect(&world.socket).await?;
        for _ in 0..BURSTS {
            spoof(&programs, BURST)?;
            let (client, payloads) = fast.read(all_of(BURST.into())).await?;
            assert_eq!(total(&payloads), (BURST.into(), 0), "the fast one does not wait");
            fast = client;
        }

        let (_, payloads) = slow.read(all_of(ALL)).await?;
        let (events, lost) = total(&payloads);
        assert!(lost > 0, "{events} events");
        assert_eq!(events + lost, ALL, "every event arrives or is counted");
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn events_of_the_agent_arrive() {
    run("monitor-agent", |world| async move {
        let running = world.start(&[]).await?;
        let monitor = running.get::<Arc<Monitor>>().unwrap();
        let event = AgentNotify {
            kind: notification::POLICY_UPDATED,
            text: r#"{"rule_count":1}"#.to_owned(),
        };
        monitor.notify(&event);
        let client = world.listen(&monitor).await?;

        monitor.notify(&event);

        let (_, payloads) = client.read(all_of(1)).await?;
        let [Payload::Event { cpu: 0, data }] = payloads.as_slice() else {
            panic!("{payloads:?}");
        };
        assert_eq!(Event::decode(data), Ok(Event::Agent(event)));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn nothing_is_served_when_the_monitor_is_off() {
    run("monitor-off", |world| async move {
        let running = world.start(&["--enable-monitor=false"]).await?;
        assert!(!world.socket.exists());
        assert!(running.health().get("monitor.job-listener").is_none());
        running.stop().await?;
        Ok(())
    });
}
