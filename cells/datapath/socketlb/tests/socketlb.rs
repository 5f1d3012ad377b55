// SPDX-License-Identifier: Apache-2.0

//! The cells in a hive, with real programs in a world of their own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]
#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::{
    error::Error,
    fs,
    future::Future,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hive::{Cell, Hive, Running, Settings};
use skep_base_net::netns;
use skep_bpf_maps::{
    MapSizes,
    event::RATELIMIT,
    lb::{ReverseSk4, ReverseSk4Key, Service4Key, ServiceFlags, ServiceValue},
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{NodeOptions, SocketLb};
use skep_bpf_sys::{
    MapStore,
    link::{CgroupLinks, running},
    testing::Node,
};
use skep_datapath_hooks::{MapsWritten, PodNetworks};
use skep_datapath_socketlb::{DeadBackend, DeadBackends, DiagTerminator, SocketDatapath, links_directory};
use skep_loadbalancer_model::{
    BackendParams, FrontendKind, FrontendParams, L3n4Addr, L4Proto, Service, ServiceName, Source, Writer,
};
use skep_loadbalancer_reconciler::InitWait;
use tokio::sync::Notify;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TCP: u8 = 6;
const UDP: u8 = 17;
const PATIENCE: Duration = Duration::from_secs(30);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Runs an async test on a node with the addresses 10.244.0.1, 10.244.0.2 and fd00::1.
fn run<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    let result = Node::run(name, |node| {
        for address in ["10.244.0.1", "10.244.0.2", "fd00::1"] {
            node.add_address(address.parse()?)?;
        }
        let pods = vec![node.pod("a")?, node.pod("b")?];
        let world = World {
            bpf_root: node.bpf_root(),
            cgroup: node.cgroup_root().to_owned(),
            directory: node.directory().to_owned(),
            pods,
        };
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?
            .block_on(test(world))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}

/// What tests need to know about the node.
struct World {
    bpf_root: PathBuf,
    cgroup: PathBuf,
    directory: PathBuf,
    pods: Vec<skep_bpf_sys::testing::Pod>,
}

impl World {
    /// Starts the cells with these flags besides those for the node.
    async fn start(&self, cells: impl IntoIterator<Item = Cell>, flags: &[&str]) -> Outcome<Running> {
        let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        all.push(format!("--bpf-root={}", self.bpf_root.display()));
        all.push("--bpf-sock-rev-map-max=1024".to_owned());
        if !all.iter().any(|flag| flag.starts_with("--cgroup-root")) {
            all.push(format!("--cgroup-root={}", self.cgroup.display()));
        }
        if !all.iter().any(|flag| flag.starts_with("--bpf-lb-map-max")) {
            all.push("--bpf-lb-map-max=1024".to_owned());
        }
        let cells = [
            skep_base_settings::cell(),
            skep_datapath_maps::cell(),
            skep_datapath_socketlb::cell(),
        ]
        .into_iter()
        .chain(cells);
        let plan = Hive::new(cells)
            .root::<Arc<SocketDatapath>>()
            .root::<Arc<DeadBackends>>()
            .root::<Arc<MapStore>>()
            .plan(Settings::new().args(all))?;
        Ok(plan.build()?.start().await?)
    }

    fn maps(&self, running: &Running) -> Outcome<LbMaps> {
        let settings = running.get::<Arc<SocketDatapath>>().unwrap();
        Ok(LbMaps::open(
            &running.get::<Arc<MapStore>>().unwrap(),
            *settings.settings().sizes,
        )?)
    }

    fn attached(&self, program: &str) -> Option<u32> {
        running(&links_directory(&self.bpf_root), program).unwrap()
    }
}

fn server(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(at(address)).unwrap();
    let local = listener.local_addr().unwrap();
    (listener, local)
}

fn connects(service: SocketAddr) -> bool {
    TcpStream::connect_timeout(&service, PATIENCE).is_ok()
}

fn udp(service: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(if service.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(service).unwrap();
    socket
}

/// Whether the socket was destroyed; waits a while if it should be.
fn is_destroyed(socket: &UdpSocket, wait: Duration) -> bool {
    socket.set_read_timeout(Some(wait)).unwrap();
    socket
        .recv(&mut [0; 1])
        .is_err_and(|error| error.raw_os_error() == Some(libc::ECONNABORTED))
}

#[test]
fn services_work_while_the_agent_runs_and_after_it_ended() {
    run("cell", async |node: World| {
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        let maps = node.maps(&running)?;
        let (_listener, backend) = server("10.244.0.1:0");
        let service = at("10.96.0.1:80");
        maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;

        assert!(connects(service));
        let status = running.get::<Arc<SocketDatapath>>().unwrap().status();
        assert_eq!(status.cgroup_root, Some(node.cgroup.clone()));
        assert!(status.programs.contains(&"cil_sock4_connect"), "{status:?}");
        assert!(
            !status.programs.contains(&"cil_sock4_post_bind"),
            "not without kube-proxy replacement"
        );
        let first = node.attached("cil_sock4_connect");

        let stopped = running.stop().await?;
        assert!(connects(service));
        assert_eq!(node.attached("cil_sock4_connect"), first);

        // The same hive starts again, then another process replaces the programs.
        stopped.start().await?.stop().await?;
        let second = node.attached("cil_sock4_connect");
        assert_ne!(second, first);
        let next = node.start([], &["--bpf-lb-sock"]).await?;
        assert_ne!(node.attached("cil_sock4_connect"), second);
        assert!(connects(service));
        next.stop().await?;
        Ok(())
    });
}

#[test]
fn switching_off_detaches() {
    run("off", async |node: World| {
        node.start([], &["--kube-proxy-replacement"])
            .await?
            .stop()
            .await?;
        assert!(node.attached("cil_sock4_post_bind").is_some());

        node.start(
            [],
            &["--kube-proxy-replacement", "--node-port-bind-protection=false"],
        )
        .await?
        .stop()
        .await?;
        assert!(node.attached("cil_sock4_post_bind").is_none());
        assert!(node.attached("cil_sock4_connect").is_some());

        node.start([], &["--bpf-lb-sock", "--enable-ipv4=false"])
            .await?
            .stop()
            .await?;
        assert!(node.attached("cil_sock4_connect").is_none());
        assert!(node.attached("cil_sock6_connect").is_some());
        assert!(node.attached("cil_sock_release").is_some(), "of both families");

        let running = node.start([], &["--bpf-lb-sock=false"]).await?;
        assert!(!running.get::<Arc<SocketDatapath>>().unwrap().status().is_enabled);
        assert_eq!(fs::read_dir(links_directory(&node.bpf_root))?.count(), 0);
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn settings_reach_the_programs() {
    run("options", async |node: World| {
        let flags = [
            "--kube-proxy-replacement",
            "--node-port-range=31000,31001",
            "--bpf-lb-sock-hostns-only",
        ];
        let running = node.start([], &flags).await?;
        let maps = node.maps(&running)?;
        let (_listener, backend) = server("10.244.0.1:0");
        for (id, port) in [(1, 30_999), (2, 31_000)] {
            let surrogate = SocketAddr::from(([0, 0, 0, 0], port));
            maps.upsert(&Frontend::new(id, surrogate, TCP, &[backend]).flags(ServiceFlags::NODE_PORT))?;
        }
        maps.upsert(&Frontend::new(3, at("10.96.0.1:53"), UDP, &[backend]))?;

        assert!(!connects(at("127.0.0.1:30999")));
        assert!(connects(at("127.0.0.1:31000")));
        let in_pod = node.pods[0].run(|| UdpSocket::bind("0.0.0.0:0")?.connect(at("10.96.0.1:53")));
        assert_eq!(in_pod.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn node_ports_among_ephemeral_ones_are_reserved_or_refused() {
    run("ports", async |node: World| {
        let reserved = || fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports");
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "31000 31009")?;
        let flags = ["--kube-proxy-replacement", "--node-port-range=31001,31009"];

        let refused = [flags[0], flags[1], "--enable-auto-protect-node-port-range=false"];
        let error = node.start([], &refused).await.unwrap_err();
        let text = hive::error_chain(&*error);
        assert!(
            text.contains("31001,31009 overlaps with the ephemeral ports 31000-31009"),
            "{text}"
        );
        assert_eq!(reserved()?.trim(), "");

        let running = node.start([], &flags).await?;
        assert_eq!(reserved()?.trim(), "31001-31009");
        // One port is left for whoever wants any.
        let any = UdpSocket::bind("127.0.0.1:0")?;
        assert_eq!(any.local_addr()?.port(), 31_000);
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn aggregation_of_events_reaches_the_programs() {
    run("aggregation", async |node: World| {
        for (level, limited) in [("none", false), ("low", true), ("3", true)] {
            let flags = [
                "--bpf-lb-sock",
                &format!("--monitor-aggregation={level}"),
                "--monitor-aggregation-interval=1h",
            ];
            let running = node.start([], &flags).await?;
            let maps = node.maps(&running)?;
            let (_listener, backend) = server("10.244.0.1:0");
            maps.upsert(&Frontend::new(1, at("10.96.0.1:53"), UDP, &[backend]))?;
            let store = running.get::<Arc<MapStore>>().unwrap();
            let buckets = store.open_or_create(&RATELIMIT.spec(&MapSizes::default()))?;
            for (bucket, _) in buckets.entries()? {
                buckets.delete(&bucket)?;
            }

            udp(at("10.96.0.1:53"));

            let usages: Vec<u32> = buckets.entries()?.iter().map(|(key, _)| key.usage).collect();
            assert_eq!(usages, if limited { vec![3] } else { vec![] }, "level {level}");
            running.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn affinity_counts_ticks_if_told_to_look_for_them() {
    run("clock", async |node: World| {
        // Ticks are counted from shortly below 2^32, in units of 256; seconds from the machine's start.
        const TICKS: u64 = 1 << 23;
        for (flag, in_ticks) in [
            ("--enable-bpf-clock-probe=false", false),
            ("--enable-bpf-clock-probe", true),
        ] {
            let running = node.start([], &["--bpf-lb-sock", flag]).await?;
            let status = running.get::<Arc<SocketDatapath>>().unwrap().status();
            assert_eq!(status.tick.is_some(), in_ticks, "{status:?}");
            let maps = node.maps(&running)?;
            let (_listener, backend) = server("10.244.0.1:0");
            let mut sticky = Frontend::new(1, at("10.96.0.1:53"), UDP, &[backend]);
            sticky.affinity = 600;
            maps.upsert(&sticky)?;

            udp(at("10.96.0.1:53"));
            udp(at("10.96.0.1:53"));

            let seen = maps.affinity4.entries()?;
            assert_eq!(seen.len(), 1, "{seen:?}");
            assert_eq!(seen[0].1.last_used > TICKS, in_ticks, "{seen:?}");
            maps.affinity4.delete(&seen[0].0)?;
            running.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn wrong_cgroup_root_fails_the_start_with_its_name() {
    run("wrong-root", async |node: World| {
        let error = node
            .start([], &["--bpf-lb-sock", "--cgroup-root=/proc"])
            .await
            .unwrap_err();

        let text = hive::error_chain(&*error);
        assert!(
            text.contains("cgroup-root: /proc is a proc file system, not cgroup2"),
            "{text}"
        );
        Ok(())
    });
}

#[test]
fn detached_programs_are_attached_again() {
    run("check", async |node: World| {
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        let datapath = running.get::<Arc<SocketDatapath>>().unwrap();
        datapath.check()?;
        skep_bpf_sys::link::detach(&links_directory(&node.bpf_root), "cil_sock4_connect")?;

        let error = datapath.check().unwrap_err();

        assert_eq!(
            error.to_string(),
            "program cil_sock4_connect was detached by another program"
        );
        assert!(node.attached("cil_sock4_connect").is_some());
        datapath.check()?;
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn programs_of_others_in_the_links_are_named() {
    run("foreign", async |node: World| {
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        let datapath = running.get::<Arc<SocketDatapath>>().unwrap();
        let store = running.get::<Arc<MapStore>>().unwrap();
        let directory = links_directory(&node.bpf_root);
        let ours = datapath.status().programs;
        let others = SocketLb::load(
            &store,
            *datapath.settings().sizes,
            &NodeOptions::default(),
            |program| ours.contains(&program.name),
        )?;
        others.attach(&CgroupLinks::new(&directory, &node.cgroup)?, &directory)?;
        let foreign = skep_bpf_sys::link::running(&directory, "cil_sock4_connect")?.unwrap();

        let error = datapath.check().unwrap_err().to_string();

        assert!(
            error.contains(&format!(
                "cil_sock4_conne (id {foreign}) in the place of cil_sock4_connect"
            )),
            "{error}"
        );
        assert_eq!(
            skep_bpf_sys::link::running(&directory, "cil_sock4_connect")?,
            Some(foreign),
            "it is left alone"
        );

        skep_bpf_sys::link::detach(&directory, "cil_sock4_sendmsg")?;
        let error = datapath.check().unwrap_err().to_string();

        assert_eq!(error, "program cil_sock4_sendmsg was detached by another program");
        assert!(node.attached("cil_sock4_sendmsg").is_some());
        assert_eq!(
            node.attached("cil_sock4_connect"),
            Some(foreign),
            "only what is missing is attached again"
        );
        let error = datapath.check().unwrap_err().to_string();
        assert!(error.contains("in the place of cil_sock4_connect"), "{error}");
        assert!(!error.contains("in the place of cil_sock4_sendmsg"), "{error}");
        datapath.apply()?;
        datapath.check()?;
        running.stop().await?;
        Ok(())
    });
}

struct Filled(Notify);

impl MapsWritten for Filled {
    fn written(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.notified())
    }
}

#[test]
fn programs_are_switched_to_replaced_maps_when_those_are_filled() {
    run("resize", async |node: World| {
        let (_listener, backend) = server("10.244.0.1:0");
        let service = Frontend::new(1, at("10.96.0.1:80"), TCP, &[backend]);
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        node.maps(&running)?.upsert(&service)?;
        running.stop().await?;
        let before = node.attached("cil_sock4_connect");

        let filled = Arc::new(Filled(Notify::new()));
        let written: Arc<dyn MapsWritten> = filled.clone();
        let cell = Cell::module("writer", "Writes maps").provide(move || written.clone());
        let running = node
            .start([cell], &["--bpf-lb-sock", "--bpf-lb-map-max=2048"])
            .await?;
        assert!(connects(service.address), "the old programs and maps go on");
        assert_eq!(node.attached("cil_sock4_connect"), before);

        let maps = node.maps(&running)?;
        assert!(!maps.services4.entries()?.is_empty(), "entries go over");
        maps.upsert(&service)?;
        filled.0.notify_one();
        let deadline = Instant::now() + PATIENCE;
        while node.attached("cil_sock4_connect") == before {
            assert!(Instant::now() < deadline, "still the old programs");
            assert!(connects(service.address));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(connects(service.address));
        while MapStore::new(&node.bpf_root)
            .open::<Service4Key, ServiceValue>("cilium_lb4_services_v2")?
            .max_entries()
            != 2048
        {
            assert!(Instant::now() < deadline, "still the old pin");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        running.stop().await?;
        Ok(())
    });
}

struct Pods(Vec<PathBuf>);

impl PodNetworks for Pods {
    fn namespaces(&self) -> Vec<PathBuf> {
        self.0.clone()
    }
}

#[test]
fn sockets_of_reported_backends_are_destroyed_everywhere() {
    run("report", async |node: World| {
        let mut paths: Vec<_> = node.pods.iter().map(|pod| pod.path().to_owned()).collect();
        paths.push(node.directory.join("gone"));
        let pods: Arc<dyn PodNetworks> = Arc::new(Pods(paths));
        let cell = Cell::module("pods", "Knows pods").provide(move || pods.clone());
        let running = node.start([cell], &["--bpf-lb-sock"]).await?;
        let maps = node.maps(&running)?;
        let backends = [at("127.0.0.1:5001"), at("127.0.0.1:5002")];
        let services = [at("10.96.0.1:53"), at("10.96.0.2:53")];
        for (id, (service, backend)) in (1..).zip(services.into_iter().zip(backends)) {
            maps.upsert(&Frontend::new(id, service, UDP, &[backend]))?;
        }
        let open = || services.map(udp);
        let [host, host_other] = open();
        let [pod, pod_other] = node.pods[1].run(open);

        let dead = running.get::<Arc<DeadBackends>>().unwrap();
        dead.report(backends[1], UDP);
        dead.revoke(backends[1], UDP);
        dead.report(backends[0], UDP);
        dead.report(backends[0], TCP);

        assert!(is_destroyed(&host, PATIENCE));
        assert!(is_destroyed(&pod, PATIENCE));
        assert!(!is_destroyed(&host_other, Duration::from_millis(100)));
        assert!(!is_destroyed(&pod_other, Duration::from_millis(1)));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn tcp_sockets_are_destroyed_if_told_so_and_pods_spared_if_told_so() {
    run("protos", async |node: World| {
        let pods: Arc<dyn PodNetworks> = Arc::new(Pods(vec![node.pods[0].path().to_owned()]));
        let cell = Cell::module("pods", "Knows pods").provide(move || pods.clone());
        let flags = [
            "--bpf-lb-sock",
            "--lb-sock-terminate-all-protos",
            "--bpf-lb-sock-terminate-pod-connections=false",
        ];
        let running = node.start([cell], &flags).await?;
        let maps = node.maps(&running)?;
        let (_listener, backend) = server("10.244.0.1:0");
        maps.upsert(&Frontend::new(1, at("10.96.0.1:80"), TCP, &[backend]))?;
        maps.upsert(&Frontend::new(
            2,
            at("10.96.0.1:53"),
            UDP,
            &[at("127.0.0.1:5001")],
        ))?;
        let mut stream = TcpStream::connect(at("10.96.0.1:80"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let pod = node.pods[0].run(|| udp(at("10.96.0.1:53")));

        let dead = running.get::<Arc<DeadBackends>>().unwrap();
        dead.report(backend, TCP);
        dead.report(at("127.0.0.1:5001"), UDP);

        let error = std::io::Read::read(&mut stream, &mut [0; 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED));
        assert!(!is_destroyed(&pod, Duration::from_millis(100)));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn netlink_destroys_the_same_sockets() {
    run("diag", async |node: World| {
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        let maps = node.maps(&running)?;
        let sizes = *running.get::<Arc<SocketDatapath>>().unwrap().settings().sizes;
        let terminator = DiagTerminator::open(&MapStore::new(&node.bpf_root), sizes, true, true)?;
        let (_listener, tcp) = server("10.244.0.1:0");
        let (four, six) = (at("10.244.0.1:5001"), at("[fd00::1]:5001"));
        maps.upsert(&Frontend::new(1, at("10.96.0.1:53"), UDP, &[four]))?;
        maps.upsert(&Frontend::new(2, at("[fd10::1]:53"), UDP, &[six]))?;
        maps.upsert(&Frontend::new(3, at("10.96.0.1:80"), TCP, &[tcp]))?;
        let sockets =
            ["10.96.0.1:53", "[fd10::1]:53", "[::ffff:10.96.0.1]:53"].map(|service| udp(at(service)));
        let direct = udp(four);
        let stream = TcpStream::connect(at("10.96.0.1:80"))?;

        let dead = |address, proto| DeadBackend { address, proto };
        let mut destroyed = terminator.run(&[dead(four, UDP), dead(six, UDP), dead(tcp, TCP)])?;

        let mut expected: Vec<u64> = sockets
            .iter()
            .map(|socket| netns::socket_cookie(socket.as_fd()))
            .collect::<Result<_, _>>()?;
        expected.push(netns::socket_cookie(stream.as_fd())?);
        expected.sort_unstable();
        destroyed.sort_unstable();
        assert_eq!(destroyed, expected);
        assert!(sockets.iter().all(|socket| is_destroyed(socket, PATIENCE)));
        assert!(!is_destroyed(&direct, Duration::from_millis(10)));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn replacing_the_agent_during_traffic_fails_no_connection() {
    run("upgrade", async |node: World| {
        let running = node.start([], &["--bpf-lb-sock"]).await?;
        let (listener, backend) = server("10.244.0.1:0");
        let service = at("10.96.0.1:80");
        node.maps(&running)?
            .upsert(&Frontend::new(1, service, TCP, &[backend]))?;
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let client = std::thread::spawn(move || {
            let (mut done, mut failed) = (0, 0);
            while !told.load(Ordering::Relaxed) {
                failed += u32::from(!connects(service));
                done += 1;
            }
            (done, failed)
        });

        let mut running = running;
        for _ in 0..5 {
            running.stop().await?;
            running = node.start([], &["--bpf-lb-sock"]).await?;
        }
        stop.store(true, Ordering::Relaxed);

        let (done, failed) = client.join().unwrap();
        assert!(done > 10, "{done}");
        assert_eq!(failed, 0);
        running.stop().await?;
        Ok(())
    });
}

/// A service port as the load balancer's sources would write it.
fn frontend(address: SocketAddr, proto: L4Proto) -> FrontendParams {
    FrontendParams {
        address: L3n4Addr::new(address.ip(), address.port(), proto),
        kind: FrontendKind::ClusterIp,
        port_name: Default::default(),
        service_port: address.port(),
    }
}

fn backend(address: SocketAddr, proto: L4Proto) -> BackendParams {
    BackendParams::new(
        L3n4Addr::new(address.ip(), address.port(), proto),
        Source::Kubernetes,
    )
}

#[test]
fn services_in_the_load_balancers_tables_work_from_sockets() {
    run("stack", async |world: World| {
        let cells = [
            statedb::cell(),
            skep_loadbalancer_maglev::cell(),
            skep_loadbalancer_model::cell(),
            skep_loadbalancer_reconciler::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::cell(),
            skep_loadbalancer_reconciler::sockets::cell(),
            skep_datapath_socketlb::cell(),
        ];
        let flags = [
            "--bpf-lb-sock".to_owned(),
            "--bpf-lb-map-max=1024".to_owned(),
            "--bpf-sock-rev-map-max=2048".to_owned(),
            format!("--bpf-root={}", world.bpf_root.display()),
            format!("--cgroup-root={}", world.cgroup.display()),
        ];
        let plan = Hive::new(cells)
            .root::<Writer>()
            .root::<InitWait>()
            .root::<Arc<MapStore>>()
            .plan(Settings::new().args(flags))?;
        let running = plan.build()?.start().await?;
        let writer = running.get::<Writer>().unwrap();
        let (listener, tcp) = server("10.244.0.1:0");
        let (udp_backend, udp_service) = (at("10.244.0.1:5001"), at("10.96.0.1:53"));
        let name = ServiceName::new("default", "web");

        let mut txn = writer.write();
        let frontends = vec![
            frontend(at("10.96.0.1:80"), L4Proto::Tcp),
            frontend(udp_service, L4Proto::Udp),
        ];
        writer.upsert_service_and_frontends(
            &mut txn,
            Service::new(name.clone(), Source::Kubernetes),
            frontends,
        )?;
        writer.upsert_backends(
            &mut txn,
            &name,
            vec![backend(tcp, L4Proto::Tcp), backend(udp_backend, L4Proto::Udp)],
        )?;
        txn.commit();
        tokio::time::timeout(PATIENCE, running.get::<InitWait>().unwrap().wait()).await?;

        assert!(connects(at("10.96.0.1:80")));
        drop(listener);
        let client = udp(udp_service);
        assert_eq!(client.peer_addr()?, udp_service);
        let store = running.get::<Arc<MapStore>>().unwrap();
        let sockets = store.open::<ReverseSk4Key, ReverseSk4>("cilium_lb4_reverse_sk")?;
        assert_eq!(
            sockets.max_entries(),
            2048,
            "writer and programs agree on the sizes"
        );

        let mut txn = writer.write();
        let gone = [L3n4Addr::new(udp_backend.ip(), udp_backend.port(), L4Proto::Udp)];
        writer.release_backends(&mut txn, &name, Source::Kubernetes, &gone)?;
        txn.commit();
        assert!(is_destroyed(&client, PATIENCE));
        running.stop().await?;
        Ok(())
    });
}
