// SPDX-License-Identifier: Apache-2.0

//! The client: operations on keys, with rate limit, leases and locks.

mod batch;
mod driver;
mod history;
mod lease;
mod limit;
mod lock;
mod monitor;
mod past_writes;
mod status;
#[cfg(test)]
mod tests;
mod watcher;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use skep_base_limiter::Permit;
use tokio::sync::watch;
use tokio::time::Instant;

pub use batch::{Adopted, KeyChange, MAX_BATCH};
pub use driver::Driver;
pub use lease::LostKeys;
pub use lock::{Lock, Locked, Unused};
pub(crate) use status::CONNECTING;
pub use status::{Connection, Status};
pub use watcher::{Event, RawEvent, RawWatcher, Watcher};

use crate::backend::{
    Backend, BackendError, Compare, Condition, KeyRange, Op, OpResponse, RangeRequest, RangeResponse, Txn,
    TxnResponse,
};
use crate::disabled::DisabledBackend;
use crate::error::{ConnectionError, Error};
use crate::operation::{Operation, OperationRecord};
use crate::options::{ClientKind, ClientOptions, PageSize};
use crate::types::{Header, Key, KeyValue, LeaseId, Lifetime, Revision};
use history::{ComparedBackend, History};
use lease::LeaseManager;
use limit::Limit;
use lock::{LocalLocks, Unlocks};
use monitor::Monitor;

/// A client of a key-value store. Clones share one connection, rate limit and leases.
///
/// What lasts (renewal of leases, quorum checks, the heartbeat) is done by the [`Driver`] that comes with it; its owner
/// runs it as a job.
///
/// ```
/// use std::sync::Arc;
/// use skep_kvstore_client::{Client, ClientKind, ClientOptions, Lifetime, memory::Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), skep_kvstore_client::Error> {
/// let store = Arc::new(Memory::new());
/// let (client, _driver) = Client::new(store, ClientOptions::new("etcd", ClientKind::Full));
///
/// client.put("cilium/state/nodes/v1/alder/n1", "{}", Lifetime::Leased).await?;
///
/// let nodes = client.list("cilium/state/nodes/v1/alder/").await?;
/// assert_eq!(nodes.items[0].value, "{}");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "hive", derive(hive::Value))]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    history: Arc<History>,
    options: ClientOptions,
    is_enabled: bool,
    limit: Limit,
    leases: LeaseManager,
    lock_leases: LeaseManager,
    locks: LocalLocks,
    unlocks: Unlocks,
    monitor: Monitor,
    failed: watch::Sender<Option<ConnectionError>>,
    nodes: AtomicUsize,
}

/// All keys of a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// State of the store when the list began. The keys are as of its revision.
    pub header: Header,
    pub items: Vec<KeyValue>,
}

impl Client {
    /// A client of a store, and what must run as long as it is used.
    pub fn new(backend: Arc<dyn Backend>, options: ClientOptions) -> (Self, Driver) {
        Self::build(backend, options, true)
    }

    /// The client of a program without a store: [`is_enabled`](Self::is_enabled) is false, every operation fails with
    /// [`BackendError::Disabled`], and watchers never yield.
    pub fn disabled() -> Self {
        let options = ClientOptions::new("disabled", ClientKind::Mesh);
        Self::build(Arc::new(DisabledBackend), options, false).0
    }

    fn build(backend: Arc<dyn Backend>, options: ClientOptions, is_enabled: bool) -> (Self, Driver) {
        let history = Arc::new(History::new(options.kind));
        let backend: Arc<dyn Backend> = Arc::new(ComparedBackend::new(backend, history.clone()));
        let (unlocks, pending) = Unlocks::new();
        let client = Self {
            inner: Arc::new(Inner {
                limit: Limit::new(options.rate, options.name.clone(), options.recorder.clone()),
                leases: LeaseManager::new(options.lease_ttl, options.keys_per_lease),
                lock_leases: LeaseManager::new(options.lock_ttl, options.keys_per_lease),
                locks: LocalLocks::default(),
                unlocks,
                monitor: Monitor::default(),
                failed: watch::Sender::new(None),
                nodes: AtomicUsize::new(0),
                backend,
                history,
                options,
                is_enabled,
            }),
        };
        let driver = Driver::new(client.clone(), pending);
        (client, driver)
    }

    pub fn is_enabled(&self) -> bool {
        self.inner.is_enabled
    }

    /// Name of the client: `etcd`, or `etcd-<cluster>`.
    pub fn name(&self) -> &str {
        &self.inner.options.name
    }

    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// Ends the bootstrap: from now on the rate limit is that of normal operation.
    pub fn bootstrapped(&self) {
        self.inner.limit.bootstrapped();
    }

    /// Sets how many nodes share the store: the more, the longer each waits between two checks of it.
    pub fn set_node_count(&self, nodes: usize) {
        self.inner.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Reads a key.
    ///
    /// # Errors
    ///
    /// [`Error`]; a key that does not exist is none.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        self.get_with(key, None).await
    }

    /// Reads all keys that begin with `prefix`, as of one revision.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_with(prefix, None).await
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn put(&self, key: &str, value: impl Into<Bytes>, lifetime: Lifetime) -> Result<(), Error> {
        self.put_with(key, value.into(), lifetime, None).await
    }

    /// Writes a key unless it has that value, and that lease, already. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn put_if_different(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        lifetime: Lifetime,
    ) -> Result<bool, Error> {
        let value = value.into();
        let build = |key: Key, lease: LeaseId| Txn {
            compares: vec![
                Compare {
                    key: key.clone(),
                    condition: Condition::Value(value.clone()),
                },
                Compare {
                    key: key.clone(),
                    condition: Condition::Lease(lease),
                },
            ],
            then: Vec::new(),
            otherwise: vec![Op::Put {
                key,
                value: value.clone(),
                lease,
            }],
        };
        let response = self
            .write(Operation::PutIfDifferent, key, lifetime, None, build)
            .await?;
        Ok(!response.succeeded)
    }

    /// Writes a key unless it exists. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn create(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        lifetime: Lifetime,
    ) -> Result<bool, Error> {
        self.create_with(key, value.into(), lifetime, None).await
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete(&self, key: &str) -> Result<bool, Error> {
        self.delete_with(key, None, None).await
    }

    /// Deletes a key if it is as it was read. Returns whether it was deleted.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete_if_unchanged(&self, item: &KeyValue) -> Result<bool, Error> {
        self.delete_with(&item.key, Some(item.mod_revision), None).await
    }

    /// Deletes keys that are as they were read, if nothing uses them and all locks are held: all of them or none, with one
    /// request. Returns whether they were deleted.
    ///
    /// etcd limits a transaction to 128 comparisons by default, which is 42 keys.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete_unused(&self, unused: &[Unused<'_>]) -> Result<bool, Error> {
        let Some(first) = unused.first() else {
            return Ok(true);
        };
        let compares = unused.iter().flat_map(|Unused { item, users, lock }| {
            [
                lock.compare(),
                Compare {
                    key: item.key.clone(),
                    condition: Condition::ModRevision(item.mod_revision),
                },
                Compare::none_below(users.clone()),
            ]
        });
        let deletions = unused
            .iter()
            .map(|unused| Op::Delete(KeyRange::key(&unused.item.key)));
        let txn = Txn {
            compares: compares.collect(),
            then: deletions.collect(),
            otherwise: Vec::new(),
        };
        let response = self.txn(Operation::Delete, &first.item.key, None, txn).await?;
        if response.succeeded {
            for unused in unused {
                self.inner.leases.release(&unused.item.key);
            }
        }
        Ok(response.succeeded)
    }

    /// Deletes all keys that begin with `prefix`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete_prefix(&self, prefix: &str) -> Result<u64, Error> {
        let txn = Txn::one(Op::Delete(KeyRange::prefix(prefix)));
        let call = self.txn(Operation::DeletePrefix, prefix, None, txn);
        let deleted = count_deleted(&call.await?);
        self.inner.leases.release_prefix(prefix);
        Ok(deleted)
    }

    /// The operations that are done only as long as a lock is held.
    pub fn locked<'a>(&'a self, lock: &'a Lock) -> Locked<'a> {
        Locked::new(self, lock)
    }

    /// Takes the lock of a path: waits until all who asked before have released it.
    ///
    /// It is released by [`Lock::unlock`], or soon after it is dropped. If the client dies, its lease ends after 25 s.
    /// Within one client a lock is fair; whoever drops the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`Error::LockTimeout`] if that takes too long, [`Error::Operation`] if the store fails.
    pub async fn lock(&self, path: &str) -> Result<Lock, Error> {
        lock::lock(self, path).await
    }

    /// Lists a prefix, then watches it. See [`Watcher`].
    pub fn list_and_watch(&self, prefix: &str) -> Watcher {
        Watcher::new(self.clone(), prefix, KeyRange::prefix(prefix))
    }

    /// As [`list_and_watch`](Self::list_and_watch), but leaves it to the consumer to find out what is new and what is gone.
    /// See [`RawWatcher`].
    pub fn list_and_watch_raw(&self, prefix: &str) -> RawWatcher {
        RawWatcher::new(self.clone(), prefix, KeyRange::prefix(prefix))
    }

    /// As [`list_and_watch`](Self::list_and_watch), of one key alone: a client may have no right to read others that begin
    /// like it.
    pub fn watch_key(&self, key: &str) -> Watcher {
        Watcher::new(self.clone(), key, KeyRange::key(key))
    }

    /// Reports from now on the keys below `prefix` that were written with a lease that has ended: the store has deleted
    /// them, or will. Whoever wrote them writes them again.
    pub fn lost_keys(&self, prefix: &str) -> LostKeys {
        self.inner.leases.observe(prefix)
    }

    /// Counts how often the own store turned out to hold another state than what this client has written: it was set up anew,
    /// or restored from a snapshot. [Lost](Self::lost_keys) are all leased keys then; keys that were deleted may be back.
    /// Stores of other clusters are never replaced: their clients [fail](Self::failed).
    pub fn replaced(&self) -> watch::Receiver<u64> {
        self.inner.history.replaced()
    }

    /// Waits until the client is connected: the heartbeat is listed, and a full client has the lease of its locks.
    /// Pending as long as the store cannot be reached, and always for a disabled client.
    pub async fn wait_connected(&self) {
        self.inner.monitor.wait_connected().await;
    }

    /// Waits until the client should be replaced by a new one, and returns why. The own store's client may also be kept:
    /// it recovers by itself when the store does, except from [`ConnectionError::Store`].
    pub async fn failed(&self) -> ConnectionError {
        let mut failed = self.inner.failed.subscribe();
        match failed.wait_for(Option::is_some).await.map(|error| error.clone()) {
            Ok(Some(error)) => error,
            // The sender lives as long as this client.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// How the client and its store are.
    pub fn status(&self) -> Status {
        status::status(self)
    }

    /// The store below, without rate limit, leases and checks: for tests and for maintenance such as compaction.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    async fn get_with(&self, key: &str, lock: Option<&Lock>) -> Result<Option<KeyValue>, Error> {
        let request = RangeRequest::new(KeyRange::key(key));
        let mut response = self.range(Operation::Get, key, lock, request).await?;
        Ok(response.items.pop())
    }

    async fn list_with(&self, prefix: &str, lock: Option<&Lock>) -> Result<Listing, Error> {
        let mut restarted = false;
        loop {
            match self.list_once(prefix, lock).await {
                // The pages took longer than the store keeps revisions.
                Err(error)
                    if !restarted && matches!(error.backend(), Some(BackendError::Compacted { .. })) =>
                {
                    restarted = true;
                }
                result => return result,
            }
        }
    }

    async fn list_once(&self, prefix: &str, lock: Option<&Lock>) -> Result<Listing, Error> {
        let _permit = self.admit().await;
        let started = Instant::now();
        let result = self.list_pages(prefix, lock).await;
        self.record(Operation::List, lock.is_some(), prefix, result.is_ok(), started);
        result
    }

    async fn list_pages(&self, prefix: &str, lock: Option<&Lock>) -> Result<Listing, Error> {
        let mut pages = Pages::new(KeyRange::prefix(prefix), self.inner.options.page);
        let mut items = Vec::new();
        let mut first = None;
        while let Some(request) = pages.request() {
            let response = self.read(Operation::List, prefix, lock, request).await?;
            pages.advance(&response);
            first.get_or_insert(response.header);
            items.extend(response.items);
        }
        Ok(Listing {
            header: first.unwrap_or_default(),
            items,
        })
    }

    async fn put_with(
        &self,
        key: &str,
        value: Bytes,
        lifetime: Lifetime,
        lock: Option<&Lock>,
    ) -> Result<(), Error> {
        let build = |key: Key, lease: LeaseId| {
            Txn::one(Op::Put {
                key,
                value: value.clone(),
                lease,
            })
        };
        self.write(Operation::Put, key, lifetime, lock, build).await?;
        Ok(())
    }

    async fn create_with(
        &self,
        key: &str,
        value: Bytes,
        lifetime: Lifetime,
        lock: Option<&Lock>,
    ) -> Result<bool, Error> {
        let build = |key: Key, lease: LeaseId| Txn {
            compares: vec![Compare::absent(key.clone())],
            then: vec![Op::Put {
                key,
                value: value.clone(),
                lease,
            }],
            otherwise: Vec::new(),
        };
        self.create_by(key, lifetime, lock, build).await
    }

    /// Writes a key by a transaction that succeeds only if it does not exist. Returns whether it was written.
    async fn create_by(
        &self,
        key: &str,
        lifetime: Lifetime,
        lock: Option<&Lock>,
        build: impl Fn(Key, LeaseId) -> Txn,
    ) -> Result<bool, Error> {
        let was_leased = self.inner.leases.lease_of(key);
        let response = self.write(Operation::Create, key, lifetime, lock, build).await?;
        if !response.succeeded && was_leased.is_none() {
            // The key belongs to another.
            self.inner.leases.release(key);
        }
        Ok(response.succeeded)
    }

    async fn delete_with(
        &self,
        key: &str,
        unchanged: Option<Revision>,
        lock: Option<&Lock>,
    ) -> Result<bool, Error> {
        let txn = Txn {
            compares: unchanged
                .map(|revision| Compare {
                    key: key.into(),
                    condition: Condition::ModRevision(revision),
                })
                .into_iter()
                .collect(),
            then: vec![Op::Delete(KeyRange::key(key))],
            otherwise: Vec::new(),
        };
        let response = self.txn(Operation::Delete, key, lock, txn).await?;
        if !response.succeeded {
            return Ok(false);
        }
        self.inner.leases.release(key);
        Ok(count_deleted(&response) > 0)
    }

    /// Writes a key. If the lease has ended, all its keys are reported as lost, except this one, which is written with
    /// another lease.
    async fn write(
        &self,
        operation: Operation,
        key: &str,
        lifetime: Lifetime,
        lock: Option<&Lock>,
        build: impl Fn(Key, LeaseId) -> Txn,
    ) -> Result<TxnResponse, Error> {
        let shared: Key = key.into();
        if lifetime == Lifetime::Permanent {
            let response = self
                .txn(operation, key, lock, build(shared, LeaseId::NONE))
                .await?;
            if response.succeeded || operation != Operation::Create {
                self.inner.leases.release(key);
            }
            return Ok(response);
        }
        let mut is_first = true;
        loop {
            let slot = self.attach(&self.inner.leases, &shared).await?;
            let result = self
                .txn(operation, key, lock, build(shared.clone(), slot.lease))
                .await;
            match result {
                Err(error) if is_lease_lost(&error) => {
                    let again: &[&str] = if is_first { &[key] } else { &[] };
                    self.inner.leases.lost(slot.lease, again);
                    if !is_first {
                        return Err(error);
                    }
                    is_first = false;
                }
                Err(error) => {
                    // After a transient error the key may have been written.
                    if slot.is_new && !error.is_transient() {
                        self.inner.leases.release(key);
                    }
                    return Err(error);
                }
                Ok(response) => return Ok(response),
            }
        }
    }

    /// Attaches a key to a lease, and acquires one if all are full.
    async fn attach(&self, leases: &LeaseManager, key: &Key) -> Result<lease::Slot, Error> {
        let grant = |ttl| async move {
            let started = Instant::now();
            let result = self.inner.backend.grant_lease(ttl).await;
            self.record(Operation::AcquireLease, false, key, result.is_ok(), started);
            result
        };
        leases
            .attach(key, grant)
            .await
            .map_err(|cause| self.error(Operation::AcquireLease, key, cause))
    }

    /// A transaction; guarded by a lock, whose loss is an error, if there is one.
    async fn txn(
        &self,
        operation: Operation,
        key: &str,
        lock: Option<&Lock>,
        txn: Txn,
    ) -> Result<TxnResponse, Error> {
        let _permit = self.admit().await;
        let started = Instant::now();
        let result = self.guarded(operation, key, lock, txn).await;
        self.record(operation, lock.is_some(), key, result.is_ok(), started);
        result
    }

    async fn guarded(
        &self,
        operation: Operation,
        key: &str,
        lock: Option<&Lock>,
        mut txn: Txn,
    ) -> Result<TxnResponse, Error> {
        let has_condition = !txn.compares.is_empty();
        if let Some(lock) = lock {
            txn.compares.insert(0, lock.compare());
            if has_condition {
                // Says which comparison failed.
                txn.otherwise
                    .push(Op::Range(RangeRequest::new(KeyRange::key(lock.key()))));
            }
        }
        let mut response = self
            .inner
            .backend
            .txn(txn)
            .await
            .map_err(|cause| self.error(operation, key, cause))?;
        let Some(lock) = lock.filter(|_| !response.succeeded) else {
            return Ok(response);
        };
        let is_held = match response.responses.pop() {
            Some(OpResponse::Range(range)) if has_condition => lock.is_in(&range),
            _ => false,
        };
        if is_held {
            return Ok(response);
        }
        Err(Error::LockLost {
            operation,
            key: key.to_owned(),
            path: lock.path().to_owned(),
        })
    }

    async fn range(
        &self,
        operation: Operation,
        key: &str,
        lock: Option<&Lock>,
        request: RangeRequest,
    ) -> Result<RangeResponse, Error> {
        let _permit = self.admit().await;
        let started = Instant::now();
        let result = self.read(operation, key, lock, request).await;
        self.record(operation, lock.is_some(), key, result.is_ok(), started);
        result
    }

    /// Reads, without a token of the rate limit: the pages of a list need one together.
    async fn read(
        &self,
        operation: Operation,
        key: &str,
        lock: Option<&Lock>,
        request: RangeRequest,
    ) -> Result<RangeResponse, Error> {
        if lock.is_none() {
            let result = self.inner.backend.range(request).await;
            return result.map_err(|cause| self.error(operation, key, cause));
        }
        let txn = Txn::one(Op::Range(request));
        let mut response = self.guarded(operation, key, lock, txn).await?;
        match response.responses.pop() {
            Some(OpResponse::Range(range)) => Ok(range),
            _ => Err(self.error(
                operation,
                key,
                BackendError::Invalid {
                    reason: "the answer to a read holds none".to_owned(),
                },
            )),
        }
    }

    async fn admit(&self) -> Permit<'_> {
        self.inner.limit.acquire().await
    }

    fn record(&self, operation: Operation, if_locked: bool, key: &str, is_success: bool, started: Instant) {
        self.inner.options.recorder.operation(&OperationRecord {
            client: self.name(),
            operation,
            if_locked,
            key,
            is_success,
            took: started.elapsed(),
        });
    }

    /// Names what failed. An answer of another store ends this client.
    fn error(&self, operation: Operation, key: &str, cause: BackendError) -> Error {
        self.check_store(&cause);
        let error = Error::Operation {
            operation,
            key: key.to_owned(),
            cause,
        };
        self.inner.monitor.note(&error);
        error
    }

    fn check_store(&self, cause: &BackendError) {
        if self.inner.options.kind == ClientKind::Mesh
            && matches!(
                cause,
                BackendError::ClusterChanged { .. } | BackendError::Replaced { .. } | BackendError::NoHeader
            )
        {
            self.fail(ConnectionError::Store {
                name: self.name().to_owned(),
                cause: cause.clone(),
            });
        }
    }

    fn fail(&self, error: ConnectionError) {
        self.inner.failed.send_if_modified(|failed| {
            // Another store is final.
            let is_final = matches!(failed, Some(ConnectionError::Store { .. }));
            if !is_final {
                *failed = Some(error);
            }
            !is_final
        });
    }

    fn recover(&self) {
        self.inner.failed.send_if_modified(|failed| {
            let recovers = matches!(failed, Some(error) if !matches!(error, ConnectionError::Store { .. }));
            if recovers {
                *failed = None;
            }
            recovers
        });
    }
}

fn is_lease_lost(error: &Error) -> bool {
    matches!(error.backend(), Some(BackendError::LeaseNotFound { .. }))
}

fn count_deleted(response: &TxnResponse) -> u64 {
    response
        .responses
        .iter()
        .map(|response| match response {
            OpResponse::Delete { deleted } => *deleted,
            OpResponse::Put | OpResponse::Range(_) => 0,
        })
        .sum()
}

/// The pages of a list, all as of the revision of the first.
struct Pages {
    size: PageSize,
    next: Option<RangeRequest>,
}

impl Pages {
    fn new(range: KeyRange, size: PageSize) -> Self {
        let mut request = RangeRequest::new(range);
        request.limit = size.first();
        Self {
            size,
            next: Some(request),
        }
    }

    /// The request for the next page; none after the last.
    fn request(&self) -> Option<RangeRequest> {
        self.next.clone()
    }

    fn advance(&mut self, response: &RangeResponse) {
        self.next = match (self.next.take(), &response.next) {
            (Some(mut request), Some(start)) => {
                request.range = request.range.starting_at(start.clone());
                if request.revision == Revision::NONE {
                    request.revision = response.header.revision;
                }
                let bytes = |item: &KeyValue| item.key.len() + item.value.len();
                let items = &response.items;
                request.limit = self.size.after(items.len(), items.iter().map(bytes).sum());
                Some(request)
            }
            _ => None,
        };
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.name())
            .field("kind", &self.inner.options.kind)
            .finish_non_exhaustive()
    }
}
