// SPDX-License-Identifier: Apache-2.0

//! Nodes, addresses and identities of remote clusters in tables and maps, with the cells of the agent.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings, testing as hive_testing};
use skep_base_settings::NodeName;
use skep_bpf_maps::node::IPCACHE;
use skep_clustermesh_mesh::testing::{FakeCluster, StoreConnector, remove_file, write_file};
use skep_clustermesh_mesh::{ClusterMesh, ClusterMeshMetrics, Connector, identities, ipcache, nodes};
use skep_clustermesh_types::{IpIdentityPair, Kind};
use skep_datapath_maps::Maps;
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, SecurityIdentity};
use skep_ipcache::{Claim, IpcacheEntry, Owner, Prefix, ResourceId, Source, Writer};
use skep_kvstore_client::testing::FaultyBackend;
use skep_node_local::NodeAddress;
use skep_node_manager::NodeManager;
use statedb::{Db, RwTable, Table};
use tempfile::TempDir;

use crate::fixture::{eventually, ip, metric, node};

/// An agent of cluster `birch` with the observers.
struct Agent {
    directory: TempDir,
    connector: Arc<StoreConnector>,
    mesh: Arc<ClusterMesh>,
    db: Db,
    ipcache: Writer,
    nodes: NodeManager,
    identities: Table<SecurityIdentity>,
    maps: Arc<Maps>,
    metrics: Arc<ClusterMeshMetrics>,
    running: Running,
}

fn addresses(db: Db) -> Result<(RwTable<NodeAddress>, Table<NodeAddress>), statedb::Error> {
    let table = RwTable::builder("node-addresses")
        .primary(NodeAddress::BY_ID)
        .build(&db)?;
    let reader = table.reader();
    Ok((table, reader))
}

fn address(text: &str) -> Prefix {
    Prefix::address(text.parse().expect("it is an address"))
}

/// An entry of the map as it was before a restart.
fn leave_entry(maps: Arc<Maps>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let value = skep_bpf_maps::node::IpcacheValue::new((7 << 16) + 9);
    maps.handle(&IPCACHE)
        .update(&address("10.4.1.99").map_key(), &value)?;
    Ok(())
}

impl Agent {
    async fn start(connector: Arc<StoreConnector>, clusters: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("there is a folder");
        for cluster in clusters {
            write_file(directory.path(), cluster, cluster);
        }
        let provided = connector.clone();
        let hive = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_ipcache::cell(),
            skep_node_local::cells::local_node(),
            skep_node_manager::cell(),
            Cell::module("fakes", "Fakes of the test")
                .provide(|| NodeName::new("n1"))
                .provide(addresses)
                .provide(move || provided.clone() as Arc<dyn Connector>)
                .run(leave_entry),
            skep_base_settings::cluster::cell(),
            skep_kvstore_etcd::cell(),
            skep_clustermesh_mesh::cell(),
            nodes::cell(),
            ipcache::cell(),
            skep_identity_cache::cell(),
            identities::cell(),
        ])
        .root::<Arc<ClusterMesh>>()
        .root::<Db>()
        .root::<Writer>()
        .root::<NodeManager>()
        .root::<Table<SecurityIdentity>>()
        .root::<RwTable<NodeAddress>>()
        .root::<Arc<Maps>>()
        .root::<Arc<ClusterMeshMetrics>>();
        let config = format!("--clustermesh-config={}", directory.path().display());
        let args = ["--cluster-id=9", "--cluster-name=birch", config.as_str()];
        let running = hive_testing::start_with(hive, Settings::new().args(args)).await;
        Self {
            directory,
            connector,
            mesh: running.get().expect("it is provided"),
            db: running.get().expect("it is provided"),
            ipcache: running.get().expect("it is provided"),
            nodes: running.get().expect("it is provided"),
            identities: running.get().expect("it is provided"),
            maps: running.get().expect("it is provided"),
            metrics: running.get().expect("it is provided"),
            running,
        }
    }

    async fn alone() -> Self {
        Self::start(StoreConnector::new(), &[]).await
    }

    async fn cluster(&self, name: &str, id: u32) -> FakeCluster {
        let cluster = reachable(&self.connector, name, id).await;
        self.join(name);
        cluster
    }

    fn join(&self, name: &str) {
        write_file(self.directory.path(), name, name);
    }

    fn leave(&self, name: &str) {
        remove_file(self.directory.path(), name);
    }

    /// Waits until the ipcache says so of an address: identity and source; `None` if nothing.
    #[track_caller]
    fn expect(&self, at: &str, wanted: Option<(u32, Source)>) -> impl Future<Output = ()> {
        let what = format!("{at} is {wanted:?}");
        let (table, db, prefix) = (self.ipcache.table(), self.db.clone(), address(at));
        eventually(&what, move || {
            let txn = db.read();
            let row = table.get(&txn, IpcacheEntry::BY_PREFIX.key(&prefix));
            let found = row.and_then(|row| {
                let resolved = row.resolve()?;
                Some((resolved.identity.get(), resolved.source))
            });
            found == wanted
        })
    }

    fn node_names(&self) -> Vec<String> {
        let nodes = self.nodes.nodes(&self.db.read());
        let remote = nodes.iter().filter(|node| node.source == Source::ClusterMesh);
        let mut names: Vec<String> = remote
            .map(|node| format!("{}/{}", node.key.cluster, node.key.name))
            .collect();
        names.sort_unstable();
        names
    }

    fn identity_texts(&self) -> Vec<String> {
        let txn = self.db.read();
        let rows = self.identities.all(&txn);
        let remote = rows.filter(|row| row.source == IdentitySource::ClusterMesh);
        remote
            .map(|row| format!("{} {} {}", row.id, row.cluster, row.labels))
            .collect()
    }

    /// Whether the map still has the entry from before the restart.
    fn has_stale_entry(&self) -> bool {
        self.has_entry("10.4.1.99")
    }

    /// Whether the map has an address.
    fn has_entry(&self, at: &str) -> bool {
        let entries = self.maps.handle(&IPCACHE).entries().expect("it is read");
        let key = address(at).map_key();
        entries.iter().any(|(found, _)| *found == key)
    }

    async fn stop(self) {
        hive_testing::stop(self.running).await;
    }
}

async fn reachable(connector: &StoreConnector, name: &str, id: u32) -> FakeCluster {
    let (cluster, store) = FakeCluster::in_memory(name, id).await;
    connector.set(name, Arc::new(store));
    cluster
}

#[tokio::test(start_paused = true)]
async fn nodes_addresses_and_identities_come_and_go_with_their_cluster() {
    let agent = Agent::alone().await;
    let alder = agent.cluster("alder", 7).await;
    let cedar = agent.cluster("cedar", 8).await;
    for cluster in [&alder, &cedar] {
        let labels = format!("k8s:io.cilium.k8s.policy.cluster={};", cluster.name);
        let id = ((cluster.id << 16) + 9).to_string();
        cluster.put(Kind::Identities, &id, labels).await;
        cluster.put(Kind::Nodes, "n7", node(cluster, "n7")).await;
        let at = format!("10.{}.1.15", cluster.id);
        cluster.put(Kind::Ips, &at, ip(cluster, &at, 9)).await;
    }

    eventually("nodes of one name are two", || {
        agent.node_names() == ["alder/n7", "cedar/n7"]
    })
    .await;
    agent
        .expect("10.7.1.15", Some(((7 << 16) + 9, Source::ClusterMesh)))
        .await;
    agent
        .expect("10.8.1.15", Some(((8 << 16) + 9, Source::ClusterMesh)))
        .await;
    eventually("identities are there", || {
        agent.identity_texts()
            == [
                "458761 alder k8s:io.cilium.k8s.policy.cluster=alder;",
                "524297 cedar k8s:io.cilium.k8s.policy.cluster=cedar;",
            ]
    })
    .await;

    agent.leave("alder");

    agent.expect("10.7.1.15", None).await;
    eventually("the other cluster stays", || {
        agent.node_names() == ["cedar/n7"]
            && agent.identity_texts() == ["524297 cedar k8s:io.cilium.k8s.policy.cluster=cedar;"]
    })
    .await;
    agent
        .expect("10.8.1.15", Some(((8 << 16) + 9, Source::ClusterMesh)))
        .await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_change_ends_when_it_is_in_the_map() {
    let agent = Agent::alone().await;
    let alder = agent.cluster("alder", 7).await;
    for at in ["10.4.1.15", "10.4.1.16"] {
        alder.put(Kind::Ips, at, ip(&alder, at, 9)).await;
    }
    let measured = |count: &str| {
        let line = "remote_change_duration_seconds_count{kind=\"ip\"}";
        metric(&agent.metrics, line).as_deref() == Some(count)
    };

    eventually("both are measured", || measured("2")).await;
    assert!(agent.has_entry("10.4.1.15") && agent.has_entry("10.4.1.16"));

    alder.delete(Kind::Ips, "10.4.1.15").await;
    eventually("its deletion is measured", || measured("3")).await;
    assert!(!agent.has_entry("10.4.1.15"));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn addresses_of_the_local_cluster_are_stronger_than_remote_ones() {
    let agent = Agent::alone().await;
    let alder = agent.cluster("alder", 7).await;
    let at = "10.4.1.15";
    let owner = Owner::new(Source::CustomResource, ResourceId::new("cep", "shop", "cart-0"));
    let mut txn = agent.ipcache.write();
    let claim = Claim::identity(owner.clone(), NumericIdentity::new(1234));
    agent
        .ipcache
        .upsert(&mut txn, address(at), claim)
        .expect("it is written");
    txn.commit();

    alder.put(Kind::Ips, at, ip(&alder, at, 9)).await;
    alder
        .put(Kind::Ips, "10.4.1.16", ip(&alder, "10.4.1.16", 9))
        .await;
    agent
        .expect("10.4.1.16", Some(((7 << 16) + 9, Source::ClusterMesh)))
        .await;
    agent.expect(at, Some((1234, Source::CustomResource))).await;
    let mut txn = agent.ipcache.write();
    agent
        .ipcache
        .delete(&mut txn, address(at), &owner)
        .expect("it is deleted");
    txn.commit();

    agent.expect(at, Some(((7 << 16) + 9, Source::ClusterMesh))).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_claims_the_address_of_another_does_not_delete_it() {
    let agent = Agent::alone().await;
    let alder = agent.cluster("alder", 7).await;
    let at = "10.4.1.15";
    alder.put(Kind::Ips, at, ip(&alder, at, 9)).await;
    agent.expect(at, Some(((7 << 16) + 9, Source::ClusterMesh))).await;

    let cedar = agent.cluster("cedar", 8).await;
    cedar.put(Kind::Ips, at, ip(&cedar, at, 9)).await;
    cedar.put(Kind::Ips, "10.4.2.1", ip(&cedar, "10.4.2.1", 9)).await;
    agent
        .expect("10.4.2.1", Some(((8 << 16) + 9, Source::ClusterMesh)))
        .await;
    agent.leave("cedar");
    agent.expect("10.4.2.1", None).await;

    agent.expect(at, Some(((7 << 16) + 9, Source::ClusterMesh))).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn identities_of_other_clusters_are_rejected_one_by_one() {
    let agent = Agent::alone().await;
    let alder = agent.cluster("alder", 7).await;
    let stolen = IpIdentityPair {
        ip: Some("10.4.1.1".parse().expect("it is an address")),
        id: (8 << 16) + 9,
        ..IpIdentityPair::default()
    };
    let stolen = stolen.encode().expect("it is JSON");
    alder.put(Kind::Ips, "10.4.1.1", stolen).await;
    alder.put(Kind::Ips, "10.4.1.2", "garbage").await;
    alder
        .put(
            Kind::Identities,
            &((8 << 16) + 9).to_string(),
            "k8s:io.cilium.k8s.policy.cluster=alder;",
        )
        .await;
    alder.put(Kind::Ips, "10.4.1.3", ip(&alder, "10.4.1.3", 9)).await;
    alder
        .put(
            Kind::Identities,
            &((7 << 16) + 9).to_string(),
            "k8s:io.cilium.k8s.policy.cluster=alder;",
        )
        .await;

    agent
        .expect("10.4.1.3", Some(((7 << 16) + 9, Source::ClusterMesh)))
        .await;
    eventually("its own identity is there", || {
        agent.identity_texts() == ["458761 alder k8s:io.cilium.k8s.policy.cluster=alder;"]
    })
    .await;
    agent.expect("10.4.1.1", None).await;
    agent.expect("10.4.1.2", None).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_costs_others_nothing() {
    let connector = StoreConnector::new();
    let (_, store) = FakeCluster::in_memory("cedar", 8).await;
    let silent = FaultyBackend::new(Arc::new(store));
    silent.partition(true);
    connector.set("cedar", silent);
    let alder = reachable(&connector, "alder", 7).await;
    alder.put(Kind::Nodes, "n7", node(&alder, "n7")).await;

    let agent = Agent::start(connector, &["alder", "cedar"]).await;
    let start = tokio::time::Instant::now();
    eventually("the node is there", || agent.node_names() == ["alder/n7"]).await;
    alder.put(Kind::Ips, "10.4.1.3", ip(&alder, "10.4.1.3", 9)).await;
    agent
        .expect("10.4.1.3", Some(((7 << 16) + 9, Source::ClusterMesh)))
        .await;

    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let ready: Vec<_> = agent.mesh.status().iter().map(|status| status.ready).collect();
    assert_eq!(ready, [true, false]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stale_addresses_stay_in_the_map_until_all_clusters_were_read_or_the_deadline_is_over() {
    let connector = StoreConnector::new();
    let (_, store) = FakeCluster::in_memory("cedar", 8).await;
    let silent = FaultyBackend::new(Arc::new(store));
    silent.partition(true);
    connector.set("cedar", silent.clone());
    let agent = Agent::start(connector, &["cedar"]).await;

    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(agent.has_stale_entry());

    eventually("it is deleted without the cluster", || !agent.has_stale_entry()).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stale_addresses_are_deleted_from_the_map_when_all_clusters_were_read() {
    let connector = StoreConnector::new();
    let _alder = reachable(&connector, "alder", 7).await;
    let start = tokio::time::Instant::now();
    let agent = Agent::start(connector, &["alder"]).await;

    eventually("it is deleted", || !agent.has_stale_entry()).await;

    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    agent.stop().await;
}
