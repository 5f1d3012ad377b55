// SPDX-License-Identifier: Apache-2.0

mod objects;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use skep_base_settings::NodeName;
use skep_identity::{IdentityRange, Labels, MaxConnectedClusters};
use skep_identity_cache::{LocalIdentities, SecurityIdentity};
use skep_k8s_client::Client as KubernetesClient;
use skep_k8s_types::slim::NodeAddressType;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{Client, Lifetime};
use skep_node_local::LocalNodeStore;
use statedb::{Db, Table};

use crate::testing::MemoryIdentities;
use crate::{AllocateError, Allocator, Held};

const CART: &str = "k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;";

fn labels(text: &str) -> Arc<Labels> {
    Arc::new(text.parse().unwrap())
}

/// An agent with the cells of identities.
struct Agent {
    running: Running,
    allocator: Allocator,
    db: Db,
    table: Table<SecurityIdentity>,
}

impl Agent {
    async fn start(
        number: u8,
        flags: &[&str],
        kvstore: Client,
        kubernetes: Option<Arc<dyn KubernetesClient>>,
    ) -> Self {
        let clients = Cell::group([]).provide(move || kvstore.clone());
        let clients = match kubernetes {
            Some(client) => clients.provide(move || client.clone()),
            None => clients,
        };
        let node = Cell::group([])
            .provide(|| NodeName::new("n1"))
            .provide(move |db: Db, name: NodeName| local_node(&db, &name, number));
        let hive = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::identity::cell(),
            skep_base_settings::cluster::cell(),
            skep_identity_cache::cell(),
            skep_identity_cache::own::cell(),
            crate::cell(),
            clients,
            node,
        ])
        .root::<Db>()
        .root::<Allocator>()
        .root::<Table<SecurityIdentity>>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        Self {
            allocator: running.get().unwrap(),
            db: running.get().unwrap(),
            table: running.get().unwrap(),
            running,
        }
    }

    async fn allocate(&self, text: &str) -> Held {
        allocate(&self.allocator, text).await
    }

    fn knows(&self, id: u32) -> bool {
        let key = SecurityIdentity::BY_ID.key(&id);
        self.table.get(&self.db.read(), key).is_some()
    }

    async fn stop(self) {
        hive::testing::stop(self.running).await;
    }
}

fn local_node(db: &Db, name: &NodeName, number: u8) -> Result<LocalNodeStore, statedb::Error> {
    let store = LocalNodeStore::new(db, name)?;
    store.update(|node| {
        let address = [192, 168, 50, number].into();
        node.addresses = vec![(NodeAddressType::InternalIp, address)];
    })?;
    Ok(store)
}

async fn allocate(allocator: &Allocator, text: &str) -> Held {
    allocator.allocate(&labels(text)).await.unwrap()
}

#[track_caller]
fn wait(check: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let wait = async {
            while !check() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(600), wait).await;
        assert!(waited.is_ok(), "{caller}");
    }
}

/// What every store does for the allocators of two nodes.
async fn contract(first: &Allocator, second: &Allocator, range: IdentityRange) {
    let (one, other) = tokio::join!(allocate(first, CART), allocate(first, CART));
    assert_eq!((one.id(), first.held()), (other.id(), 1));
    assert!(range.contains(one.id()), "{one:?}");
    let text = "k8s:io.kubernetes.pod.namespace=shop;k8s:app=cart;";
    assert_eq!(allocate(second, text).await, one, "labels have no order");

    let web = allocate(second, "k8s:app=web;k8s:tier=;").await;
    assert_ne!(web.id(), one.id());
    assert_eq!(allocate(first, "k8s:app=web;k8s:tier=;").await, web);

    drop(one);
    assert_eq!(first.held(), 1, "the other use is left");
    let id = other.id();
    drop(other);
    assert_eq!(first.held(), 0);
    assert_eq!(allocate(first, CART).await.id(), id);

    for (labels, id) in [
        ("reserved:health;", 4),
        ("cidr:10.0.0.0/8;reserved:world;", 0x0100_0001),
    ] {
        assert_eq!(allocate(first, labels).await.id().get(), id);
    }
}

fn alder() -> IdentityRange {
    IdentityRange::of_cluster(7, MaxConnectedClusters::Max255).unwrap()
}

const ALDER: [&str; 2] = ["--cluster-name=alder", "--cluster-id=7"];

#[tokio::test(start_paused = true)]
async fn identities_in_memory_pass_the_contract() {
    let agent = Agent::start(21, &[], Client::disabled(), None).await;
    let local: LocalIdentities = LocalIdentities::new(agent.running.get().unwrap());
    let store = MemoryIdentities::new(alder());

    contract(&store.allocator(local.clone()), &store.allocator(local), alder()).await;

    assert_eq!(store.uses(&labels(CART)), 0);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn identities_in_the_kvstore_pass_the_contract() {
    let store = Memory::new();
    let clients = [(), ()].map(|()| RunningClient::full(Arc::new(store.clone())));
    let first = Agent::start(21, &ALDER, clients[0].clone(), None).await;
    let second = Agent::start(22, &ALDER, clients[1].clone(), None).await;

    contract(&first.allocator, &second.allocator, alder()).await;

    let held = first.allocate(CART).await;
    let slave = format!("cilium/state/identities/v1/value/{CART}/192.168.50.21");
    let key = clients[0].get(&slave).await.unwrap().unwrap();
    assert_eq!(key.value, held.id().to_string());
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_store_only_identities_of_the_node_are_allocated() {
    let agent = Agent::start(21, &[], Client::disabled(), None).await;

    assert_eq!(
        agent
            .allocate("fqdn:example.com;reserved:world;")
            .await
            .id()
            .get(),
        0x0100_0001
    );
    let error = agent.allocator.allocate(&labels(CART)).await.unwrap_err();

    assert!(matches!(error, AllocateError::NoStore(_)), "{error}");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_identities_are_written_to_the_second_store() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store));
    let cluster = objects::cluster().await;
    let flags = [
        ALDER[0],
        ALDER[1],
        "--identity-allocation-mode=doublewrite-readkvstore",
    ];
    let agent = Agent::start(21, &flags, client.clone(), Some(cluster.client().clone())).await;
    let held = agent.allocate(CART).await;
    objects::wait_objects(&cluster, &[(held.id().get(), "shop")]).await;
    agent.stop().await;

    let key = format!("cilium/state/identities/v1/id/{}", held.id());
    client.put(&key, CART, Lifetime::Permanent).await.unwrap();
    client.delete(&key).await.unwrap();
    let flags = [
        ALDER[0],
        ALDER[1],
        "--identity-allocation-mode=doublewrite-readcrd",
    ];
    let agent = Agent::start(21, &flags, client.clone(), Some(cluster.client().clone())).await;

    let again = agent.allocate(CART).await;

    assert_eq!(again.id(), held.id());
    while client.get(&key).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.stop().await;
}
