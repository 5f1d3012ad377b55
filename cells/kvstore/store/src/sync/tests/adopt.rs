// SPDX-License-Identifier: Apache-2.0

use skep_kvstore_client::Lifetime;

use super::*;

/// A store that holds what a former program wrote: `alder/a=1`, `alder/b=1`, `alder/gone=1` and the canary.
async fn former() -> Memory {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options());
    for name in ["alder/a", "alder/b", "alder/gone"] {
        nodes.upsert(name, "1");
    }
    nodes.set_synced();
    during(&nodes, nodes.wait_synced()).await;
    client.stop().await;
    memory
}

fn version(memory: &Memory, name: &str) -> i64 {
    item(memory, &format!("{PREFIX}/{name}"))
        .expect("it exists")
        .version
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_right_keys_are_not_written_and_stale_ones_are_deleted() {
    let memory = former().await;
    let client = RunningClient::full(Arc::new(memory.clone()));
    let nodes = SyncStore::new(client.clone(), options().adopt());
    nodes.upsert("alder/a", "1");

    during(&nodes, async {
        settle().await;
        nodes.upsert("alder/b", "2");
        nodes.upsert("alder/new", "1");
        settle().await;
        let gone = item(&memory, "cilium/state/nodes/v1/alder/gone");
        assert!(gone.is_some(), "not all is known");
        nodes.set_synced();
        nodes.wait_synced().await;
    })
    .await;

    assert_eq!(
        items(&memory, PREFIX),
        ["alder/a=1", "alder/b=2", "alder/new=1"].map(|item| format!("{PREFIX}/{item}"))
    );
    assert_eq!((version(&memory, "alder/a"), version(&memory, "alder/b")), (1, 2));
    assert_eq!((nodes.pending(), nodes.len()), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_restored_gets_what_it_misses_and_loses_what_came_back() {
    for is_adopting in [false, true] {
        let (memory, client) = memory();
        let mut options = options();
        if is_adopting {
            options = options.adopt();
        }
        let nodes = SyncStore::new(client.clone(), options);
        for name in ["alder/a", "alder/b", "alder/old"] {
            nodes.upsert(name, "1");
        }
        nodes.set_synced();
        during(&nodes, async {
            nodes.wait_synced().await;
            let old = memory.snapshot();
            nodes.delete("alder/old");
            nodes.upsert("alder/b", "2");
            nodes.upsert("alder/new", "1");
            settle().await;
            let right = items(&memory, PREFIX);
            assert_eq!(right.len(), 3);

            memory.restore(&old);
            assert_ne!(items(&memory, PREFIX), right);
            // The client checks its store now and then.
            tokio::time::sleep(Duration::from_secs(60)).await;
            if !is_adopting {
                // A store that does not look for former keys leaves them to their lease.
                tokio::time::sleep(skep_kvstore_client::LEASE_TTL).await;
            }
            assert_eq!(items(&memory, PREFIX), right, "adopts: {is_adopting}");
            assert!(item(&memory, CANARY).is_some());

            memory.reset();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(items(&memory, PREFIX), right, "adopts: {is_adopting}");
            assert!(item(&memory, CANARY).is_some());
        })
        .await;
        assert_eq!(nodes.pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_restored_while_nothing_runs_is_not_missed() {
    let (memory, client) = memory();
    let nodes = SyncStore::new(client.clone(), options().adopt());
    nodes.upsert("alder/old", "1");
    nodes.set_synced();
    during(&nodes, nodes.wait_synced()).await;
    let old = memory.snapshot();
    nodes.delete("alder/old");
    during(&nodes, settle()).await;
    assert_eq!(items(&memory, PREFIX).len(), 0);

    memory.restore(&old);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(items(&memory, PREFIX).len(), 1);

    during(&nodes, settle()).await;
    assert_eq!(items(&memory, PREFIX).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_were_adopted_outlive_the_former_lease() {
    let memory = former().await;
    let client = RunningClient::full(Arc::new(memory.clone()));
    let nodes = SyncStore::new(client.clone(), options().adopt());
    nodes.upsert("alder/a", "1");
    nodes.set_synced();

    during(&nodes, tokio::time::sleep(skep_kvstore_client::LEASE_TTL * 3)).await;

    assert_eq!(items(&memory, PREFIX), ["cilium/state/nodes/v1/alder/a=1"]);
    assert_eq!(version(&memory, "alder/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn keys_without_a_living_lease_are_written_again() {
    let (memory, client) = memory();
    for name in ["alder/a", "alder/gone"] {
        let key = format!("{PREFIX}/{name}");
        client
            .put(&key, "1", Lifetime::Permanent)
            .await
            .expect("it is written");
    }
    let nodes = SyncStore::new(client.clone(), options().adopt());
    nodes.upsert("alder/a", "1");
    nodes.set_synced();

    during(&nodes, nodes.wait_synced()).await;

    let written = item(&memory, "cilium/state/nodes/v1/alder/a").expect("it exists");
    assert_ne!(written.lease, LeaseId::NONE);
    assert_eq!(items(&memory, PREFIX).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stale_keys_are_deleted_before_the_canary_is_written_in_spite_of_failures() {
    for seed in 0..20 {
        let memory = former().await;
        {
            let client = RunningClient::full(Arc::new(memory.clone()));
            delete(&client, CANARY).await;
        }
        let faulty = FaultyBackend::new(Arc::new(memory.clone()));
        let client = RunningClient::full(faulty.clone());
        let nodes = SyncStore::new(client.clone(), options().adopt());
        faulty.fail(seed, 0.5);
        nodes.upsert("alder/b", "2");
        nodes.set_synced();

        during(&nodes, async {
            while item(&memory, CANARY).is_none() {
                settle().await;
            }
            let items = items(&memory, PREFIX);
            assert_eq!(items, ["cilium/state/nodes/v1/alder/b=2"], "seed {seed}");
        })
        .await;
    }
}
