// SPDX-License-Identifier: Apache-2.0

//! What sources say about nodes, and which one counts.

use skep_base_metrics::{MetricSet, Registry, exposition};
use statedb::Row;

use super::*;

impl Bench {
    /// Waits until the node is what this source says.
    async fn expect_source(&self, key: &NodeKey, source: Option<Source>) {
        let of = || self.manager.node(&self.db.read(), key).map(|node| node.source);
        self.wait(|| of() == source).await;
    }

    async fn wait_synced(&self) {
        let table = self.manager.table();
        tokio::time::timeout(Duration::from_secs(20), table.wait_initialized(&self.db))
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn strongest_source_says_what_a_node_is() {
    let bench = Bench::start().await;
    let key = NodeKey::new("", "n2");

    bench.kubernetes.add(NODE_2).unwrap();
    bench.expect_source(&key, Some(Source::Kubernetes)).await;
    bench.kubernetes.add(CILIUM_NODE_2).unwrap();
    bench.expect_source(&key, Some(Source::CustomResource)).await;
    assert!(!bench.delete(&key, Source::ClusterMesh), "it does not have it");
    bench.kubernetes.delete(CILIUM_NODE_2).unwrap();
    bench.expect_source(&key, Some(Source::Kubernetes)).await;
    bench.kubernetes.delete(NODE_2).unwrap();
    bench.expect_source(&key, None).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn cilium_node_is_read_whole() {
    let bench = Bench::start().await;
    bench.kubernetes.add(CILIUM_NODE_2).unwrap();
    let key = NodeKey::new("", "n2");
    bench.expect_source(&key, Some(Source::CustomResource)).await;

    let node = bench.manager.node(&bench.db.read(), &key).unwrap();

    assert_eq!(
        node.cells(),
        [
            "default/n2",
            "custom-resource",
            "CiliumInternalIP:10.1.2.1, InternalIP:172.30.1.2",
            "10.1.2.0/24, 10.7.2.0/24"
        ]
    );
    let json = node.to_json().unwrap();
    assert_eq!(json["EncryptionKey"], 3);
    assert_eq!(json["WireguardPubKey"], "key");
    assert_eq!(json["BootID"], "3b6e");
    assert_eq!(json["HealthIPs"][0], "10.1.2.91");
    assert_eq!(json["IngressIPs"][0], "10.1.2.92");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_parts_are_named_and_the_rest_is_used() {
    let bench = Bench::start().await;
    let broken = CILIUM_NODE_2
        .replace("10.1.2.91", "10.1.2")
        .replace("172.30.1.2", "172.30.1.999")
        .replace("key: 3", "key: 300");

    bench.kubernetes.add(&broken).unwrap();

    bench
        .expect_ipcache(&[
            "10.1.2.1/32 identity=6",
            "10.1.2.92/32 identity=8",
            "10.1.2.0/24 identity=9 encryptkey=0",
            "10.7.2.0/24 identity=9",
        ])
        .await;
    let watcher = "job-watch-ciliumnodes";
    bench
        .wait(|| {
            bench
                .health(watcher)
                .contains("node `default/n2`: address `172.30.1.999` is invalid: invalid IP address syntax")
        })
        .await;
    bench.kubernetes.add(CILIUM_NODE_2).unwrap();
    bench.wait(|| !bench.health(watcher).contains("invalid")).await;
    bench.end().await;
}

#[test]
fn nodes_are_listed_once_by_their_strongest_source() {
    let manager = NodeManager::with_table(&Db::new()).unwrap();
    let mut txn = manager.write();
    for (name, source) in [
        ("n1", Source::Kubernetes),
        ("n1", Source::CustomResource),
        ("n2", Source::ClusterMesh),
    ] {
        manager.upsert(&mut txn, node("", name, source, &[])).unwrap();
    }
    let snapshot = txn.commit();

    let nodes: Vec<String> = manager
        .nodes(&snapshot)
        .iter()
        .map(|node| format!("{} {}", node.key, node.source))
        .collect();
    assert_eq!(nodes, ["default/n1 custom-resource", "default/n2 clustermesh"]);
}

#[tokio::test(start_paused = true)]
async fn events_and_nodes_are_counted() {
    let bench = Bench::start().await;
    bench.wait_synced().await;
    let mut remote = node("alder", "n2", Source::ClusterMesh, &["172.31.1.2"]);
    bench.upsert(remote.clone());
    bench.upsert(remote.clone());
    remote.boot_id = "2".into();
    bench.upsert(remote.clone());
    bench.upsert(node("alder", "n3", Source::ClusterMesh, &[]));
    bench.delete(&remote.key, Source::ClusterMesh);
    bench.expect_ids(&[]).await;

    let registry = Registry::new(bench.manager.metrics().metrics(), &[]).unwrap();
    // This node, and n3.
    bench
        .wait(|| exposition(&registry).contains("cilium_nodes_all_num 2"))
        .await;
    let text = exposition(&registry);
    for line in [
        "cilium_nodes_all_events_received_total{event_type=\"add\",source=\"clustermesh\"} 2",
        "cilium_nodes_all_events_received_total{event_type=\"update\",source=\"clustermesh\"} 1",
        "cilium_nodes_all_events_received_total{event_type=\"delete\",source=\"clustermesh\"} 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    bench.end().await;
}

#[test]
fn names_of_nodes_are_keys() {
    assert_eq!(NodeKey::new("", "n1").to_string(), "default/n1");
    let manager = NodeManager::with_table(&Db::new()).unwrap();
    let mut txn = manager.write();
    manager
        .upsert(&mut txn, node("alder", "n1", Source::KvStore, &[]))
        .unwrap();
    let snapshot = txn.commit();

    let query = |text: &str| {
        let bytes = <NodeKey as statedb::Key>::from_text(text).unwrap();
        let table = manager.table();
        table
            .list(&snapshot, Node::BY_NAME.bytes(bytes.as_bytes()))
            .count()
    };
    assert_eq!((query("alder/n1"), query("n1")), (1, 0));
}

#[test]
fn node_ip_is_an_internal_address_never_the_agents_own() {
    let mut node = node("", "n2", Source::KvStore, &["172.30.1.2"]);
    node.addresses.insert(
        0,
        (NodeAddressType::CiliumInternalIp, "10.1.2.1".parse().unwrap()),
    );

    assert_eq!(node.node_ip(true), Some("172.30.1.2".parse().unwrap()));
    assert_eq!(node.node_ip(false), None);
}

#[tokio::test(start_paused = true)]
async fn this_node_has_another_key_once_its_cluster_has_a_name() {
    let bench = Bench::start().await;
    bench
        .expect_source(&NodeKey::new("", THIS), Some(Source::Local))
        .await;

    bench
        .local
        .update(|local| {
            local.cluster = "alder".into();
            local.addresses = vec![(NodeAddressType::InternalIp, "172.30.1.1".parse().unwrap())];
        })
        .unwrap();

    bench
        .expect_source(&NodeKey::new("alder", THIS), Some(Source::Local))
        .await;
    bench.expect_source(&NodeKey::new("", THIS), None).await;
    bench.expect_ipcache(&["172.30.1.1/32 identity=1"]).await;
    bench.expect_ids(&["172.30.1.1 nodeid=1"]).await;
    bench.end().await;
}
