// SPDX-License-Identifier: Apache-2.0

//! Policies in a hive with an API server and the load balancer's tables.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, HealthEntry, Hive, Level, MemoryHealth, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_bpf_maps::MapSizes;
use skep_bpf_maps::lb::{SKIP4, SKIP6};
use skep_bpf_sys::map::{FaultyMap, Plain};
use skep_bpf_sys::{Map, MapSpec, MemoryMap};
use skep_k8s_memory::FakeClient;
use skep_loadbalancer_model::{Frontend, Writer};
use statedb::Table;

use crate::{CookieSource, NetnsCookies, SkipEntry, SkipMaps, SkipRedirects};

struct Fixture {
    api: Arc<FakeClient>,
    writer: Writer,
    skips: Table<SkipRedirects>,
    maps: Arc<SkipMaps>,
    cookies: NetnsCookies,
    health: Arc<MemoryHealth>,
    _running: Running,
}

/// Skip maps that cannot be read or written.
fn broken() -> Arc<SkipMaps> {
    fn map<K: Plain>(spec: MapSpec<K, u8>) -> Map<K, u8> {
        let below = Arc::new(MemoryMap::create(spec.raw()).unwrap());
        Map::from_raw(Arc::new(FaultyMap::new(below, 1.0, 0))).unwrap()
    }
    let sizes = MapSizes::default();
    Arc::new(SkipMaps::new(map(SKIP4.spec(&sizes)), map(SKIP6.spec(&sizes))))
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|hive| hive).await
    }

    async fn with(change: fn(Hive) -> Hive) -> Self {
        let health = Arc::new(MemoryHealth::new());
        let sink: Arc<dyn hive::HealthSink> = health.clone();
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_loadbalancer_model::cell(),
            skep_loadbalancer_sources::cell(),
            skep_k8s_memory::fake_client_cell(),
            skep_k8s_reflectors::tables::cell(),
            Cell::module("node-name", "Name of the node").provide(|| NodeName::new("here")),
            skep_datapath_maps::in_memory_cell(),
            crate::cell(),
            Cell::module("health", "Health").provide(move || sink.clone()),
        ];
        let hive = change(Hive::new(cells))
            .root::<Arc<FakeClient>>()
            .root::<Writer>()
            .root::<Table<SkipRedirects>>()
            .root::<Arc<SkipMaps>>()
            .root::<NetnsCookies>();
        let settings = Settings::new().flag("enable-local-redirect-policy", "true");
        let running = hive::testing::start_with(hive, settings).await;
        Self {
            api: running.get().unwrap(),
            writer: running.get().unwrap(),
            skips: running.get().unwrap(),
            maps: running.get().unwrap(),
            cookies: running.get().unwrap(),
            health,
            _running: running,
        }
    }

    fn add(&self, value: Value) {
        self.api.add(&value.to_string()).unwrap();
    }

    fn delete(&self, value: Value) {
        self.api.delete(&value.to_string()).unwrap();
    }

    /// Frontends as `kind address service > redirected to [backends]`.
    fn frontends(&self) -> Vec<String> {
        let txn = self.writer.db().read();
        let table = self.writer.frontends();
        let text = |row: &Frontend| {
            let backends: Vec<String> = row
                .backends
                .iter()
                .map(|backend| backend.params.address.to_string())
                .collect();
            let to = row.redirect_to.as_ref().map_or("-", |name| name.as_str());
            format!(
                "{} {} {} > {to} [{}]",
                row.params.kind,
                row.address(),
                row.service_name(),
                backends.join(" ")
            )
        };
        table.all(&txn).map(|row| text(row)).collect()
    }

    /// Whether health is degraded, and says so.
    fn reports(&self, problem: &str) -> bool {
        let entry = self.health().filter(|entry| entry.level == Level::Degraded);
        entry
            .and_then(|entry| entry.error)
            .is_some_and(|error| error.contains(problem))
    }

    fn health(&self) -> Option<HealthEntry> {
        self.health.get("local-redirect-policies.job-controller")
    }

    fn is_well(&self) -> bool {
        self.health().is_some_and(|entry| entry.level == Level::Ok)
    }

    /// Statuses in `desired-skiplbmap`, by pod and cookie.
    fn skips(&self) -> Vec<String> {
        let txn = self.writer.db().read();
        let text = |row: &SkipRedirects| format!("{} {:?} {}", row.pod, row.cookie, row.status.kind);
        self.skips.all(&txn).map(|row| text(row)).collect()
    }

    fn entries(&self) -> Vec<String> {
        let mut entries = self.maps.entries().unwrap();
        entries.sort();
        entries.iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn wait_for<'a>(&'a self, frontends: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            if self.holds(|| self.frontends() == frontends).await.is_err() {
                panic!("{place}: {:#?} instead of {frontends:#?}", self.frontends());
            }
        }
    }

    async fn holds(&self, holds: impl Fn() -> bool) -> Result<(), tokio::time::error::Elapsed> {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await
    }
}

fn service(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.9"]}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn pod(ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "proxy-0", "uid": "u", "labels": {"app": "proxy"}},
        "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {
            "phase": "Running", "podIPs": [{"ip": "10.1.0.1"}],
            "conditions": [{"type": "Ready", "status": ready}],
        },
    })
}

fn policy(frontend: Value, skip: bool) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy",
        "metadata": {"namespace": "shop", "name": "lrp", "uid": "p"},
        "spec": {
            "redirectFrontend": frontend,
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"app": "proxy"}},
                "toPorts": [{"port": "8080", "protocol": "TCP"}],
            },
            "skipRedirectFromBackend": skip,
        },
    })
}

fn of_service() -> Value {
    json!({"serviceMatcher": {"serviceName": "web", "namespace": "shop"}})
}

fn of_address(ip: &str) -> Value {
    json!({"addressMatcher": {"ip": ip, "toPorts": [{"port": "80", "protocol": "TCP"}]}})
}

const PLAIN: &str = "ClusterIP 10.96.0.1:80/TCP shop/web > - [10.1.0.9:8080/TCP]";
const REDIRECTED: &str = "ClusterIP 10.96.0.1:80/TCP shop/web > shop/lrp:local-redirect [10.1.0.1:8080/TCP]";

#[tokio::test]
async fn a_service_is_redirected_while_a_pod_is_ready() {
    let fixture = Fixture::new().await;
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(slice());
    fixture.add(policy(of_service(), false));
    fixture.wait_for(&[PLAIN]).await;

    fixture.add(pod("True"));
    fixture.wait_for(&[REDIRECTED]).await;
    fixture.add(pod("False"));
    fixture.wait_for(&[PLAIN]).await;
    fixture.add(pod("True"));
    fixture.wait_for(&[REDIRECTED]).await;

    fixture.delete(service("web", "10.96.0.1"));
    fixture.wait_for(&[]).await;
    fixture.add(service("web", "10.96.0.1"));
    fixture.wait_for(&[REDIRECTED]).await;

    fixture.delete(policy(of_service(), false));
    fixture.wait_for(&[PLAIN]).await;
}

#[tokio::test]
async fn an_address_is_taken_unless_a_service_has_it() {
    let fixture = Fixture::new().await;
    let taken = "LocalRedirect 10.96.0.1:80/TCP shop/lrp:local-redirect > - [10.1.0.1:8080/TCP]";
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(slice());
    fixture.add(pod("True"));
    fixture.add(policy(of_address("10.96.0.1"), false));
    let has_redirect = || {
        let txn = fixture.writer.db().read();
        !fixture
            .writer
            .service_names_with_prefix(&txn, "shop/lrp")
            .is_empty()
    };
    fixture.holds(has_redirect).await.unwrap();
    fixture.wait_for(&[PLAIN]).await;

    fixture.delete(service("web", "10.96.0.1"));
    fixture.wait_for(&[taken]).await;
    fixture.delete(pod("True"));
    fixture.wait_for(&[]).await;
}

#[tokio::test]
async fn traffic_of_the_pods_themselves_is_left_alone_when_their_cookie_is_known() {
    for cookie_first in [true, false] {
        let fixture = Fixture::new().await;
        let cookies: CookieSource = fixture.cookies.register();
        cookies.delivered();
        fixture.add(service("web", "10.96.0.1"));
        fixture.add(pod("True"));
        if cookie_first {
            cookies.set("shop/proxy-0", Some(4711)).unwrap();
        }
        fixture.add(policy(of_service(), true));
        fixture
            .wait_for(&["ClusterIP 10.96.0.1:80/TCP shop/web > shop/lrp:local-redirect [10.1.0.1:8080/TCP]"])
            .await;
        cookies.set("shop/proxy-0", Some(4711)).unwrap();

        let entry = "COOKIE=4711 IP=10.96.0.1 PORT=80";
        fixture.holds(|| fixture.entries() == [entry]).await.unwrap();
        let is_done = || {
            let txn = fixture.writer.db().read();
            fixture
                .skips
                .all(&txn)
                .all(|row| row.status.kind == statedb::reconciler::StatusKind::Done)
        };
        fixture.holds(is_done).await.unwrap();
        assert!(fixture.is_well());

        fixture.delete(policy(of_service(), true));
        fixture.holds(|| fixture.entries().is_empty()).await.unwrap();
    }
}

#[tokio::test]
async fn entries_of_an_earlier_run_stay_until_the_cookies_of_all_pods_are_known() {
    let fixture = Fixture::new().await;
    let cookies = fixture.cookies.register();
    // The pod of the second one is gone.
    for cookie in [4711, 4712] {
        let entry = SkipEntry {
            cookie,
            ip: "10.96.0.1".parse().unwrap(),
            port: 80,
        };
        fixture.maps.insert(&entry).unwrap();
    }
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(pod("True"));
    fixture.add(policy(of_service(), true));
    let has_row = || fixture.skips() == ["shop/proxy-0 None "];
    fixture.holds(has_row).await.unwrap();
    let rounds = || {
        let entry = fixture.health.get("local-redirect-policies.job-skip-maps");
        entry.map_or(0, |entry| entry.count)
    };
    let seen = rounds();
    fixture.holds(|| rounds() >= seen + 2).await.unwrap();

    let kept = "COOKIE=4711 IP=10.96.0.1 PORT=80";
    assert_eq!(fixture.entries(), [kept, "COOKIE=4712 IP=10.96.0.1 PORT=80"]);
    cookies.set("shop/proxy-0", Some(4711)).unwrap();
    cookies.delivered();

    fixture.holds(|| fixture.entries() == [kept]).await.unwrap();
}

#[tokio::test]
async fn a_policy_that_cannot_skip_its_backends_without_endpoints_is_in_the_health() {
    let fixture = Fixture::new().await;
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(pod("True"));
    fixture.add(policy(of_service(), true));

    let expected = "shop/lrp: skipRedirectFromBackend has no effect without endpoints";
    fixture.holds(|| fixture.reports(expected)).await.unwrap();

    let cookies = fixture.cookies.register();
    cookies.delivered();
    fixture.holds(|| fixture.is_well()).await.unwrap();
    cookies.set("shop/proxy-0", Some(4711)).unwrap();
    let entry = "COOKIE=4711 IP=10.96.0.1 PORT=80";
    fixture.holds(|| fixture.entries() == [entry]).await.unwrap();

    cookies.set("shop/proxy-0", None).unwrap();
    fixture.holds(|| fixture.entries().is_empty()).await.unwrap();
    drop(cookies);
    fixture.holds(|| fixture.reports(expected)).await.unwrap();
    fixture.delete(policy(of_service(), true));
    fixture.holds(|| fixture.is_well()).await.unwrap();
}

#[tokio::test]
async fn what_has_no_cookie_has_no_status() {
    let fixture = Fixture::with(|hive| hive.replace(broken)).await;
    let cookies = fixture.cookies.register();
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(pod("True"));
    fixture.add(policy(of_service(), true));
    let skips = || fixture.skips() == ["shop/proxy-0 None "];
    fixture.holds(skips).await.unwrap();

    cookies.set("shop/proxy-0", Some(4711)).unwrap();
    assert_eq!(fixture.skips(), ["shop/proxy-0 Some(4711) Pending"]);
}

#[tokio::test]
async fn what_changes_nothing_writes_nothing() {
    let fixture = Fixture::new().await;
    fixture.add(service("web", "10.96.0.1"));
    fixture.add(pod("True"));
    fixture.add(policy(of_service(), false));
    fixture
        .wait_for(&["ClusterIP 10.96.0.1:80/TCP shop/web > shop/lrp:local-redirect [10.1.0.1:8080/TCP]"])
        .await;
    let revisions = || {
        let txn = fixture.writer.db().read();
        (
            fixture.writer.services().revision(&txn),
            fixture.writer.backends().revision(&txn),
        )
    };
    let before = revisions();

    let mut other = pod("True");
    other["metadata"]["annotations"] = json!({"touched": "yes"});
    fixture.add(other);
    let mut witness = pod("True");
    witness["metadata"]["name"] = json!("witness");
    witness["status"]["podIPs"][0]["ip"] = json!("10.1.0.2");
    assert_eq!(revisions(), before);
    fixture.add(witness);
    let with_both =
        "ClusterIP 10.96.0.1:80/TCP shop/web > shop/lrp:local-redirect [10.1.0.1:8080/TCP 10.1.0.2:8080/TCP]";
    fixture.wait_for(&[with_both]).await;

    let after = revisions();
    assert_eq!(
        (after.0, after.1),
        (before.0, before.1 + 1),
        "only the witness was written"
    );
}
