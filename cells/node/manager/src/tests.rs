// SPDX-License-Identifier: Apache-2.0

//! The cells together: objects of Kubernetes, the local node and other clusters in, claims and ids out.

mod claims;
mod ids;
mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use skep_base_settings::NodeName;
use skep_bpf_maps::node::{IPCACHE, NODE_IDS, NodeIdKey, NodeIdValue};
use skep_bpf_maps::text::Text;
use skep_datapath_maps::Maps;
use skep_ipcache::Source;
use skep_k8s_memory::FakeClient;
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::{AddressConfig, LocalNodeStore, NodeAddress};
use statedb::{Db, RwTable, Table};

use crate::{Node, NodeKey, NodeManager};

const THIS: &str = "n1";

struct Bench {
    hive: Running,
    manager: NodeManager,
    maps: Arc<Maps>,
    kubernetes: Arc<FakeClient>,
    addresses: RwTable<NodeAddress>,
    local: LocalNodeStore,
    db: Db,
}

fn addresses(db: Db) -> Result<(RwTable<NodeAddress>, Table<NodeAddress>), statedb::Error> {
    let table = RwTable::builder("node-addresses")
        .primary(NodeAddress::BY_ID)
        .build(&db)?;
    let reader = table.reader();
    Ok((table, reader))
}

fn hive() -> Hive {
    Hive::new([
        statedb::cell(),
        skep_k8s_memory::fake_client_cell(),
        skep_base_settings::cell(),
        skep_datapath_maps::in_memory_cell(),
        skep_ipcache::cell(),
        skep_node_local::cells::local_node(),
        Cell::module("test-node", "This node")
            .provide(|| NodeName::new(THIS))
            .provide(addresses),
        crate::cell(),
    ])
    .root::<NodeManager>()
    .root::<Arc<Maps>>()
    .root::<Arc<FakeClient>>()
    .root::<RwTable<NodeAddress>>()
    .root::<LocalNodeStore>()
    .root::<Db>()
}

impl Bench {
    async fn start() -> Self {
        Self::start_with(Settings::new()).await
    }

    async fn start_with(settings: Settings) -> Self {
        Self::start_hive(hive(), settings).await
    }

    /// Starts with ids from before a restart.
    async fn start_with_ids(ids: &'static [(&'static str, u16)]) -> Self {
        let leftover = Cell::module("leftover", "Ids from before a restart").run(move |maps: Arc<Maps>| {
            let map = maps.handle(&NODE_IDS);
            for (address, id) in ids {
                let key = NodeIdKey::new(address.parse().unwrap());
                map.update(&key, &NodeIdValue::new(*id, 0)).unwrap();
            }
        });
        Self::start_hive(hive().with(leftover), Settings::new()).await
    }

    async fn start_hive(hive: Hive, settings: Settings) -> Self {
        let hive = hive::testing::start_with(hive, settings).await;
        Self {
            manager: hive.get().unwrap(),
            maps: hive.get().unwrap(),
            kubernetes: hive.get().unwrap(),
            addresses: hive.get().unwrap(),
            local: hive.get().unwrap(),
            db: hive.get().unwrap(),
            hive,
        }
    }

    fn upsert(&self, node: Node) {
        let mut txn = self.manager.write();
        self.manager.upsert(&mut txn, node).unwrap();
        txn.commit();
    }

    fn delete(&self, key: &NodeKey, source: Source) -> bool {
        let mut txn = self.manager.write();
        let deleted = self.manager.delete(&mut txn, key, source).unwrap();
        txn.commit();
        deleted
    }

    /// Waits until the ipcache map has these entries besides those of everything (`0.0.0.0/0`, `::/0`): `<prefix>
    /// <beginning of the text of the value>` each.
    #[track_caller]
    fn expect_ipcache<'a>(&'a self, wanted: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let map = self.maps.handle(&IPCACHE);
        self.expect("ipcache", wanted, move || {
            let entries = map.entries().unwrap();
            let texts = entries.iter().map(|(key, value)| (key.text(), value.text()));
            texts.filter(|(key, _)| !key.ends_with("/0")).collect()
        })
    }

    /// Waits until the map of node ids has these entries.
    #[track_caller]
    fn expect_ids<'a>(&'a self, wanted: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let map = self.maps.handle(&NODE_IDS);
        self.expect("node ids", wanted, move || {
            let entries = map.entries().unwrap();
            entries
                .iter()
                .map(|(key, value)| (key.text(), value.text()))
                .collect()
        })
    }

    #[track_caller]
    fn expect<'a>(
        &'a self,
        what: &'a str,
        wanted: &'a [&'a str],
        found: impl Fn() -> BTreeMap<String, String> + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let is_there = || {
                let found = found();
                found.len() == wanted.len()
                    && wanted.iter().all(|line| {
                        let (key, value) = line.split_once(' ').unwrap();
                        found
                            .get(key)
                            .is_some_and(|found| format!("{found} ").starts_with(&format!("{value} ")))
                    })
            };
            let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
            while !is_there() {
                assert!(
                    tokio::time::Instant::now() < deadline,
                    "{caller}: {what}: {:#?}, wanted {wanted:#?}",
                    found()
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn wait(&self, is_true: impl Fn() -> bool) {
        tokio::time::timeout(Duration::from_secs(20), async {
            while !is_true() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }

    /// The health of a component: its message, and its error.
    fn health(&self, component: &str) -> String {
        let entries = self.hive.health().entries();
        let entries = entries
            .iter()
            .filter(|entry| entry.id.to_string().ends_with(component));
        entries.map(|entry| format!("{entry:?}")).collect()
    }

    async fn end(self) {
        hive::testing::stop(self.hive).await;
    }
}

fn node(cluster: &str, name: &str, source: Source, addresses: &[&str]) -> Node {
    Node {
        addresses: addresses
            .iter()
            .map(|text| (NodeAddressType::InternalIp, text.parse().unwrap()))
            .collect(),
        ..Node::new(NodeKey::new(cluster, name), source)
    }
}

fn device(address: &str, name: &str) -> NodeAddress {
    NodeAddress {
        addr: address.parse().unwrap(),
        node_port: false,
        primary: false,
        device_name: name.to_owned(),
    }
}

const NODE_2: &str = r#"
apiVersion: v1
kind: Node
metadata:
  name: n2
spec:
  podCIDRs: ["10.1.2.0/24"]
status:
  addresses:
  - {type: InternalIP, address: 172.30.1.2}
  - {type: Hostname, address: n2}
"#;

const CILIUM_NODE_2: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNode
metadata:
  name: n2
  annotations: {network.cilium.io/wg-pub-key: "key"}
spec:
  addresses:
  - {type: InternalIP, ip: 172.30.1.2}
  - {type: CiliumInternalIP, ip: 10.1.2.1}
  health: {ipv4: 10.1.2.91}
  ingress: {ipv4: 10.1.2.92}
  encryption: {key: 3}
  bootid: 3b6e
  ipam:
    podCIDRs: ["10.1.2.0/24"]
    pools:
      allocated:
      - {pool: default, cidrs: ["10.1.2.0/24", "10.7.2.0/24"]}
"#;
