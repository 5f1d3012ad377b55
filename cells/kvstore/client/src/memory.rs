// SPDX-License-Identifier: Apache-2.0

//! A store in memory with etcd's semantics: revisions, leases, transactions, watches, compaction.
//!
//! It serves as a fake in tests and as the store of the lab. Time is tokio's, so that leases end with a paused clock as
//! well. Nothing runs in the background: leases end when the store is used, and watches wake up for it.

mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{
    Backend, BackendError, EndpointAnswer, EndpointStatus, Grant, RangeRequest, RangeResponse, Txn,
    TxnResponse, WatchRequest, WatchResponse, WatchStream,
};
use crate::types::{Header, KeyValue, LeaseId, Revision};
use store::Store;

/// Revisions that are kept by default.
const HISTORY: usize = 10_000;

/// A store in memory. Clones are the same store.
#[derive(Clone)]
#[cfg_attr(feature = "hive", derive(hive::Value))]
pub struct Memory {
    inner: Arc<Inner>,
}

/// What a [`Memory`] held.
#[derive(Debug)]
pub struct Snapshot(Store);

struct Inner {
    store: Mutex<Store>,
    /// The state of the store, for watches.
    header: watch::Sender<Header>,
    name: String,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty store that keeps its last 10,000 revisions.
    pub fn new() -> Self {
        Self::with_history(HISTORY)
    }

    /// An empty store that keeps at least so many of its last revisions; 0 for all. Older ones are compacted.
    pub fn with_history(revisions: usize) -> Self {
        let store = Store::new(revisions);
        let name = format!("memory:{:x}", store.cluster_id());
        Self {
            inner: Arc::new(Inner {
                header: watch::Sender::new(store.header()),
                store: Mutex::new(store),
                name,
            }),
        }
    }

    /// All keys, sorted: for tables and for assertions of tests.
    pub fn items(&self) -> Vec<KeyValue> {
        self.lock().items()
    }

    pub fn header(&self) -> Header {
        self.lock().header()
    }

    /// Waits until the store has another state than `seen`, and returns it.
    pub async fn changed(&self, seen: Header) -> Header {
        let mut header = self.inner.header.subscribe();
        loop {
            let (now, expiry) = {
                let store = self.lock();
                (store.header(), store.next_expiry())
            };
            if now != seen {
                return now;
            }
            wait(&mut header, seen, expiry).await;
        }
    }

    /// Replaces the store by an empty one of another etcd cluster, as if it had been set up anew: revisions begin again,
    /// leases and keys are gone, watches end.
    pub fn reset(&self) {
        let mut store = self.inner.store.lock();
        *store = store.anew();
        self.inner.header.send_replace(store.header());
    }

    /// All that is stored, to be restored.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.lock().clone())
    }

    /// Goes back to a snapshot, as if a store of the same etcd cluster had been restored: leases are those of then, watches
    /// end.
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut store = self.inner.store.lock();
        let generation = store.generation + 1;
        *store = snapshot.0.clone();
        store.generation = generation;
        self.inner.header.send_replace(store.header());
    }

    /// The store, without leases that have ended.
    fn lock(&self) -> MutexGuard<'_, Store> {
        let mut store = self.inner.store.lock();
        if store.expire(Instant::now()) {
            self.inner.header.send_replace(store.header());
        }
        store
    }

    /// Does something, and wakes watches if it wrote.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.lock();
        let before = store.revision();
        let result = change(&mut store);
        if store.revision() != before {
            self.inner.header.send_replace(store.header());
        }
        result
    }
}

/// Waits for another state than `seen`, or for the end of a lease.
async fn wait(header: &mut watch::Receiver<Header>, seen: Header, expiry: Option<Instant>) {
    let changed = async {
        // The sender lives as long as the store.
        let _ = header.wait_for(|header| *header != seen).await;
    };
    match expiry {
        Some(at) => tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(at) => {}
        },
        None => changed.await,
    }
}

struct Position {
    memory: Memory,
    request: WatchRequest,
    /// The first revision that was not looked at.
    next: Revision,
    cluster_id: u64,
    generation: u64,
    is_created: bool,
    header: watch::Receiver<Header>,
}

impl Position {
    async fn advance(&mut self) -> Option<Result<WatchResponse, BackendError>> {
        loop {
            let expiry = {
                let store = self.memory.lock();
                if (store.cluster_id(), store.generation) != (self.cluster_id, self.generation) {
                    return None;
                }
                if !self.is_created {
                    self.is_created = true;
                    return Some(Ok(WatchResponse {
                        header: store.header(),
                        events: Vec::new(),
                    }));
                }
                match store.changes(&self.request.range, self.next) {
                    Ok((events, seen)) => {
                        self.next = self.next.max(seen.next());
                        if !events.is_empty() {
                            let header = store.header();
                            return Some(Ok(WatchResponse { header, events }));
                        }
                    }
                    Err(error) => return Some(Err(error)),
                }
                store.next_expiry()
            };
            // Nothing new yet, or a start in the future.
            let seen = *self.header.borrow_and_update();
            if seen.cluster_id == self.cluster_id && seen.revision.next() <= self.next {
                wait(&mut self.header, seen, expiry).await;
            }
        }
    }
}

#[async_trait]
impl Backend for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        self.lock().range(&request)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError> {
        self.change(|store| store.txn(txn))
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError> {
        let store = self.lock();
        let start = match request.start {
            Revision::NONE => store.revision().next(),
            start => start,
        };
        store.check_compacted(start)?;
        let position = Position {
            memory: self.clone(),
            next: start,
            request,
            cluster_id: store.cluster_id(),
            generation: store.generation,
            is_created: false,
            header: self.inner.header.subscribe(),
        };
        drop(store);
        let responses = stream::unfold(Some(position), |position| async move {
            let mut position = position?;
            match position.advance().await? {
                Ok(response) => Some((Ok(response), Some(position))),
                // The last.
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(responses.boxed())
    }

    async fn compact(&self, revision: Revision) -> Result<(), BackendError> {
        self.lock().compact(revision)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError> {
        self.lock().grant_lease(ttl, Instant::now())
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.lock().keep_alive(lease, Instant::now())
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        self.change(|store| store.revoke_lease(lease))
    }

    async fn endpoints(&self) -> Vec<EndpointStatus> {
        vec![EndpointStatus {
            endpoint: self.inner.name.clone(),
            answer: Ok(EndpointAnswer {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                is_leader: true,
                header: self.lock().header(),
                alarms: Vec::new(),
            }),
        }]
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.inner.name.clone()]
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.inner.name).finish()
    }
}
