// SPDX-License-Identifier: Apache-2.0

//! Identities as CiliumIdentities.

use serde_json::{Value, json};
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, ObjectFacts, Writer};
use skep_k8s_client::DisabledClient;
use skep_k8s_client::testing::{Fault, FaultyClient};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Resource;
use skep_k8s_types::slim::CiliumIdentity;

use super::*;
use crate::objects::{IdentityObjects, ObjectOptions};

const CRD: [&str; 3] = [
    "--cluster-name=alder",
    "--cluster-id=7",
    "--identity-allocation-mode=crd",
];

/// A cluster in which CiliumIdentity is defined.
pub(super) async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let definitions = [skep_k8s_crds::definitions::cilium_identity()];
    skep_k8s_crds::register_all(&**cluster.client(), &definitions)
        .await
        .unwrap();
    cluster
}

async fn objects(cluster: &TestCluster) -> Vec<(u32, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<(u32, String)> = cluster
        .list(&CiliumIdentity::kind())
        .await
        .iter()
        .map(|object| &object["metadata"])
        .map(|object| {
            (
                text(&object["name"]).parse().unwrap(),
                text(&object["labels"][Labels::NAMESPACE]),
            )
        })
        .collect();
    found.sort();
    found
}

pub(super) async fn wait_objects(cluster: &TestCluster, expected: &[(u32, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(id, namespace)| (*id, (*namespace).to_owned()))
        .collect();
    let wait = async {
        while objects(cluster).await != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(600), wait).await;
    assert!(waited.is_ok(), "{:?} is not {expected:?}", objects(cluster).await);
}

async fn create(cluster: &TestCluster, id: u32, labels: Value) {
    let object = json!({ "metadata": { "name": id.to_string() }, "security-labels": labels });
    cluster.create(&CiliumIdentity::kind(), object).await;
}

async fn agent(number: u8, cluster: &TestCluster, flags: &[&str]) -> Agent {
    let flags: Vec<&str> = CRD.iter().chain(flags).copied().collect();
    Agent::start(number, &flags, Client::disabled(), Some(cluster.client().clone())).await
}

#[tokio::test(start_paused = true)]
async fn ciliumidentities_pass_the_contract() {
    let cluster = cluster().await;
    let first = agent(21, &cluster, &[]).await;
    let second = agent(22, &cluster, &[]).await;

    contract(&first.allocator, &second.allocator, alder()).await;

    let cart = first.allocate(CART).await.id().get();
    let web = first.allocate("k8s:app=web;k8s:tier=;").await.id().get();
    let mut expected = [(cart, "shop"), (web, "")];
    expected.sort();
    wait_objects(&cluster, &expected).await;
    let object = cluster.get(&CiliumIdentity::kind(), "", &cart.to_string()).await;
    let labels = json!({"k8s:app": "cart", "k8s:io.kubernetes.pod.namespace": "shop"});
    assert_eq!(object["security-labels"], labels);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_an_existing_object_is_removed() {
    let cluster = cluster().await;
    create(&cluster, 458_800, json!({"k8s:app": "cart"})).await;
    let kind = CiliumIdentity::kind();
    let mark = json!({"metadata": {"annotations": {CiliumIdentity::HEARTBEAT: "2026-01-01T00:00:00Z"}}});
    cluster.patch(&kind, "", "458800", mark).await;
    let agent = agent(21, &cluster, &[]).await;

    let held = agent.allocate("k8s:app=cart;").await;

    assert_eq!(held.id().get(), 458_800);
    let object = cluster.get(&kind, "", "458800").await;
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations[CiliumIdentity::HEARTBEAT], Value::Null);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_of_several_objects_counts() {
    let agent = Agent::start(21, &CRD, Client::disabled(), None).await;
    let writer: Writer = agent.running.get().unwrap();
    let mut txn = writer.write();
    for (id, source, created) in [
        (458_799, IdentitySource::Kubernetes, "2026-01-01T00:00:01Z"),
        (458_800, IdentitySource::Kubernetes, "2026-01-01T00:00:00Z"),
        (458_801, IdentitySource::ClusterMesh, "2025-01-01T00:00:00Z"),
    ] {
        let row = SecurityIdentity {
            id: NumericIdentity::new(id),
            source,
            cluster: "".into(),
            labels: labels(CART),
            object: ObjectFacts {
                created: Some(created.parse().unwrap()),
                is_marked: false,
            },
        };
        writer.upsert(&mut txn, row).unwrap();
    }
    let snapshot = txn.commit();
    let options = ObjectOptions {
        range: alder(),
        creates: true,
        is_read: true,
        refresh_interval: Duration::from_secs(300),
    };
    let table = agent.table.clone();
    let objects = IdentityObjects::new(Arc::new(DisabledClient), agent.db.clone(), table, options);

    let existing = objects.existing(&snapshot, &labels(CART));

    assert_eq!(existing, Some((NumericIdentity::new(458_800), false)));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_in_use_is_created_again_and_another_is_not() {
    let cluster = cluster().await;
    let agent = agent(21, &cluster, &[]).await;
    let cart = agent.allocate(CART).await.id().get();
    let held = agent.allocate("k8s:app=web;").await;
    let web = held.id().get();

    for id in [cart, web] {
        cluster.delete(&CiliumIdentity::kind(), "", &id.to_string()).await;
    }

    wait_objects(&cluster, &[(web, "")]).await;
    wait(|| agent.knows(web) && !agent.knows(cart)).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn agents_wait_for_the_objects_of_the_operator() {
    let cluster = cluster().await;
    let agent = agent(21, &cluster, &["--identity-management-mode=operator"]).await;
    let operator = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(objects(&cluster).await, []);
        create(&cluster, 458_800, json!({"k8s:app": "cart"})).await;
    };

    let (held, ()) = tokio::join!(agent.allocate("k8s:app=cart;"), operator);

    assert_eq!(held.id().get(), 458_800);
    let error = agent
        .allocator
        .allocate(&labels("k8s:app=web;"))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "identity of `k8s:app=web;` was not allocated within 120 s"
    );
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_repeated() {
    let cluster = cluster().await;
    let client = FaultyClient::new(cluster.client().clone());
    let agent = Agent::start(21, &CRD, Client::disabled(), Some(client.clone())).await;
    agent.table.wait_initialized(&agent.db).await;
    client.fail(Fault::Unreachable);
    let back = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        client.heal();
    };

    let (held, ()) = tokio::join!(agent.allocate(CART), back);

    wait_objects(&cluster, &[(held.id().get(), "shop")]).await;
    agent.stop().await;
}
