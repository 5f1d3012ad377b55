// SPDX-License-Identifier: Apache-2.0

//! Endpoints and pods in, CiliumEndpoints in an API server out.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{future::Future, sync::Arc, time::Duration};

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_endpoint::{Endpoint, EndpointSpec};
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, SecurityIdentity, Writer as IdentityWriter};
use skep_k8s_client::Client;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::slim::{CiliumEndpoint, NodeAddressType, Pod};
use skep_k8s_types::{Kind, Resource};
use skep_node_local::LocalNodeStore;
use skep_policy_maps::Realized;
use statedb::{Db, RwTable, reconciler::Status};

use super::cell;

/// What the agent of a node writes for a pod, as recorded from Cilium.
const RECORDED: &str = include_str!("tests/ciliumendpoint.json");

struct Bench {
    cluster: TestCluster,
    hive: Running,
}

fn endpoints() -> Cell {
    Cell::module("fakes", "What stands for the rest of the agent")
        .provide(|| NodeName::new("n1"))
        .provide(|db: Db| {
            RwTable::<Endpoint>::builder("endpoints")
                .primary(Endpoint::BY_ID)
                .index(Endpoint::BY_POD)
                .build(&db)
        })
        .provide(|table: RwTable<Endpoint>| table.reader())
}

impl Bench {
    async fn start(cluster: &TestCluster) -> Self {
        let client = cluster.client().clone();
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_node_local::cells::local_node(),
            skep_k8s_reflectors::tables::cell(),
            skep_identity_cache::cell(),
            skep_ipcache::cell(),
            skep_endpoint_watcher::cell(),
            Cell::group([]).provide(move || -> Arc<dyn Client> { client.clone() }),
            endpoints(),
            cell(),
        ];
        let hive = Hive::new(cells)
            .root::<Db>()
            .root::<LocalNodeStore>()
            .root::<RwTable<Endpoint>>()
            .root::<IdentityWriter>();
        let hive = hive::testing::start_with(hive, Settings::new()).await;
        let local: LocalNodeStore = hive.get().unwrap();
        let address = (NodeAddressType::InternalIp, "172.30.40.1".parse().unwrap());
        local.update(|node| node.addresses = vec![address]).unwrap();
        let bench = Self {
            cluster: cluster.clone(),
            hive,
        };
        bench.identity(1234, &["k8s:app=cart", "k8s:io.kubernetes.pod.namespace=gc-shop"]);
        bench
    }

    fn identity(&self, id: u32, labels: &[&str]) {
        let writer: IdentityWriter = self.hive.get().unwrap();
        let mut txn = writer.write();
        let labels = labels.iter().map(|label| label.parse().unwrap());
        let row = SecurityIdentity {
            id: NumericIdentity::new(id),
            source: IdentitySource::Kubernetes,
            cluster: "default".into(),
            labels: Arc::new(labels.collect()),
            object: Default::default(),
        };
        writer.upsert(&mut txn, row).unwrap();
        txn.commit();
    }

    fn write(&self, endpoint: Option<Endpoint>) {
        let (db, table): (Db, RwTable<Endpoint>) = (self.hive.get().unwrap(), self.hive.get().unwrap());
        let mut txn = db.write(&[&table]);
        match endpoint {
            Some(endpoint) => _ = table.insert(&mut txn, endpoint).unwrap(),
            None => _ = table.delete_all(&mut txn).unwrap(),
        }
        txn.commit();
    }

    async fn object(&self) -> Value {
        object(&self.cluster).await
    }

    /// Waits until the object has `value` at `pointer`.
    async fn expect(&self, pointer: &str, value: Value) {
        until(pointer, || async {
            self.object().await.pointer(pointer) == Some(&value)
        })
        .await;
    }
}

async fn object(cluster: &TestCluster) -> Value {
    cluster.get(&CiliumEndpoint::kind(), "gc-shop", "cart-0").await
}

async fn until<F: Future<Output = bool>>(what: &str, mut is_true: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !is_true().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let kinds = [skep_k8s_crds::definitions::cilium_endpoint()];
    skep_k8s_crds::register_all(&**cluster.client(), &kinds)
        .await
        .unwrap();
    cluster.namespace("gc-shop").await;
    let account = Kind::new("", "v1", "ServiceAccount", "serviceaccounts", true);
    cluster
        .create(
            &account,
            json!({"metadata": {"name": "cart", "namespace": "gc-shop"}}),
        )
        .await;
    pod(&cluster, "pod-1").await;
    cluster
}

async fn pod(cluster: &TestCluster, uid: &str) {
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "containerPort": port, "protocol": protocol});
    let ports = [
        port("http", 8080, "TCP"),
        port("dns", 53, "UDP"),
        json!({"containerPort": 9}),
    ];
    let pod = json!({
        "metadata": {"name": "cart-0", "namespace": "gc-shop", "uid": uid, "labels": {"app": "cart"}},
        "spec": {"nodeName": "n1", "serviceAccountName": "cart", "containers": [{"name": "c", "image": "i", "ports": ports}]},
    });
    cluster.create(&Kind::POD, pod).await;
}

async fn pod_uid(cluster: &TestCluster) -> String {
    let pod = cluster.get(&Pod::kind(), "gc-shop", "cart-0").await;
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn endpoint(identity: Option<u32>) -> Endpoint {
    let spec = EndpointSpec {
        container_id: "9acfcf08".to_owned(),
        container_interface: "eth0".to_owned(),
        interface: "lxc1".to_owned(),
        ipv4: Some("10.1.0.20".parse().unwrap()),
        ipv6: Some("fd00:10:1::20".parse().unwrap()),
        namespace: "gc-shop".to_owned(),
        pod: "cart-0".to_owned(),
        ..EndpointSpec::default()
    };
    Endpoint {
        id: 77,
        spec: Arc::new(spec),
        identity: identity.map(NumericIdentity::new),
        policy: Some(Realized {
            revision: 1,
            open: 0,
            enforced: 0,
        }),
        status: Status::done(),
        ..Endpoint::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_the_object_that_was_recorded() {
    let cluster = cluster().await;
    let bench = Bench::start(&cluster).await;

    bench.write(Some(endpoint(Some(1234))));

    bench.expect("/status/identity/id", json!(1234)).await;
    let mut object = bench.object().await;
    let uid = pod_uid(&cluster).await;
    let mut recorded: Value = serde_json::from_str(RECORDED).unwrap();
    recorded["metadata"]["ownerReferences"][0]["uid"] = uid.into();
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| recorded["metadata"].get(key).is_some());
    assert_eq!(object, recorded);
}

#[tokio::test(start_paused = true)]
async fn the_object_follows_identity_labels_and_life() {
    let cluster = cluster().await;
    let bench = Bench::start(&cluster).await;
    bench.write(Some(endpoint(Some(1234))));
    bench.expect("/status/identity/id", json!(1234)).await;
    let uid = bench.object().await["metadata"]["uid"].clone();

    bench.identity(1235, &["k8s:app=cart2"]);
    bench.write(Some(endpoint(Some(1235))));
    cluster
        .patch(
            &Kind::POD,
            "gc-shop",
            "cart-0",
            json!({"metadata": {"labels": {"app": "cart2"}}}),
        )
        .await;

    bench
        .expect("/status/identity/labels", json!(["k8s:app=cart2"]))
        .await;
    bench.expect("/metadata/labels/app", json!("cart2")).await;
    assert_eq!(bench.object().await["metadata"]["uid"], uid);
    // A pod that left the API server has its object until its sandbox is removed.
    cluster.delete(&Kind::POD, "gc-shop", "cart-0").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(bench.object().await["metadata"]["uid"], uid);
    bench.write(None);
    until("it is deleted", || async { bench.object().await.is_null() }).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_deleted_is_created_again() {
    let cluster = cluster().await;
    let bench = Bench::start(&cluster).await;
    bench.write(Some(endpoint(Some(1234))));
    bench.expect("/status/identity/id", json!(1234)).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let uid = bench.object().await["metadata"]["uid"].clone();

    cluster.delete(&CiliumEndpoint::kind(), "gc-shop", "cart-0").await;

    until("it is there again", || async {
        let object = bench.object().await;
        !object.is_null() && object["metadata"]["uid"] != uid
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_former_pod_is_adopted_at_its_node_and_deleted_without_endpoint() {
    let cluster = cluster().await;
    let stale = |name: &str, node: &str, address: &str| {
        json!({"metadata": {"name": name, "namespace": "gc-shop"}, "status": {"id": 3, "identity": {"id": 1234},
            "networking": {"addressing": [{"ipv4": address}], "node": node}, "encryption": {}}})
    };
    let kind = CiliumEndpoint::kind();
    for (name, node, address) in [
        ("cart-0", "172.30.40.1", "10.1.0.20"),
        ("gone", "172.30.40.1", "10.1.0.21"),
        ("elsewhere", "172.30.40.2", "10.1.0.22"),
    ] {
        cluster.create(&kind, stale(name, node, address)).await;
    }
    let uid = object(&cluster).await["metadata"]["uid"].clone();
    let bench = Bench::start(&cluster).await;

    bench.write(Some(endpoint(Some(1234))));

    bench.expect("/status/id", json!(77)).await;
    assert_eq!(bench.object().await["metadata"]["uid"], uid);
    until("the stale one is deleted", || async {
        cluster.get(&kind, "gc-shop", "gone").await.is_null()
    })
    .await;
    assert!(!cluster.get(&kind, "gc-shop", "elsewhere").await.is_null());
}
