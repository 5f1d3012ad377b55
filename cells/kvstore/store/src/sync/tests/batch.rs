// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// How many transactions wrote the keys.
fn transactions(memory: &Memory) -> usize {
    let items = memory.items().into_iter();
    let written = items.filter(|item| item.key.starts_with(PREFIX));
    written
        .map(|item| item.mod_revision)
        .collect::<BTreeSet<_>>()
        .len()
}

#[tokio::test(start_paused = true)]
async fn many_keys_are_written_in_few_transactions() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for number in 0..1000 {
        nodes.upsert(&format!("alder/n{number}"), "1");
    }
    nodes.set_synced();

    during(&nodes, nodes.wait_synced()).await;

    assert_eq!(items(&memory, PREFIX).len(), 1000);
    assert_eq!(transactions(&memory), 10);
}

#[tokio::test(start_paused = true)]
async fn large_values_are_written_in_batches_that_etcd_accepts() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for number in 0..10 {
        nodes.upsert(&format!("alder/n{number}"), vec![b'x'; 200 * 1024]);
    }

    during(&nodes, settle()).await;

    assert_eq!(transactions(&memory), 5, "two values a batch");
}

#[tokio::test(start_paused = true)]
async fn retain_deletes_the_others() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for name in ["alder/a", "alder/b"] {
        nodes.upsert(name, "1");
    }

    during(&nodes, async {
        settle().await;
        nodes.retain(|name| name == "alder/b");
        assert_eq!(nodes.len(), 1);
        settle().await;
    })
    .await;

    assert_eq!(items(&memory, PREFIX), ["cilium/state/nodes/v1/alder/b=1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_what_was_upserted_last() {
    for seed in 0..20 {
        let memory = Memory::new();
        let faulty = FaultyBackend::new(Arc::new(memory.clone()));
        let client = RunningClient::full(faulty.clone());
        let nodes = SyncStore::new(client.clone(), options());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut desired = BTreeMap::new();
        faulty.fail(seed, 0.2);

        during(&nodes, async {
            for round in 0..300 {
                let name = format!("alder/n{}", random.u8(..40));
                if random.u8(..4) == 0 {
                    nodes.delete(&name);
                    desired.remove(&name);
                } else {
                    nodes.upsert(&name, round.to_string());
                    desired.insert(name, round.to_string());
                }
                if random.u8(..10) == 0 {
                    settle().await;
                }
            }
            nodes.set_synced();
            nodes.wait_synced().await;
        })
        .await;

        let expected: Vec<String> = desired
            .iter()
            .map(|(name, value)| format!("{PREFIX}/{name}={value}"))
            .collect();
        assert_eq!(items(&memory, PREFIX), expected, "seed {seed}");
    }
}
