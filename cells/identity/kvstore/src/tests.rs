// SPDX-License-Identifier: Apache-2.0

mod allocator;
mod collect;
mod contract;
mod faults;

use std::sync::Arc;
use std::time::Duration;

use skep_identity::{IdentityRange, MaxConnectedClusters, NumericIdentity};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{Client, Event, LeaseId, Watcher};

use super::*;
use skep_kvstore_store::testing::{golden_cases, items};

const BASE: &str = "cilium/state/identities/v1/";
const CART: &str = "k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;";
const MINUTE: Duration = Duration::from_secs(60);

fn labels(text: &str) -> IdentityLabels {
    text.into()
}

/// The ids of the recorded sequences: one.
fn one() -> IdentityRange {
    IdentityRange::between(NumericIdentity::new(496_601), NumericIdentity::new(496_601))
}

fn alder() -> IdentityRange {
    IdentityRange::of_cluster(7, MaxConnectedClusters::Max255).expect("it is valid")
}

/// An allocator of a node with its own client.
struct Node {
    client: RunningClient,
    allocator: IdentityAllocator,
}

impl Node {
    fn new(store: &Memory, node: u32, range: IdentityRange) -> Self {
        Self::with(RunningClient::full(Arc::new(store.clone())), node, range)
    }

    fn with(client: RunningClient, node: u32, range: IdentityRange) -> Self {
        let options = AllocatorOptions::new("alder", format!("192.168.50.{node}"), range);
        let allocator = IdentityAllocator::new(client.clone(), Identities::new(), (), options);
        Self { client, allocator }
    }

    async fn allocate(&self, text: &str) -> Allocation {
        let allocated = self.allocator.allocate(&labels(text)).await;
        allocated.expect("it is allocated")
    }

    fn release(&self, text: &str) -> bool {
        self.allocator.release(&labels(text)).expect("it is in use")
    }

    /// Runs the allocator while `actions` run.
    async fn during<T>(&self, actions: impl Future<Output = T>) -> T {
        tokio::select! {
            () = self.allocator.run() => unreachable!("it never returns"),
            result = actions => result,
        }
    }
}

/// The identities of a store, without locks: `id/1=k8s:app=cart;`.
fn stored(store: &Memory) -> Vec<String> {
    let items = items(store, BASE).into_iter();
    items
        .filter_map(|item| item.strip_prefix(BASE).map(str::to_owned))
        .filter(|item| !item.starts_with("locks/"))
        .collect()
}

/// The recorded sequence of writes: `put key=value leased`, with locks without their lease.
fn golden_sequence(name: &str) -> Vec<String> {
    let sequences = golden_cases("sequences");
    let sequence = sequences
        .iter()
        .find(|sequence| sequence["name"] == name)
        .expect("it is recorded");
    let events = sequence["events"].as_array().expect("it has events");
    events
        .iter()
        .map(|event| {
            let key = event["key"].as_str().expect("it has a key");
            match event["value"].as_str() {
                Some(value) => put_text(key, value, event["leased"] == true),
                None => delete_text(key),
            }
        })
        .collect()
}

fn put_text(key: &str, value: &str, is_leased: bool) -> String {
    let leased = if is_leased { " leased" } else { "" };
    format!("put {}={value}{leased}", without_lease(key))
}

fn delete_text(key: &str) -> String {
    format!("delete {}", without_lease(key))
}

fn without_lease(key: &str) -> &str {
    match key.rsplit_once('/') {
        Some((path, _)) if key.contains("/locks/") => path,
        _ => key,
    }
}

async fn writes(client: &Client) -> Watcher {
    let mut watcher = client.list_and_watch(BASE);
    while watcher.next().await != Event::ListDone {}
    watcher
}

/// The next writes, as [`golden_sequence`] has them.
async fn next_writes(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let event = tokio::time::timeout(MINUTE, watcher.next()).await;
        texts.push(match event.unwrap_or_else(|_| panic!("only {texts:?}")) {
            Event::Create(item) | Event::Modify(item) => put_text(
                &item.key,
                &String::from_utf8_lossy(&item.value),
                item.lease != LeaseId::NONE,
            ),
            Event::Delete(key) => delete_text(&key),
            Event::ListDone => "listDone".to_owned(),
        });
    }
    texts
}
