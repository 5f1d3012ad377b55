// SPDX-License-Identifier: Apache-2.0

//! Many keys at once: batches of writes, and keys that a former program left behind.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tokio::time::Instant;

use super::Client;
use crate::backend::{BackendError, KeyRange, Op, Txn};
use crate::error::Error;
use crate::operation::Operation;
use crate::types::{Key, KeyValue, LeaseId};

/// How many changes a batch should have at most: etcd accepts 128 operations a transaction by default.
pub const MAX_BATCH: usize = 100;
/// How often a batch is tried again because one of its leases has ended.
const LEASE_ATTEMPTS: usize = 3;

/// A change of one key, as part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: Key,
    /// The value to write with the lease of the client; `None` deletes the key.
    pub value: Option<Bytes>,
}

/// A key that a former program left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub item: KeyValue,
    /// Whether its lease is kept alive from now on. If not, the key vanishes with it, or has none and never does.
    pub is_kept: bool,
}

impl Client {
    /// Writes and deletes different keys in one transaction: all of them or none. Written keys have the lease of the
    /// client. Up to [`MAX_BATCH`] changes, of together less than 1 MiB, are accepted by every etcd.
    ///
    /// # Errors
    ///
    /// [`Error`], which names the first key. If it is not [transient](Error::is_transient), one of the changes is invalid:
    /// write them one by one to see which.
    pub async fn apply(&self, changes: &[KeyChange]) -> Result<(), Error> {
        let Some(first) = changes.first() else {
            return Ok(());
        };
        let mut attempts = 0;
        loop {
            let (ops, leases, new) = self.operations(changes).await?;
            let txn = Txn {
                then: ops,
                ..Txn::default()
            };
            let error = match self.txn(Operation::Batch, &first.key, None, txn).await {
                Ok(_) => break,
                Err(error) => error,
            };
            attempts += 1;
            let is_lease_lost = matches!(error.backend(), Some(BackendError::LeaseNotFound { .. }));
            if is_lease_lost && attempts < LEASE_ATTEMPTS {
                self.forget_ended(leases, changes).await;
                continue;
            }
            if !error.is_transient() {
                // After a transient error the keys may have been written.
                for key in new {
                    self.inner.leases.release(&key);
                }
            }
            return Err(error);
        }
        for change in changes.iter().filter(|change| change.value.is_none()) {
            self.inner.leases.release(&change.key);
        }
        Ok(())
    }

    /// The operations of a batch, its leases, and the keys that were attached to one by this call.
    async fn operations(
        &self,
        changes: &[KeyChange],
    ) -> Result<(Vec<Op>, BTreeSet<LeaseId>, Vec<Key>), Error> {
        let mut ops = Vec::with_capacity(changes.len());
        let mut leases = BTreeSet::new();
        let mut new = Vec::new();
        for change in changes {
            let Some(value) = &change.value else {
                ops.push(Op::Delete(KeyRange::key(&change.key)));
                continue;
            };
            let slot = self.attach(&self.inner.leases, &change.key).await?;
            leases.insert(slot.lease);
            if slot.is_new {
                new.push(change.key.clone());
            }
            ops.push(Op::Put {
                key: change.key.clone(),
                value: value.clone(),
                lease: slot.lease,
            });
        }
        Ok((ops, leases, new))
    }

    /// Forgets those leases that have ended: the answer to a transaction does not say which.
    async fn forget_ended(&self, leases: BTreeSet<LeaseId>, changes: &[KeyChange]) {
        let again: Vec<&str> = changes.iter().map(|change| &*change.key).collect();
        for lease in leases {
            let result = self.inner.backend.keep_alive(lease).await;
            if let Err(BackendError::LeaseNotFound { .. }) = result {
                self.inner.leases.lost(lease, &again);
            }
        }
    }

    /// Lists the keys that begin with `prefix`, and keeps those leases alive that they are attached to, as if this client
    /// had written them: for keys that only one program writes, after its restart.
    ///
    /// # Errors
    ///
    /// [`Error`]. Leases that have ended are none.
    pub async fn adopt(&self, prefix: &str) -> Result<Vec<Adopted>, Error> {
        let items = self.list(prefix).await?.items;
        let mut keys: BTreeMap<LeaseId, Vec<Key>> = BTreeMap::new();
        for item in items.iter().filter(|item| item.lease != LeaseId::NONE) {
            keys.entry(item.lease).or_default().push(item.key.clone());
        }
        let mut ended = BTreeSet::new();
        for (lease, keys) in &keys {
            let asked = Instant::now();
            let result = self.inner.backend.keep_alive(*lease).await;
            self.record(Operation::KeepAlive, false, prefix, result.is_ok(), asked);
            match result {
                Ok(ttl) => self.inner.leases.adopt(*lease, asked, ttl, keys),
                Err(BackendError::LeaseNotFound { .. }) => {
                    ended.insert(*lease);
                }
                Err(cause) => return Err(self.error(Operation::KeepAlive, prefix, cause)),
            }
        }
        let is_kept = |item: &KeyValue| item.lease != LeaseId::NONE && !ended.contains(&item.lease);
        let adopted = items.into_iter().map(|item| Adopted {
            is_kept: is_kept(&item),
            item,
        });
        Ok(adopted.collect())
    }
}
