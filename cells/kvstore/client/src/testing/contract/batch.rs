// SPDX-License-Identifier: Apache-2.0

//! Many keys at once.

use super::*;
use crate::client::{KeyChange, MAX_BATCH};
use crate::testing::RunningClient;
use crate::types::Lifetime::{Leased, Permanent};

fn change(key: &str, value: Option<&str>) -> KeyChange {
    KeyChange {
        key: key.into(),
        value: value.map(|value| value.to_owned().into()),
    }
}

/// A batch writes and deletes at one revision, and leases what it writes.
pub async fn clients_write_batches(store: Store) {
    let client = RunningClient::full(store);
    client.put("batch/old", "1", Leased).await.expect("it is written");
    let names: Vec<String> = (1..MAX_BATCH).map(|at| format!("batch/k{at:03}")).collect();
    let mut changes: Vec<KeyChange> = names.iter().map(|name| change(name, Some("1"))).collect();
    changes.push(change("batch/old", None));
    assert_eq!(changes.len(), MAX_BATCH);

    client.apply(&changes).await.expect("it is written");
    client.apply(&[]).await.expect("there is nothing to write");

    let items = client.list("batch/").await.expect("it is read").items;
    let keys: Vec<&str> = items.iter().map(|item| &*item.key).collect();
    assert_eq!(keys, names);
    let revision = items[0].mod_revision;
    for item in &items {
        assert_eq!(item.mod_revision, revision);
        assert_ne!(item.lease, LeaseId::NONE);
    }
    let twice = [change("batch/a", Some("1")), change("batch/a", Some("2"))];
    let error = client.apply(&twice).await.expect_err("a key is written once");
    assert!(!error.is_transient(), "{error}");
    assert_eq!(client.get("batch/a").await.expect("it is read"), None);
}

/// The keys of a batch are written with another lease if theirs has ended; the other keys of that lease are reported.
pub async fn batches_replace_leases_that_have_ended(store: Store) {
    let client = RunningClient::full(store.clone());
    let mut lost = client.lost_keys("ended/");
    let changes = [change("ended/a", Some("1")), change("ended/b", Some("1"))];
    client.apply(&changes).await.expect("it is written");
    client.put("ended/c", "1", Leased).await.expect("it is written");
    let lease = client.list("ended/").await.expect("it is read").items[0].lease;
    store.revoke_lease(lease).await.expect("it is revoked");

    client.apply(&changes).await.expect("it is written again");

    let reported = lost.next().await;
    assert_eq!(reported, [crate::types::Key::from("ended/c")]);
    let items = client.list("ended/").await.expect("it is read").items;
    assert_eq!(items.len(), 2);
    assert!(
        items
            .iter()
            .all(|item| item.lease != lease && item.lease != LeaseId::NONE)
    );
}

/// Leases of a former client are kept alive, and keys stay attached to them. What has no lease is reported as such.
pub async fn clients_adopt_what_a_former_one_wrote(store: Store) {
    let former = RunningClient::full(store.clone());
    for key in ["adopt/a", "adopt/b"] {
        former.put(key, "1", Leased).await.expect("it is written");
    }
    former
        .put("adopt/c", "1", Permanent)
        .await
        .expect("it is written");
    former.stop().await;

    let client = RunningClient::full(store);
    let adopted = client.adopt("adopt/").await.expect("it is read");

    let found: Vec<(&str, bool)> = adopted
        .iter()
        .map(|adopted| (&*adopted.item.key, adopted.is_kept))
        .collect();
    assert_eq!(found, [("adopt/a", true), ("adopt/b", true), ("adopt/c", false)]);
    assert_eq!(client.status().leases, 1);
    let is_written = client
        .put_if_different("adopt/a", "1", Leased)
        .await
        .expect("it is compared");
    assert!(!is_written, "value and lease are the same");
    client
        .apply(&[change("adopt/b", Some("2"))])
        .await
        .expect("it is written");
    let items = client.list("adopt/").await.expect("it is read").items;
    assert_eq!(items[0].lease, items[1].lease);
}
