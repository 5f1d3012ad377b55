// SPDX-License-Identifier: Apache-2.0

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use skep_bpf_maps::{
    MapSizes,
    node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE, IPCACHE},
};
use skep_bpf_sys::{Map, MemoryMap, map::LateMap};
use skep_node::NodeAddress;
use statedb::{
    Db, RwTable,
    reconciler::{Config, NoHealth, Reconciler},
};
use tokio_util::sync::CancellationToken;

use crate::{Ipcache, NodeIdentity, reconciler::MapOps, reflector, table};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(name: &str, addresses: &[(&str, &str)]) -> skep_k8s_types::slim::Node {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(kind, address)| serde_json::json!({"type": kind, "address": address}))
        .collect();
    serde_json::from_value(
        serde_json::json!({"metadata": {"name": name}, "status": {"addresses": addresses}}),
    )
    .unwrap()
}

fn device(address: &str, name: &str) -> NodeAddress {
    NodeAddress {
        addr: ip(address),
        node_port: false,
        primary: false,
        device_name: name.to_owned(),
    }
}

struct World {
    db: Db,
    table: RwTable<NodeIdentity>,
    map: Arc<Ipcache>,
    late: Arc<LateMap>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl World {
    fn start(before: &[(&str, u32)]) -> Self {
        let world = Self::start_without_map();
        world.open(before);
        world
    }

    /// Starts before the map is open.
    fn start_without_map() -> Self {
        let db = Db::new();
        let table = table::new(db.clone()).unwrap();
        let late = Arc::new(LateMap::new(*IPCACHE.spec(&MapSizes::default()).raw()));
        let map = Arc::new(Ipcache::new(Map::from_raw(late.clone()).unwrap()));
        let ops = MapOps {
            table: table.clone(),
            map: map.clone(),
        };
        let config = Config {
            retry_min: Duration::from_millis(5),
            ..Config::default()
        };
        let reconciler = Reconciler::new(&db, table.clone(), NodeIdentity::STATUS, ops, config);
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { reconciler.run(&token, &NoHealth).await });
        Self {
            db,
            table,
            map,
            late,
            stop,
            running,
        }
    }

    /// Opens the map with these entries.
    fn open(&self, entries: &[(&str, u32)]) {
        let memory = Arc::new(MemoryMap::create(self.late.spec()).unwrap());
        let map = Ipcache::new(Map::from_raw(memory.clone()).unwrap());
        for (address, identity) in entries {
            map.set(ip(address), *identity).unwrap();
        }
        self.late.fill(memory);
    }

    fn entries(&self) -> BTreeMap<IpAddr, u32> {
        self.map.nodes().unwrap().into_iter().collect()
    }

    fn put(&self, rows: impl IntoIterator<Item = NodeIdentity>) {
        let mut txn = self.db.write(&[&self.table]);
        for row in rows {
            self.table.insert(&mut txn, row).unwrap();
        }
        txn.commit();
    }

    async fn expect(&self, wanted: &[(&str, u32)]) {
        let wanted = wanted
            .iter()
            .map(|(address, identity)| (ip(address), *identity))
            .collect();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.entries() != wanted {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{:?}, wanted {wanted:?}",
                self.entries()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

#[test]
fn a_node_gives_its_addresses_and_no_names() {
    let found = node(
        "n2",
        &[
            ("InternalIP", "172.30.1.2"),
            ("ExternalIP", "fd00::2"),
            ("Hostname", "10.0.0.9"),
            ("InternalIP", "n2"),
        ],
    );

    let addresses = |this| -> Vec<_> {
        reflector::rows_of(&found, this)
            .into_iter()
            .map(|row| (row.address, row.identity))
            .collect()
    };

    assert_eq!(
        addresses("n1"),
        [
            (ip("172.30.1.2"), IDENTITY_REMOTE_NODE),
            (ip("fd00::2"), IDENTITY_REMOTE_NODE)
        ]
    );
    assert_eq!(
        addresses("n2"),
        [(ip("172.30.1.2"), IDENTITY_HOST), (ip("fd00::2"), IDENTITY_HOST)]
    );
}

#[tokio::test]
async fn the_map_follows_nodes_that_come_and_go() {
    let world = World::start(&[]);
    let rows = reflector::rows_of(&node("n2", &[("InternalIP", "172.30.1.2")]), "n1");

    world.put(rows.clone());
    world.expect(&[("172.30.1.2", IDENTITY_REMOTE_NODE)]).await;
    let mut txn = world.db.write(&[&world.table]);
    world.table.delete(&mut txn, &rows[0]).unwrap();
    txn.commit();

    world.expect(&[]).await;
    world.end().await;
}

#[tokio::test]
async fn this_nodes_own_word_about_an_address_wins() {
    let world = World::start(&[]);
    world.put(reflector::rows_of(
        &node("n2", &[("InternalIP", "172.30.1.2")]),
        "n1",
    ));

    reflector::replace_local(
        &world.db,
        &world.table,
        [device("172.30.1.2", "eth0")].iter(),
        None,
    )
    .unwrap();
    world.expect(&[("172.30.1.2", IDENTITY_HOST)]).await;
    reflector::replace_local(&world.db, &world.table, [].iter(), None).unwrap();

    world.expect(&[("172.30.1.2", IDENTITY_REMOTE_NODE)]).await;
    world.end().await;
}

#[tokio::test]
async fn leftovers_go_only_when_all_sources_have_delivered() {
    let db_before = [("10.9.9.9", IDENTITY_REMOTE_NODE)];
    let world = World::start(&db_before);
    let mut txn = world.db.write(&[&world.table]);
    let guard = world.table.register_initializer(&mut txn, "test").unwrap();
    txn.commit();
    world.put(reflector::rows_of(
        &node("n2", &[("InternalIP", "172.30.1.2")]),
        "n1",
    ));
    world
        .expect(&[
            ("10.9.9.9", IDENTITY_REMOTE_NODE),
            ("172.30.1.2", IDENTITY_REMOTE_NODE),
        ])
        .await;

    let mut txn = world.db.write(&[&world.table]);
    txn.initialized(&guard).unwrap();
    txn.commit();

    world.expect(&[("172.30.1.2", IDENTITY_REMOTE_NODE)]).await;
    world.end().await;
}

#[tokio::test]
async fn writes_before_the_map_is_open_are_repeated() {
    let world = World::start_without_map();
    world.put(reflector::rows_of(
        &node("n2", &[("InternalIP", "172.30.1.2")]),
        "n1",
    ));
    tokio::time::timeout(Duration::from_secs(30), async {
        while !world
            .table
            .all(&world.db.read())
            .any(|row| row.status.error_text().contains("cannot update"))
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();

    world.open(&[]);

    world.expect(&[("172.30.1.2", IDENTITY_REMOTE_NODE)]).await;
    world.end().await;
}
