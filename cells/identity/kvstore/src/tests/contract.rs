// SPDX-License-Identifier: Apache-2.0

//! What holds on every store: the one in memory and a real etcd.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use skep_kvstore_client::Backend;
use skep_kvstore_client::testing::PATIENCE;
use skep_kvstore_etcd::testing::EtcdServer;

use super::*;
use skep_kvstore_store::testing::delete;

const CLIENTS: u32 = 8;
/// Label sets, the same for all of them.
const LABELS: usize = 60;

/// Runs all nodes while `actions` run.
async fn during<T>(nodes: &[Node], actions: impl Future<Output = T>) -> T {
    tokio::select! {
        _ = join_all(nodes.iter().map(|node| node.allocator.run())) => unreachable!("they never return"),
        result = actions => result,
    }
}

/// The keys below `prefix` and their values.
async fn list(client: &Client, prefix: &str) -> BTreeMap<String, String> {
    let listing = client
        .list(&format!("{BASE}{prefix}"))
        .await
        .expect("it is listed");
    let text = |item: skep_kvstore_client::KeyValue| {
        let value = String::from_utf8_lossy(&item.value).into_owned();
        (item.key[BASE.len() + prefix.len()..].to_owned(), value)
    };
    listing.items.into_iter().map(text).collect()
}

/// Waits until so many keys are below `prefix`.
async fn wait_count(client: &Client, prefix: &str, count: usize) {
    let reached = async {
        while list(client, prefix).await.len() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, reached).await;
    assert!(found.is_ok(), "not {count} but {:?}", list(client, prefix).await);
}

/// An identity from its allocation to its collection, with many programs.
async fn lifetime_of_identities(backend: Arc<dyn Backend>) {
    let nodes: Vec<Node> = (1..=CLIENTS)
        .map(|number| Node::with(RunningClient::full(Arc::clone(&backend)), number, alder()))
        .collect();
    let client = RunningClient::full(backend);
    let texts: Vec<String> = (0..LABELS).map(|label| format!("k8s:app={label};")).collect();

    let masters = during(&nodes, async {
        let all = join_all(nodes.iter().enumerate().map(|(offset, node)| {
            // Each in another order, so that all of them are first at some labels.
            let offset = offset * LABELS / CLIENTS as usize;
            let order = (0..LABELS).map(move |label| (label + offset) % LABELS);
            join_all(order.map(|label| {
                let text = &texts[label];
                async move { (text.clone(), node.allocate(text).await) }
            }))
        }))
        .await;

        let masters = list(&client, "id/").await;
        let distinct: BTreeSet<&String> = masters.values().collect();
        assert_eq!(
            (masters.len(), distinct.len()),
            (LABELS, LABELS),
            "no labels twice"
        );
        let allocations: Vec<_> = all.into_iter().flatten().collect();
        for (text, allocation) in &allocations {
            assert_eq!(masters.get(&allocation.id.to_string()), Some(text));
        }
        let new = allocations
            .iter()
            .filter(|(_, allocation)| allocation.is_new)
            .count();
        assert_eq!(new, LABELS, "each is new once");
        assert_eq!(list(&client, "value/").await.len(), LABELS * CLIENTS as usize);
        assert!(list(&client, "locks/").await.is_empty());

        let first = masters.keys().next().expect("there are some").clone();
        delete(&client, &format!("{BASE}id/{first}")).await;
        wait_count(&client, "id/", LABELS).await;
        assert_eq!(list(&client, "id/").await, masters, "it is written again");

        for node in &nodes {
            for text in &texts[1..] {
                assert!(node.release(text));
            }
        }
        wait_count(&client, "value/", CLIENTS as usize).await;
        masters
    })
    .await;

    let mut options = IdentityGcOptions::new(alder());
    options.rate_interval = Duration::from_secs(1);
    let mut gc = IdentityGc::new(client.clone(), options);
    let marked = gc.round().await.expect("the store works");
    assert_eq!((marked.used, marked.marked, marked.deleted), (1, LABELS - 1, 0));
    let deleted = gc.round().await.expect("the store works");
    assert_eq!(
        (deleted.used, deleted.marked, deleted.deleted),
        (1, 0, LABELS - 1)
    );
    let left = list(&client, "id/").await;
    assert_eq!(left.values().collect::<Vec<_>>(), ["k8s:app=0;"]);
    assert!(left.keys().all(|id| masters.contains_key(id)));
}

#[tokio::test]
async fn identities_live_from_allocation_to_collection_in_memory() {
    lifetime_of_identities(Arc::new(Memory::new())).await;
}

#[tokio::test]
async fn identities_live_from_allocation_to_collection_in_etcd() {
    let server = EtcdServer::start().await;
    lifetime_of_identities(server.backend()).await;
}
