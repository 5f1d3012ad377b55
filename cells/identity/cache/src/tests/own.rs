// SPDX-License-Identifier: Apache-2.0

//! Identities of the own cluster, by the cells.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::{Cell, Hive, Level, Running, Settings, testing};
use serde_json::{Value, json};
use skep_k8s_client::Client as KubernetesClient;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Resource;
use skep_k8s_types::slim::CiliumIdentity;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::{FaultyBackend, RunningClient};
use skep_kvstore_client::{Client, Lifetime};
use statedb::{Db, Table};

use crate::{IdentitySource, SecurityIdentity};

struct Agent {
    running: Running,
    db: Db,
    table: Table<SecurityIdentity>,
}

impl Agent {
    async fn start(mode: &str, kvstore: Client, kubernetes: Option<Arc<dyn KubernetesClient>>) -> Self {
        let clients = Cell::group([]).provide(move || kvstore.clone());
        let clients = match kubernetes {
            Some(client) => clients.provide(move || client.clone()),
            None => clients,
        };
        let settings = skep_base_settings::identity::cell();
        let hive = Hive::new([
            statedb::cell(),
            settings,
            crate::cell(),
            crate::own::cell(),
            clients,
        ])
        .root::<Db>()
        .root::<Table<SecurityIdentity>>();
        let flag = format!("--identity-allocation-mode={mode}");
        let running = testing::start_with(hive, Settings::new().args([flag.as_str()])).await;
        Self {
            db: running.get().unwrap(),
            table: running.get().unwrap(),
            running,
        }
    }

    /// The identities that are not reserved.
    fn allocated(&self) -> BTreeMap<u32, String> {
        let snapshot = self.db.read();
        let rows = self.table.all(&snapshot);
        rows.filter(|row| row.source != IdentitySource::Reserved)
            .map(|row| (row.id.get(), row.labels.to_string()))
            .collect()
    }

    #[track_caller]
    fn wait(&self, expected: &[(u32, &str)]) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let expected: BTreeMap<u32, String> = expected
            .iter()
            .map(|(id, text)| (*id, (*text).to_owned()))
            .collect();
        async move {
            let wait = async {
                while self.allocated() != expected {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            };
            let waited = tokio::time::timeout(std::time::Duration::from_secs(300), wait).await;
            assert!(
                waited.is_ok(),
                "{caller}: {:?} is not {expected:?}",
                self.allocated()
            );
        }
    }

    fn concern(&self) -> Option<String> {
        let entries = self.running.health().entries();
        let entry = entries.into_iter().find(|entry| entry.level == Level::Degraded)?;
        Some(format!("{}: {}", entry.message, entry.error.unwrap_or_default()))
    }

    async fn stop(self) {
        testing::stop(self.running).await;
    }
}

fn identity(name: &str, labels: Value) -> Value {
    json!({ "metadata": { "name": name }, "security-labels": labels })
}

/// A cluster in which CiliumIdentity is defined.
async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let definitions = [skep_k8s_crds::definitions::cilium_identity()];
    skep_k8s_crds::register_all(&**cluster.client(), &definitions)
        .await
        .unwrap();
    cluster
}

#[tokio::test(start_paused = true)]
async fn ciliumidentities_are_followed() {
    let (cluster, kind) = (cluster().await, CiliumIdentity::kind());
    let client = cluster.client().clone();
    cluster
        .create(
            &kind,
            identity("52310", json!({ "k8s:app": "cart", "k8s:tier": "" })),
        )
        .await;
    let agent = Agent::start("crd", Client::disabled(), Some(client)).await;
    let cart = (52_310, "k8s:app=cart;k8s:tier=;");
    agent.wait(&[cart]).await;
    agent.table.wait_initialized(&agent.db).await;

    cluster
        .create(&kind, identity("52311", json!({ "k8s:app": "web" })))
        .await;
    agent.wait(&[cart, (52_311, "k8s:app=web;")]).await;
    cluster
        .create(&kind, identity("web", json!({ "k8s:app": "odd" })))
        .await;
    cluster.delete(&kind, "", "52311").await;
    agent.wait(&[cart]).await;
    let concern = async {
        while agent.concern().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    concern.await;
    assert_eq!(
        agent.concern().unwrap(),
        "1 objects rejected, 1 identities: CiliumIdentity web: the name must be a decimal number without leading zeros"
    );
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deleting_an_object_with_another_spelling_of_the_number_keeps_the_identity() {
    let (cluster, kind) = (cluster().await, CiliumIdentity::kind());
    let app = |app: &str| json!({ "k8s:app": app });
    cluster.create(&kind, identity("52310", app("cart"))).await;
    cluster.create(&kind, identity("052310", app("web"))).await;
    let agent = Agent::start("crd", Client::disabled(), Some(cluster.client().clone())).await;
    let cart = (52_310, "k8s:app=cart;");
    agent.wait(&[cart]).await;

    cluster.delete(&kind, "", "052310").await;
    cluster.create(&kind, identity("52311", app("shop"))).await;

    agent.wait(&[cart, (52_311, "k8s:app=shop;")]).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kind_has_no_identities() {
    let cluster = TestCluster::new();

    let agent = Agent::start("crd", Client::disabled(), Some(cluster.client().clone())).await;

    agent.table.wait_initialized(&agent.db).await;
    assert_eq!((agent.allocated().len(), agent.concern()), (0, None));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn identities_in_the_kvstore_are_followed() {
    let store = Memory::new();
    let node = RunningClient::full(Arc::new(store.clone()));
    let key = |id: u32| format!("cilium/state/identities/v1/id/{id}");
    for (id, labels) in [(300, "k8s:app=cart;"), (1, "k8s:app=evil;")] {
        node.put(&key(id), labels, Lifetime::Permanent).await.unwrap();
    }
    let client = RunningClient::full(Arc::new(store));

    let agent = Agent::start("doublewrite-readkvstore", client.clone(), None).await;
    agent.wait(&[(300, "k8s:app=cart;")]).await;
    agent.table.wait_initialized(&agent.db).await;

    node.put(&key(301), "k8s:app=web;", Lifetime::Permanent)
        .await
        .unwrap();
    agent.wait(&[(300, "k8s:app=cart;"), (301, "k8s:app=web;")]).await;
    node.delete(&key(300)).await.unwrap();
    agent.wait(&[(301, "k8s:app=web;")]).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_kvstore_does_not_block_initialization() {
    let store = FaultyBackend::new(Arc::new(Memory::new()));
    store.partition(true);
    let client = RunningClient::full(store.clone());
    let agent = Agent::start("kvstore", client.clone(), None).await;
    assert!(!agent.table.is_initialized(&agent.db.read()));

    agent.table.wait_initialized(&agent.db).await;

    // What comes later is read all the same.
    store.partition(false);
    client
        .put(
            "cilium/state/identities/v1/id/300",
            "k8s:app=cart;",
            Lifetime::Permanent,
        )
        .await
        .unwrap();
    agent.wait(&[(300, "k8s:app=cart;")]).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_store_only_reserved_identities_are_known() {
    for mode in ["kvstore", "crd"] {
        let agent = Agent::start(mode, Client::disabled(), None).await;

        agent.table.wait_initialized(&agent.db).await;
        assert_eq!(agent.table.all(&agent.db.read()).count(), 10, "{mode}");
        agent.stop().await;
    }
}

#[test]
fn an_unknown_mode_is_named() {
    let hive = Hive::new([
        statedb::cell(),
        skep_base_settings::identity::cell(),
        crate::cell(),
        crate::own::cell(),
        Cell::group([]).provide(Client::disabled),
    ]);

    let report = hive
        .plan(Settings::new().args(["--identity-allocation-mode=etcd"]))
        .unwrap_err();

    let text = report.to_string();
    assert!(
        text.contains("`etcd` is none of crd, kvstore, doublewrite-readcrd, doublewrite-readkvstore"),
        "{text}"
    );
}
