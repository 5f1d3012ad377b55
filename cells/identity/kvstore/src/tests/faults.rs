// SPDX-License-Identifier: Apache-2.0

//! Whatever fails, the store ends up with the keys of what is in use, and nodes agree.

use std::collections::BTreeMap;

use futures::future::join_all;
use skep_kvstore_client::testing::{FaultyBackend, options};
use skep_kvstore_client::{Backend, ClientKind};

use super::*;

const ROUNDS: u32 = 40;

/// Allocates and releases at random; some allocations are dropped while they run.
async fn churn(node: &Node, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        let text = format!("k8s:app={};", random.u8(0..6));
        if node.allocator.uses(&labels(&text)) > 0 && random.bool() {
            node.release(&text);
            continue;
        }
        let patience = Duration::from_millis(random.u64(0..3000));
        let _ = tokio::time::timeout(patience, node.allocator.allocate(&labels(&text))).await;
    }
}

async fn converges(seed: u64) {
    let store = Memory::new();
    let nodes: Vec<_> = (21..24)
        .map(|number| {
            let faulty = FaultyBackend::new(Arc::new(store.clone()));
            faulty.fail(seed + u64::from(number), 0.2);
            let client =
                RunningClient::new(Arc::clone(&faulty) as Arc<dyn Backend>, options(ClientKind::Full));
            (Node::with(client, number, alder()), faulty)
        })
        .collect();
    let runs = join_all(nodes.iter().map(|(node, _)| node.allocator.run()));
    let actions = async {
        join_all(
            nodes
                .iter()
                .zip(seed..)
                .map(|((node, _), seed)| churn(node, seed)),
        )
        .await;
        for (_, faulty) in &nodes {
            faulty.fail(0, 0.0);
        }
        tokio::time::sleep(MINUTE * 10).await;
    };
    tokio::select! {
        _ = runs => {}
        () = actions => {}
    }

    let stored = stored(&store);
    let mut ids = BTreeMap::new();
    let mut slaves = Vec::new();
    for item in &stored {
        let (key, value) = item.rsplit_once("=").expect("it has a value");
        if let Some(name) = key.strip_prefix("value/") {
            let (text, node) = name.rsplit_once('/').expect("it has a node");
            let id = ids.entry(text.to_owned()).or_insert(value);
            assert_eq!(id, &value, "seed {seed}: nodes agree: {stored:?}");
            assert!(
                stored.contains(&format!("id/{value}={text}")),
                "seed {seed}: {stored:?}"
            );
            slaves.push((node.to_owned(), text.to_owned()));
        }
    }
    let mut used = Vec::new();
    for ((node, _), number) in nodes.iter().zip(21..) {
        for label in 0..6 {
            let text = format!("k8s:app={label};");
            if node.allocator.uses(&labels(&text)) > 0 {
                used.push((format!("192.168.50.{number}"), text));
            }
        }
        assert!(node.allocator.conflicts().is_empty());
    }
    used.sort_unstable();
    slaves.sort_unstable();
    assert_eq!(slaves, used, "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn nodes_converge_in_spite_of_failures_and_dropped_allocations() {
    for seed in [1, 2, 3, 4] {
        converges(seed * 1000).await;
    }
}
