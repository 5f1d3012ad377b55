// SPDX-License-Identifier: Apache-2.0

//! Time: leases, heartbeat, quorum. The clock is paused; what needs no time is in the contract of stores.

mod another_store;

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::error::QuorumError;
use crate::memory::Memory;
use crate::options::{LEASE_TTL, PageSize, RateLimit};
use crate::testing::{FaultyBackend, RunningClient, event_texts, options};

const MINUTE: Duration = Duration::from_secs(60);

async fn heartbeat(store: &Memory) {
    store
        .txn(Txn::one(Op::Put {
            key: crate::keys::HEARTBEAT.into(),
            value: Bytes::new(),
            lease: LeaseId::NONE,
        }))
        .await
        .expect("it is written");
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_as_long_as_the_driver_runs() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    client
        .put("a", "1", Lifetime::Leased)
        .await
        .expect("it is written");

    tokio::time::sleep(LEASE_TTL * 10).await;
    assert_eq!(store.items().len(), 1);
    assert_eq!(client.status().leases, 1);

    client.stop().await;
    tokio::time::sleep(LEASE_TTL / 2).await;
    assert_eq!(store.items().len(), 1, "a restart does not delete keys");
    tokio::time::sleep(LEASE_TTL).await;
    assert_eq!(store.items(), []);
}

#[tokio::test(start_paused = true)]
async fn leases_survive_a_partition_that_is_shorter_than_they_are() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let client = RunningClient::full(faulty.clone());
    client
        .put("a", "1", Lifetime::Leased)
        .await
        .expect("it is written");
    let lease = store.items()[0].lease;
    tokio::time::sleep(MINUTE * 4).await;

    faulty.partition(true);
    tokio::time::sleep(MINUTE * 9).await;
    faulty.partition(false);
    tokio::time::sleep(MINUTE * 30).await;

    assert_eq!(store.items()[0].lease, lease);
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_lease_that_ended_in_a_partition_are_reported() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let client = RunningClient::full(faulty.clone());
    for key in ["x/a", "x/b", "y/a"] {
        client
            .put(key, "1", Lifetime::Leased)
            .await
            .expect("it is written");
    }
    let mut lost = client.lost_keys("x/");
    let started = Instant::now();

    faulty.partition(true);
    let keys = lost.next().await;
    faulty.partition(false);

    let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
    assert_eq!(names, ["x/a", "x/b"]);
    assert!((LEASE_TTL * 2 / 3..=LEASE_TTL).contains(&started.elapsed()));
    tokio::time::sleep(LEASE_TTL).await;
    client
        .put("x/a", "2", Lifetime::Leased)
        .await
        .expect("it is written again");
    assert_eq!(store.items().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_so_many_keys() {
    let store = Memory::new();
    let client = RunningClient::new(
        Arc::new(store.clone()),
        ClientOptions {
            keys_per_lease: 2,
            ..options(ClientKind::Full)
        },
    );
    for key in ["a", "b", "c"] {
        client
            .put(key, "", Lifetime::Leased)
            .await
            .expect("it is written");
    }
    let leases: Vec<LeaseId> = store.items().iter().map(|item| item.lease).collect();
    assert_eq!(leases[0], leases[1]);
    assert_ne!(leases[0], leases[2]);
    assert_eq!(client.status().leases, 2);

    client.delete("a").await.expect("it is deleted");
    client
        .put("d", "", Lifetime::Leased)
        .await
        .expect("it is written");
    client
        .put("e", "", Lifetime::Leased)
        .await
        .expect("it is written");

    assert_eq!(client.status().leases, 2, "the slot is used again");
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_an_error_that_names_the_key() {
    let faulty = FaultyBackend::new(Arc::new(Memory::new()));
    let client = RunningClient::full(faulty.clone());
    client.wait_connected().await;
    faulty.fail(7, 1.0);

    let error = client
        .put("a/b", "1", Lifetime::Permanent)
        .await
        .expect_err("it fails");

    assert_eq!(error.to_string(), "kvstore: cannot write `a/b`");
    assert!(error.is_transient());
}

#[tokio::test(start_paused = true)]
async fn watchers_converge_on_a_store_that_fails_often() {
    for seed in 0..20 {
        let store = Memory::new();
        let faulty = FaultyBackend::new(Arc::new(store.clone()));
        let client = RunningClient::mesh(faulty.clone());
        faulty.fail(seed, 0.5);
        let mut watcher = client.list_and_watch("k/");
        let mut known = std::collections::BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50 {
            let key: Key = format!("k/{}", random.u8(..8)).into();
            let op = if random.bool() {
                Op::Put {
                    key,
                    value: vec![random.u8(..)].into(),
                    lease: LeaseId::NONE,
                }
            } else {
                Op::Delete(KeyRange::key(&key))
            };
            store.txn(Txn::one(op)).await.expect("it is done");
            if random.u8(..10) == 0 {
                faulty.cut_watches();
            }
            if random.u8(..10) == 0 {
                // It may be compacted already.
                let _ = store.compact(store.header().revision).await;
            }
            if random.bool() {
                let _ = tokio::time::timeout(Duration::from_millis(1), async {
                    apply(&mut known, watcher.next().await);
                })
                .await;
            }
        }
        faulty.fail(seed, 0.0);
        faulty.cut_watches();
        let expected: std::collections::BTreeMap<Key, Bytes> = store
            .items()
            .into_iter()
            .map(|item| (item.key, item.value))
            .collect();
        let converged = async {
            while known != expected {
                apply(&mut known, watcher.next().await);
            }
        };
        tokio::time::timeout(MINUTE * 10, converged)
            .await
            .unwrap_or_else(|_| panic!("seed {seed}: the watcher does not converge"));
    }
}

fn apply(known: &mut std::collections::BTreeMap<Key, Bytes>, event: Event) {
    match event {
        Event::Create(item) => {
            assert_eq!(known.insert(item.key, item.value), None, "create of a known key");
        }
        Event::Modify(item) => {
            known
                .insert(item.key, item.value)
                .expect("modify of an unknown key");
        }
        Event::Delete(key) => {
            known.remove(&key).expect("delete of an unknown key");
        }
        Event::ListDone => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_starts_anew_when_the_store_does() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    for key in ["w/a", "w/b"] {
        client
            .put(key, "1", Lifetime::Permanent)
            .await
            .expect("it is written");
    }
    let mut watcher = client.list_and_watch("w/");
    assert_eq!(event_texts(&mut watcher, 3).await[2], "listDone");

    store.reset();
    client
        .put("w/b", "2", Lifetime::Permanent)
        .await
        .expect("it is written");

    let mut events = event_texts(&mut watcher, 2).await;
    events.sort();
    assert_eq!(events, ["delete w/a", "modify w/b=2"]);
}

#[tokio::test(start_paused = true)]
async fn leased_keys_are_lost_when_the_own_store_is_restored_or_set_up_anew() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    let put = async |key: &str| {
        let put = client.put(key, "1", Lifetime::Leased).await;
        put.expect("it is written");
    };
    put("a").await;
    let old = store.snapshot();
    put("b").await;
    let (mut lost, replaced) = (client.lost_keys(""), client.replaced());

    // A client in between notices nothing: what it sees is not older than what it saw.
    let other = RunningClient::full(Arc::new(store.clone()));
    let _ = other.get("a").await;
    let none = tokio::time::timeout(MINUTE, lost.next()).await;
    assert!(none.is_err(), "{none:?}");

    store.restore(&old);
    let keys = tokio::time::timeout(MINUTE, lost.next()).await;
    assert_eq!(
        keys.expect("a check notices it"),
        ["a".into(), "b".into()] as [Key; 2]
    );
    put("b").await;
    assert_eq!(*replaced.borrow(), 1);

    store.reset();
    let keys = tokio::time::timeout(MINUTE, lost.next()).await;
    assert_eq!(keys.expect("a check notices it"), ["b".into()] as [Key; 1]);
    assert_eq!(*replaced.borrow(), 2);
    assert!(other.status().failure.is_none(), "the own store may be replaced");
}

#[tokio::test(start_paused = true)]
async fn a_raw_watcher_reports_what_is_listed_and_leaves_it_to_its_consumer_to_compare() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let client = RunningClient::full(faulty.clone());
    let put = async |key: &str| {
        let put = client.put(key, "1", Lifetime::Permanent).await;
        put.expect("it is written");
    };
    for key in ["x/a", "x/b", "y/a"] {
        put(key).await;
    }
    let mut watcher = client.list_and_watch_raw("x/");
    let mut next = async |count: usize| {
        let mut texts = Vec::new();
        for _ in 0..count {
            texts.push(match watcher.next().await {
                RawEvent::ListStarted => "list".to_owned(),
                RawEvent::Put(item) => format!("put {}", item.key),
                RawEvent::Delete(key) => format!("delete {key}"),
                RawEvent::Listed => "listed".to_owned(),
            });
        }
        texts
    };

    assert_eq!(next(4).await, ["list", "put x/a", "put x/b", "listed"]);
    client.delete("x/a").await.expect("it is deleted");
    put("x/b").await;
    assert_eq!(next(2).await, ["delete x/a", "put x/b"]);

    faulty.cut_watches();
    client.delete("x/b").await.expect("it is deleted");
    put("x/c").await;
    let revision = store.header().revision;
    store.compact(revision).await.expect("it is compacted");
    assert_eq!(next(3).await, ["list", "put x/c", "listed"]);
}

/// The revision of the restored store is newer than all that this client has seen.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_others_have_written_to_is_recognized_by_missing_writes() {
    for (deletes, compacts) in [(false, false), (true, false), (false, true)] {
        let store = Memory::new();
        let client = RunningClient::full(Arc::new(store.clone()));
        let put = async |client: &RunningClient, key: &str, value: &str| {
            let put = client.put(key, value.to_owned(), Lifetime::Leased).await;
            put.expect("it is written");
        };
        let write = async |key: &str| {
            let put = Op::Put {
                key: key.into(),
                value: "x".into(),
                lease: LeaseId::NONE,
            };
            store.txn(Txn::one(put)).await.expect("it is written");
        };
        put(&client, "a", "1").await;
        let old = store.snapshot();
        if deletes {
            assert!(client.delete("a").await.expect("it is deleted"));
        } else {
            put(&client, "a", "2").await;
        }
        let (mut lost, replaced) = (client.lost_keys(""), client.replaced());
        let before = store.header().revision;
        tokio::time::sleep(Duration::from_secs(1)).await;

        store.restore(&old);
        while store.header().revision <= before.next() {
            write("others/a").await;
        }
        // Even if this client writes before it looks.
        put(&client, "b", "1").await;
        write("others/b").await;
        if compacts {
            store
                .compact(store.header().revision)
                .await
                .expect("it is compacted");
        }

        let keys = tokio::time::timeout(MINUTE, lost.next()).await;
        assert!(keys.is_ok(), "a check notices it: {deletes}, {compacts}");
        assert_eq!(*replaced.borrow(), 1);
        // That was all.
        put(&client, "a", "3").await;
        tokio::time::sleep(MINUTE * 3).await;
        assert_eq!(*replaced.borrow(), 1);
    }
}

/// Whatever others do to the keys of a client, its store is not replaced.
#[tokio::test(start_paused = true)]
async fn keys_that_others_change_are_no_sign_of_another_store() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    let other = RunningClient::mesh(Arc::new(store.clone()));
    let replaced = client.replaced();
    for at in 0..20 {
        let (key, gone) = (format!("k{at}"), format!("g{at}"));
        for key in [&key, &gone] {
            client
                .put(key, "1", Lifetime::Leased)
                .await
                .expect("it is written");
        }
        client.delete(&gone).await.expect("it is deleted");
        if at % 2 == 0 {
            other.delete(&key).await.expect("it is deleted");
            other
                .put(&gone, "2", Lifetime::Permanent)
                .await
                .expect("it is written");
        } else {
            other
                .put(&key, "2", Lifetime::Permanent)
                .await
                .expect("it is written");
        }
        if at % 5 == 0 {
            store
                .compact(store.header().revision)
                .await
                .expect("it is compacted");
        }
        tokio::time::sleep(Duration::from_secs(7)).await;
    }

    tokio::time::sleep(MINUTE * 3).await;

    assert_eq!(*replaced.borrow(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mesh_client_fails_when_another_store_answers() {
    let store = Memory::new();
    let client = RunningClient::mesh(Arc::new(store.clone()));
    client.wait_connected().await;
    let id = store.header().cluster_id;
    assert!(client.status().is_healthy());
    assert_eq!(
        client.status().to_string(),
        format!(
            "memory: 1/1 connected, leases=0, lock leases=0, has-quorum=true: \
             endpoint status checks are disabled, ID: {id:x}"
        )
    );

    store.reset();
    let error = client.get("a").await.expect_err("another store answers");

    assert!(matches!(
        error.backend(),
        Some(BackendError::ClusterChanged { .. })
    ));
    let failure = client.failed().await;
    assert_eq!(failure.to_string(), "kvstore `etcd`: another store answers");
    assert!(!client.status().is_healthy());
}

#[tokio::test(start_paused = true)]
async fn a_mesh_client_fails_without_heartbeat() {
    let store = Memory::new();
    heartbeat(&store).await;
    let client = RunningClient::mesh(Arc::new(store.clone()));
    client.wait_connected().await;
    let connected = Instant::now();
    for _ in 0..5 {
        tokio::time::sleep(MINUTE).await;
        heartbeat(&store).await;
    }
    assert!(client.status().is_healthy());

    let failure = client.failed().await;

    // 2 minutes of silence, then two more checks than may fail.
    let silent = connected.elapsed() - MINUTE * 5;
    assert!((MINUTE * 2..MINUTE * 3).contains(&silent), "{silent:?}");
    let ConnectionError::Quorum {
        times: 3,
        cause: QuorumError::Heartbeat { .. },
        ..
    } = failure
    else {
        panic!("{failure:?}");
    };
    assert_eq!(
        failure.to_string(),
        "kvstore `etcd`: quorum check failed 3 times in a row"
    );
    let text = client.status().to_string();
    assert!(
        text.starts_with("memory: 0/1 connected, leases=0, lock leases=0, has-quorum=1"),
        "{text}"
    );
    assert!(
        text.contains("since last heartbeat update has been received, consecutive-errors=3"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_mesh_client_shows_within_seconds_that_the_store_is_gone() {
    let store = Memory::new();
    heartbeat(&store).await;
    let faulty = FaultyBackend::new(Arc::new(store));
    let client = RunningClient::mesh(faulty.clone());
    client.wait_connected().await;

    faulty.fail(0, 1.0);
    faulty.cut_watches();
    tokio::time::sleep(Duration::from_secs(5)).await;

    let status = client.status();
    assert!(!status.is_healthy());
    let text = status.to_string();
    assert!(
        text.starts_with(
            "memory: 0/1 connected, leases=0, lock leases=0, has-quorum=cannot watch the heartbeat: the store failed"
        ),
        "{text}"
    );

    faulty.fail(0, 0.0);
    tokio::time::sleep(Duration::from_secs(5)).await;

    let status = client.status();
    assert!(status.is_healthy(), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_full_client_fails_without_quorum_and_recovers() {
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let client = RunningClient::full(faulty.clone());
    client.wait_connected().await;
    tokio::time::sleep(MINUTE).await;
    let text = client.status().to_string();
    assert!(
        text.starts_with("memory: 1/1 connected, leases=0, lock leases=1, has-quorum=true: memory:"),
        "{text}"
    );
    assert!(text.ends_with(" - 0.1.0 (Leader)"), "{text}");

    faulty.partition(true);
    let failure = client.failed().await;
    assert!(
        matches!(
            failure,
            ConnectionError::Quorum { .. } | ConnectionError::NoEndpoint { .. }
        ),
        "{failure:?}"
    );
    assert!(!client.status().is_healthy());

    faulty.partition(false);
    tokio::time::sleep(MINUTE).await;
    assert!(client.status().is_healthy(), "{}", client.status());
    assert!(client.status().failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_connect_says_so() {
    let faulty = FaultyBackend::new(Arc::new(Memory::new()));
    faulty.partition(true);
    let client = RunningClient::full(faulty.clone());
    let started = Instant::now();

    let failure = client.failed().await;

    assert_eq!(started.elapsed(), Duration::from_secs(15 * 60));
    assert_eq!(failure.to_string(), "kvstore `etcd`: not connected within 900s");
    assert!(std::error::Error::source(&failure).is_some());
    let status = client.status().to_string();
    let waiting = "Waiting for initial connection to be established: no answer";
    assert!(status.starts_with(waiting), "{status}");
    faulty.partition(false);
    client.wait_connected().await;
    assert!(client.status().failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn locks_end_with_the_client() {
    let store = Memory::new();
    let first = RunningClient::full(Arc::new(store.clone()));
    let second = RunningClient::full(Arc::new(store.clone()));
    let _held = first.lock("l").await.expect("it is locked");
    let started = Instant::now();

    first.stop().await;
    let lock = second.lock("l").await.expect("it is locked");

    assert!(
        started.elapsed() < Duration::from_secs(1),
        "it is released at once"
    );
    lock.unlock().await.expect("it is unlocked");
}

#[tokio::test(start_paused = true)]
async fn locks_of_a_dead_client_end_with_their_lease() {
    let store = Memory::new();
    let first = RunningClient::full(Arc::new(store.clone()));
    let second = RunningClient::full(Arc::new(store.clone()));
    let held = first.lock("l").await.expect("it is locked");
    let started = Instant::now();

    // No driver, no renewal, no release.
    std::mem::forget(held);
    drop(first);
    let lock = second.lock("l").await.expect("it is locked");

    let waited = started.elapsed();
    assert!(
        (Duration::from_secs(15)..=Duration::from_secs(26)).contains(&waited),
        "{waited:?}"
    );
    lock.unlock().await.expect("it is unlocked");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_taken_again_with_another_lease() {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    let old = client.lock("l").await.expect("it is locked");
    let lease = store.items()[0].lease;
    store.revoke_lease(lease).await.expect("it is revoked");
    drop(old);

    let new = client.lock("l").await.expect("it is locked");

    assert_ne!(new.key(), format!("l/{lease}"));
    assert_eq!(store.items().len(), 1);
    new.unlock().await.expect("it is unlocked");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_one_operation_of_the_rate_limit() {
    let store = Memory::new();
    let client = RunningClient::new(
        Arc::new(store.clone()),
        ClientOptions {
            page: PageSize::Keys(1),
            rate: RateLimit {
                qps: 1,
                bootstrap_qps: None,
                max_inflight: 1,
            },
            ..options(ClientKind::Mesh)
        },
    );
    client.wait_connected().await;
    tokio::time::sleep(MINUTE).await;
    let started = Instant::now();
    for key in ["p/a", "p/b", "p/c"] {
        client
            .put(key, "", Lifetime::Permanent)
            .await
            .expect("it is written");
    }
    assert_eq!(started.elapsed().as_secs(), 2);
    tokio::time::sleep(MINUTE).await;

    let started = Instant::now();
    assert_eq!(client.list("p/").await.expect("it is read").items.len(), 3);
    assert!(started.elapsed() < Duration::from_millis(10));
    // The consumer of a list may use the client: the list holds no place meanwhile.
    let mut watcher = client.list_and_watch("p/");
    for _ in 0..3 {
        watcher.next().await;
        client.get("p/a").await.expect("it is read");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_of_remote_clusters_take_over_options_but_the_bootstrap() {
    let mut own = ClientOptions::new("etcd", ClientKind::Full);
    own.rate = RateLimit {
        qps: 100,
        bootstrap_qps: Some(10_000),
        max_inflight: 10,
    };

    let remote = own.for_remote_cluster("alder");

    assert_eq!(
        (remote.name.as_str(), remote.kind),
        ("etcd-alder", ClientKind::Mesh)
    );
    assert_eq!(
        (
            remote.rate.qps,
            remote.rate.bootstrap_qps,
            remote.rate.max_inflight
        ),
        (100, None, 10)
    );
}
