// SPDX-License-Identifier: Apache-2.0

use skep_kvstore_client::testing::FaultyBackend;

use super::*;
use skep_kvstore_store::WatchStoreOptions;
use skep_kvstore_store::testing::{Log, delete, end_lease, put, settle};

#[tokio::test(start_paused = true)]
async fn writes_what_cilium_writes() {
    let store = Memory::new();
    let (first, second) = (Node::new(&store, 21, one()), Node::new(&store, 22, one()));
    let mut watcher = writes(&first.client).await;

    let actions = async {
        let allocation = first.allocate(CART).await;
        assert_eq!(
            allocation,
            Allocation {
                id: NumericIdentity::new(496_601),
                is_new: true,
                is_first_use: true
            }
        );
        assert_eq!(
            next_writes(&mut watcher, 4).await,
            golden_sequence("allocate-new")
        );

        let allocation = second.allocate(CART).await;
        assert!(!allocation.is_new && allocation.is_first_use);
        assert_eq!(
            next_writes(&mut watcher, 3).await,
            golden_sequence("allocate-existing")
        );

        delete(&first.client, "cilium/state/identities/v1/id/496601").await;
        assert_eq!(
            next_writes(&mut watcher, 2).await,
            golden_sequence("master-protection")
        );

        assert!(second.release(CART));
        settle().await;
        assert!(first.release(CART));
        assert_eq!(next_writes(&mut watcher, 2).await, golden_sequence("release"));
    };
    first.during(second.during(actions)).await;

    let mut gc = IdentityGc::new(first.client.clone(), IdentityGcOptions::new(one()));
    for _ in 0..2 {
        gc.round().await.expect("the store works");
    }
    // Cilium takes the lock in the first round as well, and writes nothing under it.
    assert_eq!(
        next_writes(&mut watcher, 3).await,
        golden_sequence("gc-two-rounds")[2..]
    );
}

#[tokio::test(start_paused = true)]
async fn labels_in_use_are_counted_without_io() {
    let store = Memory::new();
    let node = Node::new(&store, 21, alder());

    node.during(async {
        let first = node.allocate(CART).await;
        let revision = store.header().revision;
        let again = node.allocate(CART).await;

        assert_eq!(again.id, first.id);
        assert!(!again.is_new && !again.is_first_use);
        assert_eq!(node.allocator.uses(&labels(CART)), 2);
        assert!(!node.release(CART));
        assert_eq!(store.header().revision, revision);
        assert!(node.release(CART));
        assert_eq!(
            node.allocator
                .release(&labels(CART))
                .expect_err("it is not in use")
                .to_string(),
            format!("identity of `{CART}` is not in use")
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_allocation_takes_few_requests() {
    let store = FaultyBackend::new(Arc::new(Memory::new()));
    let [first, second] =
        [21, 22].map(|number| Node::with(RunningClient::full(store.clone()), number, alder()));
    let requests = async |node: &Node, text: &str| {
        let before = store.requests();
        node.allocate(text).await;
        store.requests() - before
    };

    first
        .during(second.during(async {
            for node in [&first, &second] {
                node.client.wait_connected().await;
                node.allocate("k8s:app=leases;").await;
            }

            // Lock, master key with slave key, unlock.
            assert_eq!(requests(&first, CART).await, 3);
            settle().await;
            // Lock, look at the master key, slave key, unlock.
            assert_eq!(requests(&second, CART).await, 4);
            assert_eq!(requests(&second, CART).await, 0);
        }))
        .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_allocate_at_once_agree() {
    let store = Memory::new();
    let (first, second) = (Node::new(&store, 21, alder()), Node::new(&store, 22, alder()));

    let ids = first
        .during(second.during(async {
            let (a, b, c) = tokio::join!(first.allocate(CART), second.allocate(CART), first.allocate(CART));
            assert_eq!([a, b, c].iter().filter(|allocation| allocation.is_new).count(), 1);
            let first_uses = [a, b, c]
                .iter()
                .filter(|allocation| allocation.is_first_use)
                .count();
            assert_eq!(first_uses, 2, "one of each node");
            [a.id, b.id, c.id]
        }))
        .await;
    assert_eq!(first.allocator.uses(&labels(CART)), 2);

    assert!(
        ids.iter().all(|id| *id == ids[0] && alder().contains(*id)),
        "{ids:?}"
    );
    assert_eq!(
        stored(&store),
        [
            format!("id/{}={CART}", ids[0]),
            format!("value/{CART}/192.168.50.21={}", ids[0]),
            format!("value/{CART}/192.168.50.22={}", ids[0]),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn identities_are_known_and_reported() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    let log = Log::default();
    let options = AllocatorOptions::new("alder", "192.168.50.21", one());
    let allocator = IdentityAllocator::new(client.clone(), Identities::new(), log.clone(), options);
    put(&client, "cilium/state/identities/v1/id/300", "k8s:app=old;").await;

    tokio::select! {
        () = allocator.run() => {}
        () = async {
            assert_eq!(log.wait(2).await, ["upsert 300=k8s:app=old;", "synced"]);
            allocator.allocate(&labels(CART)).await.expect("it is allocated");
            assert_eq!(log.wait(1).await, [format!("upsert 496601={CART}")]);

            let identities = allocator.identities();
            assert_eq!(identities.labels(NumericIdentity::new(300)), Some(labels("k8s:app=old;")));
            assert_eq!(identities.id(&labels(CART)), Some(NumericIdentity::new(496_601)));

            delete(&client, "cilium/state/identities/v1/id/300").await;
            assert_eq!(log.wait(1).await, ["delete 300=k8s:app=old;"]);

            // One that is in use is written again at once.
            delete(&client, "cilium/state/identities/v1/id/496601").await;
            tokio::time::sleep(MINUTE).await;
            assert_eq!(identities.id(&labels(CART)), Some(NumericIdentity::new(496_601)));
            let lines = log.take();
            assert!(lines.iter().all(|line| line.starts_with("upsert")), "{lines:?}");
            assert_eq!(identities.labels(NumericIdentity::new(300)), None);
        } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn identities_of_remote_clusters_are_known() {
    let store = Memory::new();
    let client = RunningClient::mesh(Arc::new(store));
    let identities = Identities::new();
    let prefix = IdentityKeys::cached("alder").masters();
    let log = Log::default();
    let options = WatchStoreOptions::new("alder");
    let mut alder = identities.remote("alder", alder(), log.clone(), options);
    let text = "k8s:app=cart;k8s:io.cilium.k8s.policy.cluster=alder;";
    put(&client, "cilium/cache/identities/v1/alder/id/459001", text).await;
    put(&client, "cilium/cache/identities/v1/alder/id/300", text).await;

    tokio::select! {
        () = alder.watch(&client, &prefix) => {}
        lines = log.wait(3) => {
            assert!(lines[0].contains("identity 300 is not in the range"), "{lines:?}");
            assert_eq!(lines[1..], [format!("upsert 459001={text}"), "synced".to_owned()]);
        }
    }
    assert_eq!(identities.id(&labels(text)), Some(NumericIdentity::new(459_001)));
    assert_eq!(
        identities.labels(NumericIdentity::new(459_001)),
        Some(labels(text))
    );

    alder.drain();
    assert_eq!(identities.id(&labels(text)), None);
    identities.remove("alder");
}

#[tokio::test(start_paused = true)]
async fn slaves_are_written_again_when_their_lease_ends() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    let mut options = AllocatorOptions::new("alder", "192.168.50.21", one());
    options.refresh_interval = MINUTE * 60;
    let allocator = IdentityAllocator::new(client.clone(), Identities::new(), (), options);
    let node = Node { client, allocator };

    node.during(async {
        node.allocate(CART).await;
        let before = stored(&store);

        end_lease(&store, &format!("{BASE}value/{CART}/192.168.50.21")).await;
        tokio::time::sleep(MINUTE * 10).await;

        assert_eq!(stored(&store), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_wiped_gets_the_used_identities_again() {
    let store = Memory::new();
    let node = Node::new(&store, 21, alder());

    node.during(async {
        node.allocate(CART).await;
        node.allocate("k8s:app=other;").await;
        node.release("k8s:app=other;");
        settle().await;
        let mut before = stored(&store);
        before.retain(|item| item.contains(CART));

        store.reset();
        tokio::time::sleep(MINUTE * 10).await;

        assert_eq!(stored(&store), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_that_were_lost_while_nothing_ran_are_refreshed() {
    let store = Memory::new();
    let node = Node::new(&store, 21, one());
    node.during(node.allocate(CART)).await;
    let before = stored(&store);
    node.client.delete_prefix(BASE).await.expect("they are deleted");

    node.during(tokio::time::sleep(MINUTE * 6)).await;

    assert_eq!(stored(&store), before);
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_master_is_lost_stays_that_of_its_users() {
    let store = Memory::new();
    let node = Node::new(&store, 22, alder());
    put(
        &node.client,
        &format!("{BASE}value/{CART}/192.168.50.21"),
        "459001",
    )
    .await;

    let allocation = node.during(node.allocate(CART)).await;

    assert_eq!(allocation.id, NumericIdentity::new(459_001));
    assert!(!allocation.is_new);
    assert_eq!(stored(&store)[0], format!("id/459001={CART}"));
}

#[tokio::test(start_paused = true)]
async fn slaves_of_other_labels_ids_and_clusters_do_not_count() {
    let store = Memory::new();
    let node = Node::new(&store, 21, alder());
    for (slave, value) in [
        ("k8s:app=cart;/k8s:b=c;/192.168.50.22", "459001"),
        ("k8s:app=cart;/192.168.50.23", "what?"),
        ("k8s:app=cart;/192.168.50.24", "300"),
        ("k8s:app=cart;/192.168.50.25", "459002"),
    ] {
        put(&node.client, &format!("{BASE}value/{slave}"), value).await;
    }
    put(&node.client, &format!("{BASE}id/459002"), "k8s:app=other;").await;

    let allocation = node.during(node.allocate("k8s:app=cart;")).await;

    assert!(allocation.is_new, "{allocation:?}");
    assert!(
        alder().contains(allocation.id) && allocation.id != NumericIdentity::new(459_002),
        "{allocation:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_id_that_another_takes_meanwhile_is_left_to_it() {
    let store = Memory::new();
    let range = IdentityRange::between(NumericIdentity::new(400), NumericIdentity::new(401));
    let node = Node::new(&store, 21, range);

    node.during(async {
        node.allocator.status().wait_synced().await;
        // Its watch has not delivered this.
        put(&node.client, &format!("{BASE}id/400"), "k8s:app=other;").await;
        assert_eq!(node.allocate(CART).await.id, NumericIdentity::new(401));

        let error = node.allocator.allocate(&labels("k8s:app=third;")).await;
        assert_eq!(
            error.expect_err("both are allocated").to_string(),
            "identity of `k8s:app=third;`: no id is free in 400-401"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_used_id_with_other_labels_is_a_conflict() {
    let store = Memory::new();
    let node = Node::new(&store, 21, one());
    node.during(node.allocate(CART)).await;
    put(&node.client, &format!("{BASE}id/496601"), "k8s:app=other;").await;

    node.during(tokio::time::sleep(MINUTE * 6)).await;

    let conflicts: Vec<_> = node.allocator.conflicts().into_iter().collect();
    assert_eq!(
        conflicts,
        [(NumericIdentity::new(496_601), labels("k8s:app=other;"))]
    );
    assert_eq!(stored(&store)[0], "id/496601=k8s:app=other;", "it is the other's");
    node.release(CART);
    assert!(node.allocator.conflicts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn labels_that_make_no_key_are_an_error() {
    let node = Node::new(&Memory::new(), 21, one());

    for (text, reason) in [
        ("", "they are empty"),
        ("a//b", "an element of their key would be empty"),
        ("a/", "an element of their key would be empty"),
    ] {
        let error = node.allocator.allocate(&labels(text)).await;
        assert_eq!(
            error.expect_err("they are invalid").to_string(),
            format!("labels `{text}` have no identity: {reason}")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_store_allocation_is_an_error() {
    let options = AllocatorOptions::new("alder", "192.168.50.21", one());
    let allocator = IdentityAllocator::new(Client::disabled(), Identities::new(), (), options);

    let error = allocator
        .allocate(&labels(CART))
        .await
        .expect_err("there is no store");

    assert_eq!(
        hive::error_chain(&error),
        format!(
            "identity of `{CART}` cannot be allocated: \
             kvstore: cannot get `{BASE}locks/{CART}`: no key-value store is configured"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn labels_that_are_used_again_before_their_slave_is_deleted_keep_it() {
    let store = Memory::new();
    let node = Node::new(&store, 21, one());

    node.during(async {
        node.allocate(CART).await;
        let before = stored(&store);
        for _ in 0..10 {
            node.release(CART);
            node.allocate(CART).await;
        }
        tokio::time::sleep(MINUTE).await;
        assert_eq!(stored(&store), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slave_is_deleted_although_its_labels_were_being_allocated_meanwhile() {
    let store = Memory::new();
    let node = Node::new(&store, 21, one());
    let other = RunningClient::full(Arc::new(store.clone()));

    node.during(async {
        node.allocate(CART).await;
        let path = IdentityKeys::default().lock(&labels(CART));
        let lock = other.lock(&path).await.expect("it is free");

        node.release(CART);
        let allocation = tokio::time::timeout(MINUTE / 2, node.allocate(CART)).await;

        assert!(allocation.is_err(), "the lock is held");
        lock.unlock().await.expect("it is released");
        tokio::time::sleep(MINUTE).await;
        assert_eq!(stored(&store), [format!("id/496601={CART}")]);
    })
    .await;
}
