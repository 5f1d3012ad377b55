// SPDX-License-Identifier: Apache-2.0

//! What clients do on a store.

use super::*;
use crate::client::Event;
use crate::error::Error;
use crate::options::{ClientKind, ClientOptions, PageSize};
use crate::testing::{FaultyBackend, RunningClient, event_text, event_texts, next_event, options};
use crate::types::Lifetime::{Leased, Permanent};

/// Reads see what was written; leased keys have a lease, others none.
pub async fn clients_write_and_read(store: Store) {
    let client = RunningClient::full(store);
    assert_eq!(client.get("client/a").await.expect("it is read"), None);

    client
        .put("client/a", "1", Permanent)
        .await
        .expect("it is written");
    client.put("client/b", "2", Leased).await.expect("it is written");

    let a = client
        .get("client/a")
        .await
        .expect("it is read")
        .expect("it exists");
    let b = client
        .get("client/b")
        .await
        .expect("it is read")
        .expect("it exists");
    assert_eq!((a.value.as_ref(), a.lease), (&b"1"[..], LeaseId::NONE));
    assert_eq!(b.value, "2");
    assert_ne!(b.lease, LeaseId::NONE);
    assert_eq!(client.status().leases, 1);
    assert!(client.delete("client/a").await.expect("it is deleted"));
    assert!(!client.delete("client/a").await.expect("it is gone"));
    assert_eq!(client.delete_prefix("client/").await.expect("it is deleted"), 1);
    assert_eq!(client.list("client/").await.expect("it is read").items, []);
}

/// A value is written if it differs, or if its lease does.
pub async fn clients_write_what_differs(store: Store) {
    let client = RunningClient::full(store);
    let put = async |value: &'static str, lifetime| {
        client
            .put_if_different("differ/a", value, lifetime)
            .await
            .expect("it is written")
    };

    assert!(put("1", Leased).await);
    assert!(!put("1", Leased).await);
    assert!(put("2", Leased).await);
    assert!(put("2", Permanent).await, "the lease differs");
    assert!(!put("2", Permanent).await);

    let lock = client.lock("differ-lock").await.expect("it is locked");
    let locked = client.locked(&lock);
    assert!(
        !locked
            .put_if_different("differ/a", "2", Permanent)
            .await
            .expect("it is read")
    );
    assert!(
        locked
            .put_if_different("differ/a", "2", Leased)
            .await
            .expect("it is written")
    );
    assert!(
        !locked
            .put_if_different("differ/a", "2", Leased)
            .await
            .expect("it is read")
    );
    let item = client
        .get("differ/a")
        .await
        .expect("it is read")
        .expect("it exists");
    assert_ne!(item.lease, LeaseId::NONE);
    for (value, is_different) in [("1", true), ("1", false), ("2", true)] {
        let written = locked.put_if_different("differ/b", value, Permanent).await;
        assert_eq!(written.expect("it is read"), is_different, "{value}");
        let item = client.get("differ/b").await.expect("it is read");
        assert_eq!(item.expect("it exists").value, value);
    }
    lock.unlock().await.expect("it is unlocked");
}

/// A key and its first user are created together, unless one exists or another uses it.
pub async fn clients_create_a_key_with_its_user(store: Store) {
    let client = RunningClient::full(store.clone());
    let lock = client.lock("used-lock").await.expect("it is locked");
    let locked = client.locked(&lock);
    let create = async |used: &str, user: &str| {
        let users = "used/users/";
        let created = locked
            .create_used((used, "labels"), (&format!("{users}{user}"), "1"), users)
            .await;
        created.expect("the store works")
    };

    assert!(create("used/a", "x").await);
    let before = list(&*store, "used/").await;
    assert_eq!(names(&before), ["used/a", "used/users/x"]);
    assert_eq!(before.items[0].lease, LeaseId::NONE);
    assert_ne!(before.items[1].lease, LeaseId::NONE);

    assert!(!create("used/b", "x").await, "the user exists");
    assert!(!create("used/b", "y").await, "there is another user");
    assert!(client.delete("used/users/x").await.expect("it is deleted"));
    assert!(!create("used/a", "y").await, "the key exists");
    assert_eq!(names(&list(&*store, "used/").await), ["used/a"]);
    assert!(create("used/b", "y").await);
    lock.unlock().await.expect("it is unlocked");
}

/// Keys are created once, and deleted only as they were read.
pub async fn clients_create_and_delete_what_is_as_they_know_it(store: Store) {
    let client = RunningClient::full(store);

    assert!(
        client
            .create("create/a", "1", Leased)
            .await
            .expect("it is created")
    );
    assert!(!client.create("create/a", "2", Leased).await.expect("it exists"));
    let old = client
        .get("create/a")
        .await
        .expect("it is read")
        .expect("it exists");
    assert_eq!(old.value, "1");
    client.put("create/a", "3", Leased).await.expect("it is written");

    assert!(!client.delete_if_unchanged(&old).await.expect("it has changed"));
    let new = client
        .get("create/a")
        .await
        .expect("it is read")
        .expect("it exists");
    assert!(client.delete_if_unchanged(&new).await.expect("it is deleted"));
    assert_eq!(client.get("create/a").await.expect("it is read"), None);
}

/// A list of several pages is complete and sorted.
pub async fn clients_read_lists_in_pages(store: Store) {
    let client = RunningClient::new(
        store,
        ClientOptions {
            page: PageSize::Keys(3),
            ..options(ClientKind::Full)
        },
    );
    for at in 0..10 {
        let key = format!("paged/{at}");
        client
            .put(&key, at.to_string(), Permanent)
            .await
            .expect("it is written");
    }

    let listing = client.list("paged/").await.expect("it is read");

    let values: Vec<_> = listing.items.iter().map(|item| item.value.clone()).collect();
    assert_eq!(values, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert!(listing.header.revision >= listing.items[9].mod_revision);
}

/// When a lease ends, whoever wrote its keys learns which, and writes them with a new lease.
pub async fn lost_leases_are_reported_and_replaced(store: Store) {
    let client = RunningClient::full(store.clone());
    for key in ["lost/x/a", "lost/x/b", "lost/y/a"] {
        client.put(key, "1", Leased).await.expect("it is written");
    }
    let mut lost = client.lost_keys("lost/x/");
    let old = client
        .get("lost/x/a")
        .await
        .expect("it is read")
        .expect("it exists")
        .lease;
    store.revoke_lease(old).await.expect("the lease is revoked");

    client
        .put("lost/y/a", "2", Leased)
        .await
        .expect("it is written with another lease");

    let keys = tokio::time::timeout(PATIENCE, lost.next())
        .await
        .expect("the keys are reported");
    assert_eq!(
        keys.iter().map(|key| &**key).collect::<Vec<_>>(),
        ["lost/x/a", "lost/x/b"]
    );
    for key in keys {
        client.put(&key, "2", Leased).await.expect("it is written again");
    }
    let items = client.list("lost/").await.expect("it is read").items;
    assert_eq!(items.len(), 3);
    assert!(
        items
            .iter()
            .all(|item| item.lease == items[0].lease && item.lease != old)
    );
}

/// One holds the lock at a time, within a client and between clients; the next one gets it when it is released.
pub async fn locks_exclude_each_other(store: Store) {
    let clients = [
        RunningClient::full(store.clone()),
        RunningClient::full(store.clone()),
        RunningClient::full(store.clone()),
    ];
    let increment = async |client: &RunningClient| {
        for _ in 0..5 {
            let lock = client.lock("exclude/lock").await.expect("it is locked");
            let count = client.get("exclude/count").await.expect("it is read");
            let count: u32 = count.map_or(0, |item| {
                String::from_utf8_lossy(&item.value)
                    .parse()
                    .expect("it is a number")
            });
            tokio::task::yield_now().await;
            client
                .locked(&lock)
                .put("exclude/count", (count + 1).to_string(), Permanent)
                .await
                .expect("it is written");
            lock.unlock().await.expect("it is unlocked");
        }
    };

    tokio::join!(
        increment(&clients[0]),
        increment(&clients[0]),
        increment(&clients[1]),
        increment(&clients[2]),
    );

    let count = get(&*store, "exclude/count").await.expect("it exists");
    assert_eq!(count.value, "20");
    assert_eq!(names(&list(&*store, "exclude/lock/").await), Vec::<&str>::new());
}

/// A lock that is dropped is released by the driver.
pub async fn locks_are_released_when_dropped(store: Store) {
    let first = RunningClient::full(store.clone());
    let second = RunningClient::full(store.clone());
    let lock = first.lock("drop/lock").await.expect("it is locked");
    assert_eq!(lock.path(), "drop/lock");
    let present = list(&*store, "drop/lock/").await;
    assert_eq!(names(&present), [lock.key()]);
    assert_eq!(lock.key(), format!("drop/lock/{}", present.items[0].lease));

    drop(lock);

    let lock = tokio::time::timeout(PATIENCE, second.lock("drop/lock"))
        .await
        .expect("it is released")
        .expect("it is locked");
    lock.unlock().await.expect("it is unlocked");
}

/// Who has lost a lock does nothing under it.
pub async fn locked_operations_need_the_lock(store: Store) {
    let client = RunningClient::full(store.clone());
    client
        .put("guard/a", "1", Permanent)
        .await
        .expect("it is written");
    let lock = client.lock("guard/lock").await.expect("it is locked");
    let locked = client.locked(&lock);
    assert!(!locked.create("guard/a", "2", Permanent).await.expect("it exists"));
    assert!(
        locked
            .create("guard/b", "2", Permanent)
            .await
            .expect("it is created")
    );
    assert!(locked.delete("guard/b").await.expect("it is deleted"));
    let item = locked
        .get("guard/a")
        .await
        .expect("it is read")
        .expect("it exists");
    assert_eq!(
        locked.list("guard/a").await.expect("it is read").items,
        std::slice::from_ref(&item)
    );

    delete(&*store, lock.key()).await;

    let results = [
        locked.get("guard/a").await.map(drop),
        locked.list("guard/").await.map(drop),
        locked.put("guard/a", "2", Permanent).await,
        locked.put("guard/a", "2", Leased).await,
        locked.put_if_different("guard/a", "2", Permanent).await.map(drop),
        locked.put_if_different("guard/c", "2", Leased).await.map(drop),
        locked.create("guard/c", "2", Permanent).await.map(drop),
        locked.create("guard/a", "2", Permanent).await.map(drop),
        locked
            .create_used(("guard/c", "2"), ("guard/users/a", "1"), "guard/users/")
            .await
            .map(drop),
        locked.delete("guard/a").await.map(drop),
        locked.delete_if_unchanged(&item).await.map(drop),
    ];
    for (at, result) in results.into_iter().enumerate() {
        let error = result.expect_err("the lock is lost");
        assert!(error.is_lock_lost(), "operation {at}: {error:?}");
    }
    assert_eq!(names(&list(&*store, "guard/").await), ["guard/a"]);
    assert_eq!(get(&*store, "guard/a").await, Some(item));
}

/// A wait for a lock that is given up leaves nothing behind.
pub async fn whoever_stops_waiting_leaves_the_queue(store: Store) {
    let first = RunningClient::full(store.clone());
    let second = RunningClient::new(
        store.clone(),
        ClientOptions {
            lock_timeout: Duration::from_millis(300),
            ..options(ClientKind::Full)
        },
    );
    let lock = first.lock("queue/lock").await.expect("it is locked");

    let error = second
        .lock("queue/lock")
        .await
        .expect_err("it is locked by another");
    assert!(matches!(error, Error::LockTimeout { .. }), "{error:?}");

    let alone = async {
        while list(&*store, "queue/lock/").await.items.len() > 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, alone)
        .await
        .expect("the key of the second goes");
    lock.unlock().await.expect("it is unlocked");
    let lock = second.lock("queue/lock").await.expect("it is locked");
    lock.unlock().await.expect("it is unlocked");
}

/// A watcher reports what exists, that this was all, then what changes.
pub async fn watchers_list_and_watch(store: Store) {
    let client = RunningClient::new(
        store.clone(),
        ClientOptions {
            page: PageSize::Keys(1),
            ..options(ClientKind::Mesh)
        },
    );
    for key in ["watcher/a", "watcher/b", "watcher2/a"] {
        put(&*store, key, "1").await;
    }
    let mut watcher = client.list_and_watch("watcher/");
    assert_eq!(
        event_texts(&mut watcher, 3).await,
        ["create watcher/a=1", "create watcher/b=1", "listDone"]
    );

    put(&*store, "watcher/a", "2").await;
    delete(&*store, "watcher/b").await;
    put(&*store, "watcher/b", "3").await;

    assert_eq!(
        event_texts(&mut watcher, 3).await,
        ["modify watcher/a=2", "delete watcher/b", "create watcher/b=3"]
    );
}

/// A watcher of one key reports neither those below it nor those that begin like it.
pub async fn watchers_of_a_key_report_no_other(store: Store) {
    let client = RunningClient::mesh(store.clone());
    put(&*store, "one/key2", "1").await;
    let mut watcher = client.watch_key("one/key");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    put(&*store, "one/key/below", "1").await;
    put(&*store, "one/key", "2").await;
    put(&*store, "one/key3", "1").await;
    delete(&*store, "one/key").await;

    assert_eq!(
        event_texts(&mut watcher, 2).await,
        ["create one/key=2", "delete one/key"]
    );
}

/// When a watch ends, the watcher goes on where it was: nothing is missed or reported twice.
pub async fn watchers_survive_the_end_of_a_watch(store: Store) {
    let faulty = FaultyBackend::new(store.clone());
    let client = RunningClient::mesh(faulty.clone());
    let mut watcher = client.list_and_watch("resume/");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    for at in 0..20 {
        put(&*store, "resume/a", &at.to_string()).await;
        if at % 4 == 0 {
            faulty.cut_watches();
        }
        let event = event_text(&next_event(&mut watcher).await);
        let verb = if at == 0 { "create" } else { "modify" };
        assert_eq!(event, format!("{verb} resume/a={at}"));
    }
}

/// If history is compacted while there is no watch, the watcher lists again and reports what vanished.
pub async fn watchers_report_what_vanished_when_history_is_compacted(store: Store) {
    let faulty = FaultyBackend::new(store.clone());
    let client = RunningClient::mesh(faulty.clone());
    for key in ["vanish/a", "vanish/b", "vanish/c"] {
        put(&*store, key, "1").await;
    }
    let mut watcher = client.list_and_watch("vanish/");
    assert_eq!(event_texts(&mut watcher, 4).await[3], "listDone");

    faulty.partition(true);
    faulty.cut_watches();
    delete(&*store, "vanish/b").await;
    put(&*store, "vanish/c", "2").await;
    let last = put(&*store, "vanish/d", "1").await.header.revision;
    store.compact(last).await.expect("the store is compacted");
    faulty.partition(false);

    let mut events = Vec::new();
    while events
        .last()
        .is_none_or(|event| !matches!(event, Event::Delete(_)))
    {
        events.push(next_event(&mut watcher).await);
    }
    let mut texts: Vec<String> = events.iter().map(event_text).collect();
    texts.sort();
    assert_eq!(
        texts,
        [
            "create vanish/d=1",
            "delete vanish/b",
            "modify vanish/a=1",
            "modify vanish/c=2"
        ]
    );
}
