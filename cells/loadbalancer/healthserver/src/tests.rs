// SPDX-License-Identifier: Apache-2.0

//! Real servers on loopback addresses, one address a test.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{Cell, Hive, Job, JobCtx, Jobs, Running};
use skep_loadbalancer_model::types::{BackendState, ProxyRedirect, TrafficPolicy};
use skep_loadbalancer_model::{
    BackendParams, FrontendKind, FrontendParams, NodeFacts, Service, ServiceName, Source, Tables, Writer,
    WriterSettings,
};
use statedb::Db;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::control::{Control, INITIALIZER, Ports};

mod cell;
mod healthz;

/// The cells around those of this crate.
fn surroundings() -> [Cell; 4] {
    let writer = |db: Db| -> Result<Writer, statedb::Error> {
        let tables = Tables::new(&db)?;
        Ok(Writer::new(db, tables, WriterSettings::default()))
    };
    [
        statedb::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_model::config_cell(),
        Cell::module("tables", "Tables of the load balancer").provide(writer),
    ]
}

/// A loopback address that no other test has, nor a run of this one beside it: ports are the same in all of them.
fn own_address(test: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, test)
}

/// Sets the addresses of the node.
fn set_node(writer: &Writer, addresses: [&str; 2]) {
    let facts = NodeFacts {
        name: "here".into(),
        addresses: Arc::new(
            addresses
                .map(|address| (address.parse().unwrap(), true))
                .into_iter()
                .collect(),
        ),
        ..NodeFacts::default()
    };
    let mut txn = writer.write();
    writer.set_node(&mut txn, facts).unwrap();
    txn.commit();
}

struct Fixture {
    writer: Writer,
    address: IpAddr,
    _running: Running,
}

impl Fixture {
    /// Servers listen on a loopback address of their own.
    async fn new(last: u8) -> Self {
        let db = Db::new();
        let tables = Tables::new(&db).unwrap();
        let writer = Writer::new(db.clone(), tables, WriterSettings::default());
        let address = IpAddr::from(own_address(last));
        set_node(&writer, ["192.0.2.7", "2001:db8::7"]);
        let control_of = writer.clone();
        let start = move |jobs: Jobs| {
            let control = Arc::new(Control {
                db: db.clone(),
                writer: control_of.clone(),
                jobs: jobs.clone(),
                listen_on: Some(address),
                ports: Arc::new(Ports::default()),
                initializer: Some(control_of.register_initializer(INITIALIZER)?),
            });
            jobs.spawn(Job::once("control-loop", move |cx: JobCtx| {
                control.clone().run(cx)
            }))?;
            Ok::<(), hive::BoxError>(())
        };
        let cells = [Cell::module("loadbalancer-healthserver", "Servers").run(start)];
        let _running = hive::testing::start(Hive::new(cells)).await;
        Self {
            writer,
            address,
            _running,
        }
    }

    fn put(&self, name: &str, port: u16, vip: &str) {
        let mut service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
        service.health_check_node_port = port;
        service.ext_traffic_policy = TrafficPolicy::Local;
        self.put_service(service, vip);
    }

    fn put_service(&self, service: Service, vip: &str) {
        self.put_frontend(service, vip, FrontendKind::LoadBalancer);
    }

    fn put_frontend(&self, service: Service, address: &str, kind: FrontendKind) {
        let frontend = FrontendParams {
            address: address.parse().unwrap(),
            kind,
            port_name: "".into(),
            service_port: 80,
        };
        let mut txn = self.writer.write();
        self.writer
            .upsert_service_and_frontends(&mut txn, service, vec![frontend])
            .unwrap();
        txn.commit();
    }

    fn set_backends(&self, name: &str, backends: &[(&str, &str, BackendState)]) {
        let backend = |&(address, node, state): &(&str, &str, _)| BackendParams {
            node_name: (!node.is_empty()).then(|| node.into()),
            state,
            ..BackendParams::new(str::parse(address).unwrap(), Source::Kubernetes)
        };
        let mut txn = self.writer.write();
        let backends = backends.iter().map(backend).collect();
        self.writer
            .set_backends(
                &mut txn,
                &ServiceName::new("shop", name),
                Source::Kubernetes,
                0,
                backends,
            )
            .unwrap();
        txn.commit();
    }

    /// Address, service and backends of the frontends.
    fn frontends(&self) -> Vec<String> {
        let text = |row: &skep_loadbalancer_model::Frontend| {
            let backends: Vec<String> = row
                .backends
                .iter()
                .map(|backend| backend.params.address.to_string())
                .collect();
            format!("{} {} {}", row.address(), row.service_name(), backends.join(" "))
        };
        let txn = self.writer.db().read();
        let frontends = self.writer.frontends();
        frontends.all(&txn).map(|row| text(row)).collect()
    }

    /// Status and body of the answer, `None` if nothing listens.
    async fn get(&self, port: u16) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(SocketAddr::new(self.address, port))
            .await
            .ok()?;
        stream
            .write_all(b"GET /any/path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let status = text.split(' ').nth(1)?.parse().ok()?;
        Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
    }

    async fn wait_for(&self, port: u16, wanted: Option<(u16, &str)>) {
        let wanted = wanted.map(|(status, body)| (status, body.to_owned()));
        self.wait_until(async || self.get(port).await == wanted).await;
    }

    async fn wait_until(&self, holds: impl AsyncFn() -> bool) {
        let wait = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .expect("in time");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Keeps what this thread logs while the second value lives.
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

fn body(name: &str, count: usize) -> String {
    format!(r#"{{"service":{{"namespace":"shop","name":"{name}"}},"localEndpoints":{count}}}"#) + "\n"
}

#[tokio::test]
async fn counts_backends_of_this_node() {
    let fixture = Fixture::new(1).await;
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    fixture.wait_for(31000, Some((503, &body("web", 0)))).await;

    fixture.set_backends(
        "web",
        &[
            ("10.1.0.1:80/TCP", "here", BackendState::Active),
            ("10.1.0.2:80/TCP", "", BackendState::Active),
            ("10.1.0.3:80/TCP", "there", BackendState::Active),
            ("10.1.0.4:80/TCP", "here", BackendState::Terminating),
            ("10.1.0.5:80/TCP", "here", BackendState::Maintenance),
        ],
    );
    assert_eq!(
        fixture.get(31000).await,
        Some((200, body("web", 2))),
        "no pause between the table and the answer"
    );

    // Cilium counts backends that its health checker found dead, too (reference, defect 10).
    let mut txn = fixture.writer.write();
    let name = ServiceName::new("shop", "web");
    for address in ["10.1.0.1:80/TCP", "10.1.0.2:80/TCP"] {
        fixture
            .writer
            .set_backend_health(&mut txn, &name, &address.parse().unwrap(), false)
            .unwrap();
    }
    txn.commit();
    assert_eq!(fixture.get(31000).await, Some((503, body("web", 0))));
}

#[tokio::test]
async fn a_service_behind_a_proxy_has_one() {
    let fixture = Fixture::new(2).await;
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    fixture.wait_for(31000, Some((503, &body("web", 0)))).await;

    let mut txn = fixture.writer.write();
    let redirect = ProxyRedirect {
        proxy_port: 10000,
        ports: [80].into(),
    };
    fixture
        .writer
        .set_proxy_redirects(
            &mut txn,
            &ServiceName::new("shop", "web"),
            Some([redirect].into()),
        )
        .unwrap();
    txn.commit();

    assert_eq!(fixture.get(31000).await, Some((200, body("web", 1))));
}

#[tokio::test]
async fn servers_follow_port_policy_and_service() {
    let fixture = Fixture::new(3).await;
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    fixture.wait_for(31000, Some((503, &body("web", 0)))).await;

    fixture.put("web", 31001, "172.16.0.1:80/TCP");
    fixture.wait_for(31001, Some((503, &body("web", 0)))).await;
    fixture.wait_for(31000, None).await;

    let mut cluster = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    cluster.health_check_node_port = 31001;
    fixture.put_service(cluster, "172.16.0.1:80/TCP");
    fixture.wait_for(31001, None).await;

    fixture.put("web", 31001, "172.16.0.1:80/TCP");
    fixture.wait_for(31001, Some((503, &body("web", 0)))).await;
    let mut txn = fixture.writer.write();
    fixture
        .writer
        .delete_service_and_frontends(&mut txn, &ServiceName::new("shop", "web"))
        .unwrap();
    txn.commit();
    fixture.wait_for(31001, None).await;
}

#[tokio::test]
async fn services_with_a_node_port_alone_have_a_server_and_those_of_the_cluster_none() {
    let fixture = Fixture::new(7).await;
    for (name, port, kind, address) in [
        ("inside", 31000, FrontendKind::ClusterIp, "172.16.0.1:80/TCP"),
        ("outside", 31001, FrontendKind::NodePort, "172.16.0.2:80/TCP"),
    ] {
        let mut service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
        service.health_check_node_port = port;
        service.ext_traffic_policy = TrafficPolicy::Local;
        fixture.put_frontend(service, address, kind);
    }

    fixture.wait_for(31001, Some((503, &body("outside", 0)))).await;
    assert_eq!(fixture.get(31000).await, None);
}

#[tokio::test]
async fn the_first_of_two_services_has_the_port_until_it_goes() {
    let (log, _logging) = Log::start();
    let fixture = Fixture::new(4).await;
    fixture.put("b", 31000, "172.16.0.2:80/TCP");
    fixture.wait_for(31000, Some((503, &body("b", 0)))).await;
    let refusals = || log.lines("port in use by another service");
    fixture.put("a", 31000, "172.16.0.1:80/TCP");
    fixture.wait_until(async || !refusals().is_empty()).await;
    fixture.put("c", 31002, "172.16.0.3:80/TCP");
    fixture.wait_for(31002, Some((503, &body("c", 0)))).await;
    assert_eq!(fixture.get(31000).await, Some((503, body("b", 0))));
    let refusals = refusals();
    assert!(
        matches!(&refusals[..], [one] if one.ends_with("service=shop/a port=31000 owner=shop/b")),
        "said once, {refusals:?}"
    );

    let mut txn = fixture.writer.write();
    fixture
        .writer
        .delete_service_and_frontends(&mut txn, &ServiceName::new("shop", "b"))
        .unwrap();
    txn.commit();
    fixture.wait_for(31000, Some((503, &body("a", 0)))).await;
}

#[tokio::test]
async fn a_busy_port_is_tried_again() {
    let fixture = Fixture::new(5).await;
    let squatter = TcpListener::bind(SocketAddr::new(fixture.address, 31000))
        .await
        .unwrap();
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    fixture.put("other", 31001, "172.16.0.2:80/TCP");
    fixture.wait_for(31001, Some((503, &body("other", 0)))).await;

    drop(squatter);
    fixture.wait_for(31000, Some((503, &body("web", 0)))).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_port_is_tried_less_and_less_often() {
    let (log, _logging) = Log::start();
    let fixture = Fixture::new(8).await;
    let _squatter = TcpListener::bind(SocketAddr::new(fixture.address, 31000))
        .await
        .unwrap();
    fixture.put("web", 31000, "172.16.0.1:80/TCP");

    tokio::time::sleep(Duration::from_secs(60)).await;

    // After 0, 0.2, 0.6, 1.4, 3, 6.2, 12.6 seconds, and every ten seconds from then on.
    assert_eq!(log.lines("Cannot listen for health checks").len(), 11);
}

// The maps are pruned when the frontends count as complete: entries and ids of an earlier run must have an owner then.
#[tokio::test]
async fn frontends_are_complete_only_with_those_of_the_servers() {
    let fixture = Fixture::new(9).await;
    let (db, frontends) = (fixture.writer.db().clone(), fixture.writer.frontends());
    let kubernetes = fixture.writer.register_initializer("k8s-services").unwrap();
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    let mut txn = fixture.writer.write();
    txn.initialized(&kubernetes).unwrap();
    txn.commit();

    let complete = frontends.wait_initialized(&db);
    let snapshot = tokio::time::timeout(Duration::from_secs(30), complete)
        .await
        .unwrap();
    let services: Vec<String> = frontends
        .all(&snapshot)
        .map(|row| row.service_name().to_string())
        .collect();
    assert_eq!(services, ["shop/web", "shop/web:healthserver"]);
}

#[tokio::test]
async fn virtual_addresses_lead_to_the_server() {
    let fixture = Fixture::new(6).await;
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    let exposed = [
        "172.16.0.1:80/TCP shop/web ",
        "172.16.0.1:31000/TCP shop/web:healthserver 192.0.2.7:31000/TCP",
    ];
    fixture.wait_until(async || fixture.frontends() == exposed).await;

    let mut cluster = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    cluster.health_check_node_port = 31000;
    fixture.put_service(cluster, "172.16.0.1:80/TCP");
    fixture
        .wait_until(async || fixture.frontends() == exposed[..1])
        .await;
}

#[tokio::test]
async fn virtual_addresses_lead_to_the_port_at_the_address_of_their_family_that_the_node_has() {
    let fixture = Fixture::new(9).await;
    fixture.put("four", 31000, "172.16.0.1:80/TCP");
    fixture.put("six", 31001, "[2001:db8:1::1]:80/TCP");
    let leads = |to: [&str; 2]| {
        let frontends = fixture.frontends();
        ["four", "six"].iter().zip(to).all(|(name, to)| {
            let end = format!(" shop/{name}:healthserver {to}");
            frontends.iter().any(|line| line.ends_with(&end))
        })
    };
    let before = ["192.0.2.7:31000/TCP", "[2001:db8::7]:31001/TCP"];
    fixture.wait_until(async || leads(before)).await;

    fixture.put("four", 31002, "172.16.0.1:80/TCP");

    let after = ["192.0.2.7:31002/TCP", before[1]];
    fixture.wait_until(async || leads(after)).await;
}

#[tokio::test]
async fn virtual_addresses_lead_to_the_node_when_its_addresses_change() {
    let fixture = Fixture::new(10).await;
    fixture.put("web", 31000, "172.16.0.1:80/TCP");
    let leads = |to: &str| {
        let end = format!(" shop/web:healthserver {to}");
        fixture.frontends().iter().any(|line| line.ends_with(&end))
    };
    fixture.wait_until(async || leads("192.0.2.7:31000/TCP")).await;
    // Nothing else happens any more.
    tokio::time::sleep(3 * crate::control::PAUSE).await;

    set_node(&fixture.writer, ["192.0.2.8", "2001:db8::8"]);

    fixture.wait_until(async || leads("192.0.2.8:31000/TCP")).await;
}
