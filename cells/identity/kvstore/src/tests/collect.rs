// SPDX-License-Identifier: Apache-2.0

use skep_kvstore_client::testing::FaultyBackend;
use skep_kvstore_client::{Backend, ClientKind, ClientOptions, Lifetime, Lock};

use super::*;
use skep_kvstore_store::testing::{delete, put};

fn gc(client: &Client) -> IdentityGc {
    IdentityGc::new(client.clone(), IdentityGcOptions::new(alder()))
}

async fn round(gc: &mut IdentityGc) -> [usize; 4] {
    let GcRound {
        used,
        marked,
        deleted,
        failed,
        free: _,
    } = gc.round().await.expect("the store works");
    [used, marked, deleted, failed]
}

fn client(store: &Memory) -> RunningClient {
    RunningClient::full(Arc::new(store.clone()))
}

async fn lock(client: &Client, path: &str) -> Lock {
    client
        .lock(&format!("{BASE}locks/{path}"))
        .await
        .expect("it is free")
}

#[tokio::test(start_paused = true)]
async fn unused_identities_of_the_cluster_go_in_the_second_round() {
    let store = Memory::new();
    let client = client(&store);
    let mut gc = gc(&client);
    for (key, value) in [
        ("id/459001", "k8s:app=used;"),
        ("id/459002", "k8s:app=unused;"),
        ("id/459003", "k8s:app=otherwise-used;"),
        ("id/300", "k8s:app=other-cluster;"),
        ("id/what", "k8s:app=no-number;"),
        ("value/k8s:app=used;/192.168.50.21", "459001"),
        ("value/k8s:app=otherwise-used;/192.168.50.21", "459009"),
    ] {
        put(&client, &format!("{BASE}{key}"), value).await;
    }

    assert_eq!(round(&mut gc).await, [1, 2, 0, 0]);
    assert_eq!(stored(&store).len(), 7);
    assert_eq!(round(&mut gc).await, [1, 0, 2, 0]);
    assert_eq!(round(&mut gc).await, [1, 0, 0, 0]);

    let masters: Vec<String> = stored(&store)
        .into_iter()
        .filter(|item| item.starts_with("id/"))
        .collect();
    assert_eq!(
        masters,
        [
            "id/300=k8s:app=other-cluster;",
            "id/459001=k8s:app=used;",
            "id/what=k8s:app=no-number;"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn identities_that_are_used_or_written_again_begin_anew() {
    let store = Memory::new();
    let client = client(&store);
    let mut gc = gc(&client);
    let master = format!("{BASE}id/459001");
    let slave = format!("{BASE}value/k8s:app=cart;/192.168.50.21");
    put(&client, &master, "k8s:app=cart;").await;
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0]);

    put(&client, &slave, "459001").await;
    assert_eq!(round(&mut gc).await, [1, 0, 0, 0]);
    delete(&client, &slave).await;
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0]);

    delete(&client, &master).await;
    put(&client, &master, "k8s:app=cart;").await;
    assert_eq!(
        round(&mut gc).await,
        [0, 1, 0, 0],
        "it is another key than in the last round"
    );
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0], "two more rounds");
    assert_eq!(round(&mut gc).await, [0, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_used_identity_survives_a_collection_that_overlaps_its_allocation() {
    let store = Memory::new();
    let node = Node::new(&store, 21, one());
    let other = client(&store);
    put(&other, &format!("{BASE}id/496601"), CART).await;
    let mut gc = IdentityGc::new(other.clone(), IdentityGcOptions::new(one()));
    gc.round().await.expect("the store works");

    node.during(async {
        node.allocator.status().wait_synced().await;
        let (allocation, collected) = tokio::join!(node.allocate(CART), gc.round());
        collected.expect("the store works");
        tokio::time::sleep(MINUTE).await;

        assert_eq!(allocation.id, NumericIdentity::new(496_601));
        assert_eq!(
            stored(&store),
            [
                format!("id/496601={CART}"),
                format!("value/{CART}/192.168.50.21=496601")
            ]
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_collected_is_counted_and_keeps_its_mark() {
    let store = Memory::new();
    let (client, other) = (client(&store), client(&store));
    let mut gc = gc(&client);
    put(&client, &format!("{BASE}id/459001"), "k8s:app=cart;").await;
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0]);

    let lock = lock(&other, "id/459001").await;
    assert_eq!(round(&mut gc).await, [0, 0, 0, 1]);
    lock.unlock().await.expect("it is released");

    assert_eq!(round(&mut gc).await, [0, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn locks_with_the_same_holder_in_two_rounds_are_deleted() {
    let store = Memory::new();
    let (client, other) = (client(&store), client(&store));
    let mut sweep = LockSweep::new(client.clone(), IdentityKeys::default());
    let held = lock(&other, "id/459001").await;
    let brief = lock(&other, CART).await;
    let mut waits = std::pin::pin!(lock(&client, "id/459001"));
    assert!(futures::poll!(&mut waits).is_pending());
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(sweep.round().await.expect("the store works"), 0);
    brief.unlock().await.expect("it is released");
    let _brief = lock(&other, CART).await;
    assert_eq!(sweep.round().await.expect("the store works"), 1);

    let _next = waits.await;
    let lost = other
        .locked(&held)
        .put("a", "", Lifetime::Permanent)
        .await
        .expect_err("the lock is lost");
    assert!(lost.is_lock_lost());
}

/// As many as may be allocated while the last round's are deleted: 40 a second.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_delays_only_its_own_identity_and_the_rate_is_kept() {
    let store = Memory::new();
    let (client, other) = (client(&store), client(&store));
    let mut gc = gc(&client);
    for id in 459_000..461_400 {
        put(&client, &format!("{BASE}id/{id}"), &format!("k8s:app={id};")).await;
    }
    assert_eq!(round(&mut gc).await, [0, 2400, 0, 0]);
    let _held = lock(&other, "id/459001").await;

    let collected = tokio::select! {
        found = round(&mut gc) => found,
        () = async {
            tokio::time::sleep(Duration::from_millis(1003)).await;
            let deleted = 2400 - stored(&store).len();
            assert!((40..=43).contains(&deleted), "{deleted} after a second: the rate is 2500 a minute");
            tokio::time::sleep(Duration::from_secs(58)).await;
            assert_eq!(stored(&store), ["id/459001=k8s:app=459001;"], "the others are deleted");
            std::future::pending().await
        } => unreachable!("it is pending"),
    };

    assert_eq!(collected, [0, 0, 2399, 1]);
}

#[tokio::test(start_paused = true)]
async fn rounds_report_how_many_ids_are_free() {
    let store = Memory::new();
    let client = client(&store);
    let mut gc = gc(&client);
    put(&client, &format!("{BASE}id/459001"), "k8s:app=cart;").await;
    put(&client, &format!("{BASE}id/300"), "k8s:app=other-cluster;").await;

    let mut free = Vec::new();
    for _ in 0..2 {
        free.push(gc.round().await.expect("the store works").free);
    }

    assert_eq!(free, [65_535, 65_536]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_keeps_the_marks() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let client = RunningClient::new(
        Arc::clone(&faulty) as Arc<dyn Backend>,
        skep_kvstore_client::testing::options(ClientKind::Full),
    );
    let mut gc = gc(&client);
    put(&client, &format!("{BASE}id/459001"), "k8s:app=cart;").await;
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0]);

    faulty.fail(1, 1.0);
    gc.round().await.expect_err("the store fails");
    faulty.fail(1, 0.0);

    assert_eq!(round(&mut gc).await, [0, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_is_used_since_the_list_is_kept() {
    let store = Memory::new();
    let (client, other) = (client(&store), client(&store));
    let mut gc = gc(&client);
    put(&client, &format!("{BASE}id/459001"), "k8s:app=cart;").await;
    assert_eq!(round(&mut gc).await, [0, 1, 0, 0]);
    let held = lock(&other, "id/459001").await;

    let (collected, ()) = tokio::join!(round(&mut gc), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        put(
            &other,
            &format!("{BASE}value/k8s:app=cart;/192.168.50.21"),
            "459001",
        )
        .await;
        held.unlock().await.expect("it is released");
    });

    assert_eq!(collected, [1, 0, 0, 0]);
    assert_eq!(stored(&store).len(), 2);
}

/// At the default rates of the client, of which every operation counts: as many label sets as 40 a second make in the
/// interval between two rounds.
#[tokio::test(start_paused = true)]
async fn a_round_deletes_what_forty_new_label_sets_a_second_leave_behind() {
    let store = Memory::new();
    let node = client(&store);
    let options = ClientOptions::new("etcd", ClientKind::Full);
    let client = RunningClient::new(Arc::new(store.clone()), options);
    let mut gc = gc(&client);
    for id in 459_000..495_000 {
        put(&node, &format!("{BASE}id/{id}"), &format!("k8s:app={id};")).await;
    }
    assert_eq!(round(&mut gc).await, [0, 36_000, 0, 0]);

    let began = tokio::time::Instant::now();
    assert_eq!(round(&mut gc).await, [0, 0, 36_000, 0]);

    assert!(began.elapsed() < 15 * MINUTE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_used_meanwhile_does_not_keep_the_others_of_its_batch() {
    let store = Memory::new();
    let (client, other) = (client(&store), client(&store));
    let mut options = IdentityGcOptions::new(alder());
    options.rate_limit = 1_000_000;
    let mut gc = IdentityGc::new(client.clone(), options);
    for id in 459_000..459_020 {
        put(&client, &format!("{BASE}id/{id}"), &format!("k8s:app={id};")).await;
    }
    assert_eq!(round(&mut gc).await, [0, 20, 0, 0]);
    let held = lock(&other, "id/459003").await;

    let (collected, ()) = tokio::join!(round(&mut gc), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        put(
            &other,
            &format!("{BASE}value/k8s:app=459003;/192.168.50.21"),
            "459003",
        )
        .await;
        held.unlock().await.expect("it is released");
    });

    assert_eq!(collected, [1, 0, 19, 0]);
}
