// SPDX-License-Identifier: Apache-2.0

//! Sources in a hive, from an API server to the tables.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Level, MemoryHealth, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_k8s_memory::FakeClient;
use skep_k8s_types::slim::Labels;
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_model::types::{FrontendKind, FrontendParams, Service, ServiceName, Source};
use skep_node_local::LocalNodeStore;

use super::{frontends, service_json, services, slice_json};

struct Fixture {
    api: Arc<FakeClient>,
    writer: Writer,
    node: LocalNodeStore,
    health: Arc<MemoryHealth>,
    _running: Running,
}

impl Fixture {
    /// A hive in which objects exist before it starts.
    async fn new(objects: &[Value]) -> Self {
        let health = Arc::new(MemoryHealth::new());
        let sink: Arc<dyn hive::HealthSink> = health.clone();
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_loadbalancer_model::cell(),
            crate::cell(),
            skep_k8s_memory::fake_client_cell(),
            skep_k8s_reflectors::tables::cell(),
            skep_node_local::cells::local_node(),
            Cell::module("node-name", "Name of the node").provide(|| NodeName::new("here")),
            Cell::module("health", "Health").provide(move || sink.clone()),
        ];
        let built = Hive::new(cells)
            .root::<Arc<FakeClient>>()
            .root::<Writer>()
            .root::<LocalNodeStore>()
            .plan(Settings::new().flag("kube-proxy-replacement", "true"))
            .unwrap()
            .build()
            .unwrap();
        let api: Arc<FakeClient> = built.get().unwrap();
        objects
            .iter()
            .for_each(|object| api.add(&object.to_string()).unwrap());
        Self {
            api,
            writer: built.get().unwrap(),
            node: built.get().unwrap(),
            health,
            _running: built.start().await.unwrap(),
        }
    }

    async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .expect("in time");
    }

    fn health(&self) -> (Level, String) {
        let module = "loadbalancer-reflectors.k8s-reflector.job-reflect-services-endpoints";
        self.health
            .get(module)
            .map(|entry| (entry.level, entry.message))
            .unwrap_or((Level::Stopped, String::new()))
    }
}

fn service(name: &str, ip: &str) -> Value {
    let mut value = service_json(name, ip);
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("Service");
    value
}

fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let mut value = slice_json(name, service, addresses);
    value["apiVersion"] = json!("discovery.k8s.io/v1");
    value["kind"] = json!("EndpointSlice");
    value
}

#[tokio::test]
async fn objects_become_rows_and_complete_the_sources() {
    let fixture = Fixture::new(&[service("web", "10.96.0.1"), slice("web-1", "web", &["10.1.0.1"])]).await;
    let table = fixture.writer.frontends();
    fixture
        .wait_until(|fixture| table.is_initialized(&fixture.writer.db().read()))
        .await;
    assert_eq!(
        frontends(&fixture.writer),
        ["10.96.0.1:80/TCP shop/web [10.1.0.1:8080/TCP]"]
    );

    fixture
        .api
        .add(&slice("web-1", "web", &["10.1.0.2"]).to_string())
        .unwrap();
    fixture
        .wait_until(|fixture| frontends(&fixture.writer) == ["10.96.0.1:80/TCP shop/web [10.1.0.2:8080/TCP]"])
        .await;
    fixture
        .api
        .delete(&service("web", "10.96.0.1").to_string())
        .unwrap();
    fixture
        .wait_until(|fixture| services(&fixture.writer).is_empty())
        .await;
    assert_eq!(fixture.health(), (Level::Ok, "Running".to_owned()));
}

#[tokio::test]
async fn health_tells_of_objects_that_cannot_be_used() {
    let mut broken = service("web", "10.96.0.1");
    broken["spec"]["ports"][0]["protocol"] = json!("");
    let fixture = Fixture::new(&[broken]).await;
    let degraded = (Level::Degraded, "Failure processing services".to_owned());
    fixture.wait_until(|fixture| fixture.health() == degraded).await;

    fixture
        .api
        .update(&service("web", "10.96.0.1").to_string(), false)
        .unwrap();
    fixture
        .wait_until(|fixture| fixture.health() == (Level::Ok, "Running".to_owned()))
        .await;
    assert_eq!(services(&fixture.writer), ["shop/web"]);
}

#[tokio::test]
async fn a_service_gets_an_address_when_another_source_gives_it_up() {
    let other = ServiceName::new("shop", "other");
    let fixture = Fixture::new(&[]).await;
    let writer = &fixture.writer;
    let mut txn = writer.write();
    let address = "10.96.0.1:80/TCP".parse().unwrap();
    writer
        .upsert_service_and_frontends(
            &mut txn,
            Service::new(other.clone(), Source::Api),
            vec![FrontendParams {
                address,
                kind: FrontendKind::HostPort,
                port_name: "web".into(),
                service_port: 80,
            }],
        )
        .unwrap();
    txn.commit();

    fixture.api.add(&service("web", "10.96.0.1").to_string()).unwrap();
    let degraded = (Level::Degraded, "Failure processing services".to_owned());
    fixture.wait_until(|fixture| fixture.health() == degraded).await;
    let mut txn = writer.write();
    writer.delete_service_and_frontends(&mut txn, &other).unwrap();
    txn.commit();

    fixture
        .wait_until(|fixture| frontends(&fixture.writer) == ["10.96.0.1:80/TCP shop/web []"])
        .await;
    fixture
        .wait_until(|fixture| fixture.health() == (Level::Ok, "Running".to_owned()))
        .await;
}

#[tokio::test]
async fn labels_of_the_node_decide_about_services_that_name_nodes() {
    let mut edge = service("edge", "10.96.0.1");
    edge["metadata"]["annotations"] = json!({"service.cilium.io/node-selector": "place in (edge)"});
    let fixture = Fixture::new(&[edge, service("any", "10.96.0.2")]).await;
    fixture
        .wait_until(|fixture| services(&fixture.writer) == ["shop/any"])
        .await;

    fixture
        .node
        .update(|node| node.labels = Labels::from_iter([("place", "edge")]))
        .unwrap();
    fixture
        .wait_until(|fixture| services(&fixture.writer) == ["shop/any", "shop/edge"])
        .await;
    fixture
        .node
        .update(|node| node.labels = Labels::default())
        .unwrap();
    fixture
        .wait_until(|fixture| services(&fixture.writer) == ["shop/any"])
        .await;
}

#[tokio::test]
async fn host_ports_of_local_pods_are_served() {
    let pod = |phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "web-0", "uid": "u"},
            "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": [{"hostPort": 4444, "containerPort": 80, "protocol": "TCP"}]}]},
            "status": {"phase": phase, "podIPs": [{"ip": "10.1.0.1"}]},
        })
    };
    let fixture = Fixture::new(&[pod("Running")]).await;
    fixture
        .wait_until(|fixture| {
            frontends(&fixture.writer) == ["0.0.0.0:4444/TCP shop/web-0:host-port:4444:u [10.1.0.1:80/TCP]"]
        })
        .await;

    fixture.api.add(&pod("Succeeded").to_string()).unwrap();
    fixture
        .wait_until(|fixture| services(&fixture.writer).is_empty())
        .await;
}
