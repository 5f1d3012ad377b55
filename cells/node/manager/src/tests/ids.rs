// SPDX-License-Identifier: Apache-2.0

//! Ids of nodes: allocation, restart, the map.

use super::*;

#[tokio::test(start_paused = true)]
async fn all_addresses_of_a_node_have_one_id() {
    let bench = Bench::start().await;

    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2", "fd00::2"]));
    bench
        .expect_ids(&["172.30.1.2 nodeid=1", "fd00::2 nodeid=1"])
        .await;
    bench.upsert(node("alder", "n2", Source::ClusterMesh, &["172.31.1.2"]));

    bench
        .expect_ids(&[
            "172.30.1.2 nodeid=1 spi=0",
            "fd00::2 nodeid=1 spi=0",
            "172.31.1.2 nodeid=2 spi=0",
        ])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn this_node_has_an_id_as_others() {
    let bench = Bench::start().await;
    bench
        .local
        .update(|local| local.addresses = vec![(NodeAddressType::InternalIp, "172.30.1.1".parse().unwrap())])
        .unwrap();
    bench.expect_ids(&["172.30.1.1 nodeid=1"]).await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));

    bench
        .expect_ids(&["172.30.1.1 nodeid=1", "172.30.1.2 nodeid=2"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn ids_survive_a_restart_and_others_go_when_all_sources_have_delivered() {
    let bench = Bench::start_with_ids(&[("172.30.1.2", 4660), ("172.30.9.9", 1), ("172.30.9.8", 0)]).await;
    bench.upsert(node("", "n3", Source::KvStore, &["172.30.1.3"]));
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.7", "172.30.1.2"]));
    let map = bench.maps.handle(&NODE_IDS);
    let id = |address: &str| {
        let key = NodeIdKey::new(address.parse().unwrap());
        map.lookup(&key).unwrap().map(|value| value.id)
    };
    bench
        .wait(|| id("172.30.9.9").is_none() && id("172.30.1.3").is_some())
        .await;
    assert_eq!((id("172.30.1.2"), id("172.30.1.7")), (Some(4660), Some(4660)));
    assert_eq!(id("172.30.9.8"), None);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn restored_ids_are_not_allocated_to_others_before_all_sources_have_delivered() {
    let hold = Cell::module("hold", "A source that never delivers")
        .run(|manager: NodeManager| manager.register_source("held").map(drop));
    let leftover = Cell::module("leftover", "Ids from before a restart").run(|maps: Arc<Maps>| {
        let key = NodeIdKey::new("172.30.9.9".parse().unwrap());
        maps.handle(&NODE_IDS).update(&key, &NodeIdValue::new(1, 0))
    });
    let bench = Bench::start_hive(hive().with(hold).with(leftover), Settings::new()).await;

    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench
        .expect_ids(&["172.30.9.9 nodeid=1", "172.30.1.2 nodeid=2"])
        .await;
    bench.upsert(node("", "n9", Source::KvStore, &["172.30.9.9"]));
    tokio::time::sleep(Duration::from_secs(61)).await;

    bench
        .expect_ids(&["172.30.9.9 nodeid=1", "172.30.1.2 nodeid=2"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn ids_of_nodes_that_are_gone_are_allocated_again() {
    let bench = Bench::start().await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2", "172.30.1.3"]));
    bench.upsert(node("", "n3", Source::KvStore, &["172.30.1.4"]));
    bench
        .expect_ids(&[
            "172.30.1.2 nodeid=1",
            "172.30.1.3 nodeid=1",
            "172.30.1.4 nodeid=2",
        ])
        .await;

    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.3"]));
    bench.upsert(node("", "n4", Source::KvStore, &["172.30.1.5"]));
    bench
        .expect_ids(&[
            "172.30.1.3 nodeid=1",
            "172.30.1.4 nodeid=2",
            "172.30.1.5 nodeid=3",
        ])
        .await;
    bench.delete(&NodeKey::new("", "n2"), Source::KvStore);
    bench
        .expect_ids(&["172.30.1.4 nodeid=2", "172.30.1.5 nodeid=3"])
        .await;
    bench.upsert(node("", "n5", Source::KvStore, &["172.30.1.6"]));

    bench
        .expect_ids(&[
            "172.30.1.6 nodeid=1",
            "172.30.1.4 nodeid=2",
            "172.30.1.5 nodeid=3",
        ])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn key_of_a_node_is_in_all_its_entries() {
    let bench = Bench::start().await;
    let mut encrypted = node("", "n2", Source::KvStore, &["172.30.1.2", "172.30.1.3"]);
    encrypted.encryption_key = 3;
    bench.upsert(encrypted.clone());
    bench
        .expect_ids(&["172.30.1.2 nodeid=1 spi=3", "172.30.1.3 nodeid=1 spi=3"])
        .await;

    encrypted.encryption_key = 4;
    bench.upsert(encrypted);

    bench
        .expect_ids(&["172.30.1.2 nodeid=1 spi=4", "172.30.1.3 nodeid=1 spi=4"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn address_of_two_nodes_stays_with_the_first_and_falls_to_the_other() {
    let bench = Bench::start().await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench.expect_ids(&["172.30.1.2 nodeid=1"]).await;
    bench.upsert(node(
        "alder",
        "n2",
        Source::ClusterMesh,
        &["172.30.1.2", "172.31.1.2"],
    ));
    bench
        .expect_ids(&["172.30.1.2 nodeid=1", "172.31.1.2 nodeid=2"])
        .await;

    bench.delete(&NodeKey::new("", "n2"), Source::KvStore);

    bench
        .expect_ids(&["172.30.1.2 nodeid=2", "172.31.1.2 nodeid=2"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_wait_for_ids_when_all_are_in_use() {
    let hold = Cell::module("hold", "A source that never delivers")
        .run(|manager: NodeManager| manager.register_source("held").map(drop));
    let leftover = Cell::module("leftover", "All ids but one").run(|maps: Arc<Maps>| {
        let map = maps.handle(&NODE_IDS);
        for id in 1..u16::MAX {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + u32::from(id));
            map.update(&NodeIdKey::new(address.into()), &NodeIdValue::new(id, 0))
                .unwrap();
        }
    });
    let settings = Settings::new().flag("bpf-node-map-max", "131072");
    let bench = Bench::start_hive(hive().with(hold).with(leftover), settings).await;
    let table = bench.db.table("node-ids").unwrap();
    let rows = || -> Vec<String> {
        let rows = table.rows(&bench.db.read());
        rows.iter().map(|row| row.cells()[..3].join(" ")).collect()
    };
    let is_reported = |text: &str| bench.health("job-allocate-node-ids").contains(text);

    for (name, address) in [("n2", "172.30.1.2"), ("n3", "172.30.1.3"), ("n4", "172.30.1.4")] {
        bench.upsert(node("", name, Source::KvStore, &[address]));
        bench
            .wait(|| is_reported("65535 ids in use") || is_reported("no id is free"))
            .await;
    }
    bench
        .wait(|| is_reported("no id is free for node `default/n3` and 1 others"))
        .await;
    assert_eq!(rows(), ["172.30.1.2 65535 default/n2"]);
    bench.delete(&NodeKey::new("", "n2"), Source::KvStore);
    bench
        .wait(|| is_reported("no id is free for node `default/n4` and 0 others"))
        .await;
    assert_eq!(rows(), ["172.30.1.3 65535 default/n3"]);
    // Restored ids without a node are free then.
    tokio::time::sleep(Duration::from_secs(61)).await;

    bench
        .expect_ids(&["172.30.1.3 nodeid=65535", "172.30.1.4 nodeid=1"])
        .await;
    bench.end().await;
}
