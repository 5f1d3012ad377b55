// SPDX-License-Identifier: Apache-2.0

//! Helpers for tests of stores: a store in memory, observers that record, and recorded keys and values.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::{PATIENCE, RunningClient};
use skep_kvstore_client::{Backend, Client, Key, KeyValue, Lifetime};

use crate::entry::{Decoder, InvalidEntry, Observer};
use crate::recorder::{Direction, StoreRecorder};

/// A moment in which everything that is due happens, while the clock is paused.
pub const MOMENT: Duration = Duration::from_millis(1);

/// A store in memory, and a client of it.
pub fn memory() -> (Memory, RunningClient) {
    let store = Memory::new();
    let client = RunningClient::full(Arc::new(store.clone()));
    (store, client)
}

/// Lets everything happen that is due.
pub async fn settle() {
    tokio::time::sleep(MOMENT).await;
}

/// Values are texts; `bad` is invalid.
#[derive(Debug)]
pub struct Words;

/// The word is `bad`.
#[derive(Debug, thiserror::Error)]
#[error("the word is bad")]
pub struct BadWord;

impl Decoder for Words {
    type Key = String;
    type Value = String;
    type Kept = Arc<String>;
    type Error = BadWord;

    fn decode(&self, name: &Key, value: &Bytes) -> Result<(String, String), BadWord> {
        match String::from_utf8_lossy(value).into_owned() {
            word if word == "bad" => Err(BadWord),
            word => Ok((name.to_string(), word)),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn push(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    /// What was observed since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }

    #[track_caller]
    pub fn wait(&self, count: usize) -> impl Future<Output = Vec<String>> {
        let caller = std::panic::Location::caller();
        async move {
            let enough = async {
                while self.0.lock().len() < count {
                    tokio::time::sleep(MOMENT).await;
                }
            };
            if tokio::time::timeout(PATIENCE, enough).await.is_err() {
                panic!("{caller}: only {:?}", self.take());
            }
            self.take()
        }
    }
}

impl<K: fmt::Display + 'static, V: fmt::Display + Send + Sync + 'static> Observer<K, V> for Log {
    fn upsert(&mut self, key: &K, value: &Arc<V>) {
        self.push(format!("upsert {key}={value}"));
    }

    fn delete(&mut self, key: &K, value: &Arc<V>) {
        self.push(format!("delete {key}={value}"));
    }

    fn synced(&mut self) {
        self.push("synced");
    }

    fn invalid(&mut self, entry: &InvalidEntry) {
        self.push(format!("{entry}: {}", entry.cause));
    }
}

impl StoreRecorder for Log {
    fn initial_sync(&self, prefix: &str, cluster: &str, direction: Direction, is_completed: bool) {
        self.push(format!(
            "{} {prefix} {cluster} {is_completed}",
            direction.action()
        ));
    }

    fn queue(&self, prefix: &str, cluster: &str, size: usize) {
        self.push(format!("queue {prefix} {cluster} {size}"));
    }

    fn sync_error(&self, prefix: &str, cluster: &str) {
        self.push(format!("error {prefix} {cluster}"));
    }
}

/// Writes a key as another program does.
pub async fn put(client: &Client, key: &str, value: &str) {
    client
        .put(key, value.to_owned(), Lifetime::Permanent)
        .await
        .expect("it is written");
}

/// Deletes a key as another program does.
pub async fn delete(client: &Client, key: &str) {
    client.delete(key).await.expect("it is deleted");
}

pub fn item(store: &Memory, key: &str) -> Option<KeyValue> {
    store.items().into_iter().find(|item| &*item.key == key)
}

/// The keys and values of a store below a prefix: `key=value`.
pub fn items(store: &Memory, prefix: &str) -> Vec<String> {
    let items = store.items().into_iter();
    items
        .filter(|item| item.key.starts_with(prefix))
        .map(|item| format!("{}={}", item.key, String::from_utf8_lossy(&item.value)))
        .collect()
}

/// Revokes the lease of a key, as etcd does when it was not renewed.
pub async fn end_lease(store: &Memory, key: &str) {
    let lease = item(store, key).expect("the key exists").lease;
    store.revoke_lease(lease).await.expect("it has a lease");
}

/// A part of what Cilium writes.
pub fn golden_cases(part: &str) -> Vec<serde_json::Value> {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../testdata/golden.json")).expect("the file is JSON");
    cases[part].as_array().expect("there is such a part").clone()
}

/// The keys of a part of what Cilium writes.
pub fn golden(part: &str) -> Vec<String> {
    golden_cases(part)
        .iter()
        .map(|case| case["key"].as_str().expect("it has a key").to_owned())
        .collect()
}
