// SPDX-License-Identifier: Apache-2.0

//! Locks: etcd's recipe, compatible with other clients that use it.
//!
//! Whoever wants the lock of a path puts `<path>/<lease>`. The key that was created first holds the lock; the others wait
//! until all that were created before theirs are gone.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::Instant;

use super::{Client, Listing};
use crate::backend::{
    BackendError, Change, Compare, Condition, KeyRange, Op, OpResponse, Order, RangeRequest, RangeResponse,
    Txn, TxnResponse, WatchRequest,
};
use crate::error::Error;
use crate::keys;
use crate::operation::Operation;
use crate::types::{Key, KeyValue, LeaseId, Lifetime, Revision};

/// Pause before a wait that failed goes on.
const PAUSE: Duration = Duration::from_millis(50);

/// A lock that is held. [`Client::locked`] does what must not happen without it.
#[derive(Debug)]
#[must_use = "a lock is released when it is dropped"]
pub struct Lock {
    path: String,
    revision: Revision,
    claim: Claim,
}

impl Lock {
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The key that holds the lock.
    pub fn key(&self) -> &str {
        &self.claim.key
    }

    /// Releases the lock. It is released in any case: after an error a little later, by the [`Driver`](super::Driver).
    ///
    /// # Errors
    ///
    /// [`Error`] if the store could not do it at once.
    pub async fn unlock(mut self) -> Result<(), Error> {
        let result = remove(&self.claim.client, &self.claim.key).await;
        if result.is_ok() {
            self.claim.client.inner.lock_leases.release(&self.path);
            self.claim.is_removed = true;
        }
        result
    }

    /// Holds as long as the lock is held.
    pub(crate) fn compare(&self) -> Compare {
        Compare {
            key: self.claim.key.clone(),
            condition: Condition::CreateRevision(self.revision),
        }
    }

    /// Whether what was read of its key shows that the lock is held.
    pub(crate) fn is_in(&self, range: &RangeResponse) -> bool {
        range
            .items
            .first()
            .is_some_and(|item| item.create_revision == self.revision)
    }
}

/// The key of a lock that is held or wanted. Removed from the store when dropped, by the driver.
#[derive(Debug)]
struct Claim {
    client: Client,
    path: Key,
    key: Key,
    local: Option<OwnedMutexGuard<()>>,
    is_removed: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_removed {
            self.client.inner.unlocks.send(PendingUnlock {
                path: self.path.clone(),
                key: self.key.clone(),
                _local: self.local.take(),
            });
        }
    }
}

/// A key of a lock that is to be removed. Others of this client wait until that is done.
#[derive(Debug)]
pub(crate) struct PendingUnlock {
    pub(crate) path: Key,
    pub(crate) key: Key,
    _local: Option<OwnedMutexGuard<()>>,
}

/// The way of dropped locks to the driver.
#[derive(Debug)]
pub(crate) struct Unlocks(mpsc::UnboundedSender<PendingUnlock>);

impl Unlocks {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<PendingUnlock>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    fn send(&self, unlock: PendingUnlock) {
        // Without a driver nothing renews the lease either: the key goes with it.
        let _ = self.0.send(unlock);
    }
}

/// Locks within this client: etcd's recipe does not tell two holders with one lease apart.
#[derive(Debug, Default)]
pub(crate) struct LocalLocks(Mutex<Paths>);

#[derive(Debug, Default)]
struct Paths {
    locks: HashMap<String, Weak<tokio::sync::Mutex<()>>>,
    /// Number of paths at which unused ones are removed.
    limit: usize,
}

impl LocalLocks {
    async fn acquire(&self, path: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut paths = self.0.lock();
            match paths.locks.get(path).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => paths.insert(path),
            }
        };
        lock.lock_owned().await
    }
}

impl Paths {
    fn insert(&mut self, path: &str) -> Arc<tokio::sync::Mutex<()>> {
        if self.locks.len() >= self.limit {
            self.locks.retain(|_, lock| lock.strong_count() > 0);
            self.limit = (self.locks.len() * 2).max(64);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        self.locks.insert(path.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

pub(super) async fn lock(client: &Client, path: &str) -> Result<Lock, Error> {
    lock_within(client, path, client.inner.options.lock_timeout).await
}

/// Takes the lock of a path. The wait for others of this client does not count.
pub(super) async fn lock_within(client: &Client, path: &str, after: Duration) -> Result<Lock, Error> {
    let path = keys::join([path]);
    let local = client.inner.locks.acquire(&path).await;
    let started = Instant::now();
    let result = match tokio::time::timeout(after, acquire(client, &path, local)).await {
        Ok(result) => result,
        Err(_) => Err(Error::LockTimeout {
            path: path.clone(),
            after,
        }),
    };
    client.record(Operation::Lock, false, &path, result.is_ok(), started);
    result
}

async fn acquire(client: &Client, path: &str, local: OwnedMutexGuard<()>) -> Result<Lock, Error> {
    let mut local = Some(local);
    loop {
        let slot = client.attach(&client.inner.lock_leases, &path.into()).await?;
        let mut claim = Claim {
            client: client.clone(),
            path: path.into(),
            key: format!("{path}/{}", slot.lease).into(),
            local: local.take(),
            is_removed: false,
        };
        match create(client, path, &claim.key, slot.lease).await {
            Ok(Created { revision, is_first }) => {
                let lock = Lock {
                    path: path.to_owned(),
                    revision,
                    claim,
                };
                // Who is first has the lock since the key was put.
                if is_first || wait_for_predecessors(client, &lock).await? {
                    return Ok(lock);
                }
                claim = lock.claim;
            }
            Err(error) if super::is_lease_lost(&error) => {}
            Err(error) => return Err(error),
        }
        // The lease ended: the key is gone with it. Again with another one.
        client.inner.lock_leases.lost(slot.lease, &[]);
        claim.is_removed = true;
        local = claim.local.take();
    }
}

/// The key of a lock as it was put.
struct Created {
    revision: Revision,
    /// Whether no other key of the path was created before.
    is_first: bool,
}

/// Puts the key, and looks who is first: one request if the lock is free. A key that this client left behind counts.
async fn create(client: &Client, path: &str, key: &Key, lease: LeaseId) -> Result<Created, Error> {
    let mut first = RangeRequest::new(KeyRange::prefix(&keys::below(path)));
    first.order = Order::OldestCreated;
    first.limit = 1;
    first.keys_only = true;
    let first = Op::Range(first);
    let own = Op::Range(RangeRequest::new(KeyRange::key(key)));
    let txn = Txn {
        compares: vec![Compare::absent(key.clone())],
        then: vec![put(key.clone(), &Bytes::new(), lease), first.clone()],
        otherwise: vec![own, first],
    };
    let response = call(client, path, client.inner.backend.txn(txn).await)?;
    let revision = found(&response, 0).map_or(response.header.revision, |item| item.create_revision);
    let is_first = found(&response, 1).is_some_and(|first| first.create_revision == revision);
    Ok(Created { revision, is_first })
}

fn put(key: Key, value: &Bytes, lease: LeaseId) -> Op {
    Op::Put {
        key,
        value: value.clone(),
        lease,
    }
}

/// The key that a part of a transaction has read, if it did.
fn found(response: &TxnResponse, part: usize) -> Option<&KeyValue> {
    match response.responses.get(part) {
        Some(OpResponse::Range(range)) => range.items.first(),
        _ => None,
    }
}

/// Waits until all keys of the path that were created before are gone. Returns whether the lease has lived through the wait: if
/// not, the lock is not held.
async fn wait_for_predecessors(client: &Client, lock: &Lock) -> Result<bool, Error> {
    loop {
        let mut request = RangeRequest::new(KeyRange::prefix(&keys::below(&lock.path)));
        request.order = Order::NewestCreated;
        request.max_create_revision = Revision(lock.revision.0 - 1);
        request.limit = 1;
        request.keys_only = true;
        let txn = Txn {
            compares: vec![lock.compare()],
            ..Txn::one(Op::Range(request))
        };
        let response = call(client, &lock.path, client.inner.backend.txn(txn).await)?;
        if !response.succeeded {
            return Ok(false);
        }
        let Some(predecessor) = found(&response, 0) else {
            return Ok(true);
        };
        wait_deleted(client, &predecessor.key, response.header.revision.next()).await;
    }
}

/// Waits until a key is deleted, or the watch ends for another reason.
async fn wait_deleted(client: &Client, key: &str, start: Revision) {
    let request = WatchRequest {
        range: KeyRange::key(key),
        start,
    };
    if let Ok(mut responses) = client.inner.backend.watch(request).await {
        while let Some(Ok(response)) = responses.next().await {
            if response
                .events
                .iter()
                .any(|event| matches!(event, Change::Delete { .. }))
            {
                return;
            }
        }
    }
    tokio::time::sleep(PAUSE).await;
}

/// Removes the key of a lock.
pub(super) async fn remove(client: &Client, key: &str) -> Result<(), Error> {
    let started = Instant::now();
    let txn = Txn::one(Op::Delete(KeyRange::key(key)));
    let result = client.inner.backend.txn(txn).await;
    client.record(Operation::Unlock, false, key, result.is_ok(), started);
    match result {
        Ok(_) => Ok(()),
        Err(cause) => Err(client.error(Operation::Unlock, key, cause)),
    }
}

fn call<T>(client: &Client, path: &str, result: Result<T, BackendError>) -> Result<T, Error> {
    result.map_err(|cause| client.error(Operation::Lock, path, cause))
}

/// A key that may be unused; see [`Client::delete_unused`].
#[derive(Clone, Debug)]
pub struct Unused<'a> {
    /// The key as it was read.
    pub item: &'a KeyValue,
    /// Prefix of the keys that use it.
    pub users: Key,
    /// The lock that allows to delete it.
    pub lock: &'a Lock,
}

/// Operations that are done only as long as a lock is held; see [`Client::locked`].
#[derive(Clone, Copy, Debug)]
pub struct Locked<'a> {
    client: &'a Client,
    lock: &'a Lock,
}

impl<'a> Locked<'a> {
    pub(super) fn new(client: &'a Client, lock: &'a Lock) -> Self {
        Self { client, lock }
    }

    /// Reads a key.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::get`].
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        self.client.get_with(key, Some(self.lock)).await
    }

    /// Reads all keys that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::list`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.client.list_with(prefix, Some(self.lock)).await
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::put`].
    pub async fn put(&self, key: &str, value: impl Into<Bytes>, lifetime: Lifetime) -> Result<(), Error> {
        self.client
            .put_with(key, value.into(), lifetime, Some(self.lock))
            .await
    }

    /// Writes a key unless it has that value, and that lease, already. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::put_if_different`].
    pub async fn put_if_different(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        lifetime: Lifetime,
    ) -> Result<bool, Error> {
        let (client, lock, value) = (self.client, Some(self.lock), value.into());
        // If it compared values, a lost lock would take the branch that writes. A key that does not exist is written at once;
        // another is read, and written if it differs.
        let build = |key: Key, lease: LeaseId| Txn {
            compares: vec![Compare::absent(key.clone())],
            otherwise: vec![Op::Range(RangeRequest::new(KeyRange::key(&key)))],
            then: vec![put(key, &value, lease)],
        };
        let response = client
            .write(Operation::PutIfDifferent, key, lifetime, lock, build)
            .await?;
        if response.succeeded {
            return Ok(true);
        }
        let lease = match lifetime {
            Lifetime::Permanent => Some(LeaseId::NONE),
            Lifetime::Leased => client.inner.leases.lease_of(key),
        };
        let is_same = |present: &KeyValue| present.value == value && lease == Some(present.lease);
        if found(&response, 0).is_some_and(is_same) {
            return Ok(false);
        }
        client.put_with(key, value, lifetime, lock).await?;
        Ok(true)
    }

    /// Writes a key unless it exists. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::create`].
    pub async fn create(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        lifetime: Lifetime,
    ) -> Result<bool, Error> {
        self.client
            .create_with(key, value.into(), lifetime, Some(self.lock))
            .await
    }

    /// Writes a key that stays, and one with the lease of the client that uses it, in one transaction. Writes neither if the first
    /// exists, or any key that begins with `users`, as the second one does. Returns whether they were written.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::create`].
    pub async fn create_used(
        &self,
        (used, used_value): (&str, impl Into<Bytes>),
        (user, user_value): (&str, impl Into<Bytes>),
        users: &str,
    ) -> Result<bool, Error> {
        let (used_value, user_value) = (used_value.into(), user_value.into());
        let build = |user: Key, lease: LeaseId| Txn {
            compares: vec![Compare::absent(used.into()), Compare::none_below(users)],
            then: vec![
                put(used.into(), &used_value, LeaseId::NONE),
                put(user, &user_value, lease),
            ],
            otherwise: Vec::new(),
        };
        self.client
            .create_by(user, Lifetime::Leased, Some(self.lock), build)
            .await
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::delete`].
    pub async fn delete(&self, key: &str) -> Result<bool, Error> {
        self.client.delete_with(key, None, Some(self.lock)).await
    }

    /// Deletes a key if it is as it was read. Returns whether it was deleted.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the lock is no longer held, otherwise as [`Client::delete_if_unchanged`].
    pub async fn delete_if_unchanged(&self, item: &KeyValue) -> Result<bool, Error> {
        self.client
            .delete_with(&item.key, Some(item.mod_revision), Some(self.lock))
            .await
    }
}
