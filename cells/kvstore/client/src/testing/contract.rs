// SPDX-License-Identifier: Apache-2.0

//! The suite that every store passes: [`contract_tests!`](crate::contract_tests) makes a test of each function.
//!
//! Stores may hold other keys: every function keeps to a prefix of its own, except those that compact.

mod batch;
mod client;
mod kv;
mod lease;
mod watch;

use std::sync::Arc;
use std::time::Duration;

pub use batch::*;
use bytes::Bytes;
pub use client::*;
use futures::StreamExt;
pub use kv::*;
pub use lease::*;
pub use watch::*;

use crate::backend::{
    Backend, BackendError, Change, Compare, KeyRange, Op, OpResponse, RangeRequest, RangeResponse, Txn,
    TxnResponse, WatchRequest, WatchStream,
};
use crate::testing::PATIENCE;
use crate::types::{KeyValue, LeaseId, Revision};

/// Makes a test of each function of the suite. The argument is a path to an async function that returns a value with a
/// method `backend(&self) -> Arc<dyn Backend>`; the store lives as long as the value.
///
/// ```ignore
/// skep_kvstore_client::contract_tests!(start_store);
/// ```
#[macro_export]
macro_rules! contract_tests {
    ($setup:path) => {
        $crate::contract_tests!(@ $setup:
            keys_have_revisions_and_versions
            prefixes_are_listed_in_order
            pages_are_of_one_revision
            keys_are_ordered_by_creation
            transactions_do_all_or_nothing
            comparisons_see_what_is_stored
            a_key_is_put_once_in_a_transaction
            ranges_are_deleted_at_one_revision
            large_lists_arrive_whole
            compacted_revisions_cannot_be_read
            watches_deliver_changes_in_order
            watches_begin_in_the_past
            watches_keep_to_their_range
            watches_of_compacted_revisions_fail
            many_changes_arrive_in_order
            leases_end_with_their_keys
            leases_that_are_kept_alive_stay
            revoked_leases_delete_their_keys
            unknown_leases_are_refused
            keys_change_their_lease
            clients_write_and_read
            clients_write_what_differs
            clients_create_a_key_with_its_user
            clients_create_and_delete_what_is_as_they_know_it
            clients_read_lists_in_pages
            lost_leases_are_reported_and_replaced
            clients_write_batches
            batches_replace_leases_that_have_ended
            clients_adopt_what_a_former_one_wrote
            locks_exclude_each_other
            locks_are_released_when_dropped
            locked_operations_need_the_lock
            whoever_stops_waiting_leaves_the_queue
            watchers_list_and_watch
            watchers_of_a_key_report_no_other
            watchers_survive_the_end_of_a_watch
            watchers_report_what_vanished_when_history_is_compacted
        );
    };
    (@ $setup:path: $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let store = $setup().await;
                $crate::testing::contract::$name(store.backend()).await;
            }
        )*
    };
}

async fn put(store: &dyn Backend, key: &str, value: &str) -> TxnResponse {
    put_leased(store, key, value, LeaseId::NONE)
        .await
        .expect("the key is written")
}

async fn put_leased(
    store: &dyn Backend,
    key: &str,
    value: &str,
    lease: LeaseId,
) -> Result<TxnResponse, BackendError> {
    store
        .txn(Txn::one(Op::Put {
            key: key.into(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            lease,
        }))
        .await
}

async fn delete(store: &dyn Backend, key: &str) -> TxnResponse {
    store
        .txn(Txn::one(Op::Delete(KeyRange::key(key))))
        .await
        .expect("the key is deleted")
}

async fn get(store: &dyn Backend, key: &str) -> Option<KeyValue> {
    range(store, RangeRequest::new(KeyRange::key(key)))
        .await
        .items
        .pop()
}

async fn list(store: &dyn Backend, prefix: &str) -> RangeResponse {
    range(store, RangeRequest::new(KeyRange::prefix(prefix))).await
}

async fn range(store: &dyn Backend, request: RangeRequest) -> RangeResponse {
    store.range(request).await.expect("the range is read")
}

fn names(response: &RangeResponse) -> Vec<&str> {
    response.items.iter().map(|item| &*item.key).collect()
}

async fn watch(store: &dyn Backend, prefix: &str, start: Revision) -> WatchStream {
    store
        .watch(WatchRequest {
            range: KeyRange::prefix(prefix),
            start,
        })
        .await
        .expect("the watch is created")
}

/// So many changes, as `put k=v` and `delete k`, each with its revision.
async fn changes(stream: &mut WatchStream, count: usize) -> Vec<(String, Revision)> {
    let mut changes = Vec::new();
    while changes.len() < count {
        let response = tokio::time::timeout(PATIENCE, stream.next())
            .await
            .unwrap_or_else(|_| panic!("{} of {count} changes came: {changes:?}", changes.len()))
            .expect("the watch goes on")
            .expect("the watch has no error");
        changes.extend(
            response
                .events
                .iter()
                .map(|change| (text(change), change.revision())),
        );
    }
    changes
}

fn text(change: &Change) -> String {
    match change {
        Change::Put(item) => format!("put {}={}", item.key, String::from_utf8_lossy(&item.value)),
        Change::Delete { key, .. } => format!("delete {key}"),
    }
}

fn texts(changes: &[(String, Revision)]) -> Vec<&str> {
    changes.iter().map(|(text, _)| text.as_str()).collect()
}

/// Waits until a key is gone.
async fn wait_gone(store: &dyn Backend, key: &str) {
    let gone = async {
        while get(store, key).await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the key goes");
}

type Store = Arc<dyn Backend>;
