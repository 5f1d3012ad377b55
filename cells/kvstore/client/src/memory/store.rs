// SPDX-License-Identifier: Apache-2.0

//! Keys with their history, and leases.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use crate::backend::{
    BackendError, Change, Compare, Condition, Grant, KeyRange, Op, OpResponse, Order, RangeRequest,
    RangeResponse, Txn, TxnResponse,
};
use crate::types::{Header, Key, KeyValue, LeaseId, Revision};

/// The shortest time that a lease is granted for.
const MIN_TTL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Store {
    header: Header,
    /// How often the store was restored: watches of the time before have ended.
    pub(super) generation: u64,
    /// The oldest revision that can be read.
    compacted: Revision,
    keys: BTreeMap<Bytes, History>,
    log: VecDeque<(Revision, Vec<Change>)>,
    leases: HashMap<LeaseId, Lease>,
    /// How many revisions are kept at least; 0 for all.
    kept: usize,
}

/// The versions of a key since the last compaction, oldest first. `None`: it was deleted.
#[derive(Clone, Debug, Default)]
struct History {
    versions: Vec<(Revision, Option<KeyValue>)>,
}

impl History {
    fn newest(&self) -> Option<&KeyValue> {
        self.versions.last().and_then(|(_, item)| item.as_ref())
    }

    fn at(&self, revision: Revision) -> Option<&KeyValue> {
        self.versions
            .iter()
            .rev()
            .find(|(at, _)| *at <= revision)
            .and_then(|(_, item)| item.as_ref())
    }

    /// Forgets what cannot be read from `revision` on. Returns whether something is left.
    fn compact(&mut self, revision: Revision) -> bool {
        let newest_old = self.versions.iter().rposition(|(at, _)| *at <= revision);
        if let Some(at) = newest_old {
            self.versions.drain(..at);
            if self.versions.first().is_some_and(|(_, item)| item.is_none()) {
                self.versions.remove(0);
            }
        }
        !self.versions.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    expires: Instant,
    keys: BTreeSet<Key>,
}

impl Store {
    pub(super) fn new(kept: usize) -> Self {
        Self {
            header: Header {
                cluster_id: fastrand::u64(1..),
                revision: Revision(1),
            },
            generation: 0,
            compacted: Revision::NONE,
            keys: BTreeMap::new(),
            log: VecDeque::new(),
            leases: HashMap::new(),
            kept,
        }
    }

    /// An empty store with the same settings.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.kept)
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    pub(super) fn cluster_id(&self) -> u64 {
        self.header.cluster_id
    }

    pub(super) fn revision(&self) -> Revision {
        self.header.revision
    }

    pub(super) fn items(&self) -> Vec<KeyValue> {
        self.keys
            .values()
            .filter_map(|history| history.newest().cloned())
            .collect()
    }

    pub(super) fn check_compacted(&self, requested: Revision) -> Result<(), BackendError> {
        if requested < self.compacted {
            return Err(BackendError::Compacted {
                requested,
                oldest: self.compacted,
            });
        }
        Ok(())
    }

    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, BackendError> {
        let revision = match request.revision {
            Revision::NONE => self.header.revision,
            requested if requested > self.header.revision => {
                return Err(BackendError::FutureRevision { requested });
            }
            requested => {
                self.check_compacted(requested)?;
                requested
            }
        };
        let start = Bound::Included(request.range.start().clone());
        let mut found = self
            .keys
            .range::<Bytes, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| request.range.contains(key))
            .filter_map(|(_, history)| history.at(revision))
            .filter(|item| {
                request.max_create_revision == Revision::NONE
                    || item.create_revision <= request.max_create_revision
            });
        let limit = match request.limit {
            0 => usize::MAX,
            limit => limit,
        };
        let mut next = None;
        let mut items: Vec<KeyValue> = if request.order == Order::Key {
            let page: Vec<KeyValue> = found.by_ref().take(limit).cloned().collect();
            next = found.next().and(page.last()).map(|last| after(&last.key));
            page
        } else {
            let mut all: Vec<&KeyValue> = found.collect();
            all.sort_by_key(|item| item.create_revision);
            if request.order == Order::NewestCreated {
                all.reverse();
            }
            all.into_iter().take(limit).cloned().collect()
        };
        if request.keys_only {
            for item in &mut items {
                item.value = Bytes::new();
            }
        }
        Ok(RangeResponse {
            header: self.header,
            items,
            next,
        })
    }

    pub(super) fn txn(&mut self, txn: Txn) -> Result<TxnResponse, BackendError> {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
        self.check(&txn.then)?;
        self.check(&txn.otherwise)?;
        let ops = if succeeded { txn.then } else { txn.otherwise };
        self.check_leases(&ops)?;
        let revision = self.header.revision.next();
        let mut changes = Vec::new();
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            responses.push(match op {
                Op::Put { key, value, lease } => {
                    changes.push(Change::Put(self.put(key, value, lease, revision)));
                    OpResponse::Put
                }
                Op::Delete(range) => {
                    let deleted = self.delete(&range, revision);
                    let count = deleted.len() as u64;
                    changes.extend(deleted);
                    OpResponse::Delete { deleted: count }
                }
                Op::Range(request) => OpResponse::Range(self.range_within(&request, revision, &changes)?),
            });
        }
        self.commit(revision, changes);
        for response in &mut responses {
            if let OpResponse::Range(range) = response {
                range.header = self.header;
            }
        }
        Ok(TxnResponse {
            header: self.header,
            succeeded,
            responses,
        })
    }

    /// Reads within a transaction, which sees what it has written.
    fn range_within(
        &mut self,
        request: &RangeRequest,
        revision: Revision,
        changes: &[Change],
    ) -> Result<RangeResponse, BackendError> {
        let before = self.header.revision;
        if !changes.is_empty() && request.revision == Revision::NONE {
            self.header.revision = revision;
        }
        let result = self.range(request);
        self.header.revision = before;
        result
    }

    fn holds(&self, compare: &Compare) -> bool {
        let item = self
            .keys
            .get(compare.key.as_bytes())
            .and_then(|history| history.newest());
        match (&compare.condition, item) {
            (Condition::CreateRevision(revision), item) => {
                item.map_or(Revision::NONE, |item| item.create_revision) == *revision
            }
            (Condition::ModRevision(revision), item) => {
                item.map_or(Revision::NONE, |item| item.mod_revision) == *revision
            }
            (Condition::Lease(lease), item) => item.map_or(LeaseId::NONE, |item| item.lease) == *lease,
            // A key that does not exist has no value, not an empty one.
            (Condition::Value(value), item) => item.is_some_and(|item| item.value == value),
            (Condition::NoneBelow, _) => {
                let mut request = RangeRequest::new(KeyRange::prefix(&compare.key));
                request.limit = 1;
                self.range(&request).is_ok_and(|found| found.items.is_empty())
            }
        }
    }

    /// Refuses what etcd refuses: to put a key twice, or to put one that a delete of the same list covers.
    fn check(&self, ops: &[Op]) -> Result<(), BackendError> {
        let mut put: HashSet<&Key> = HashSet::new();
        for op in ops {
            match op {
                Op::Put { key, .. } if key.is_empty() => {
                    return Err(BackendError::Invalid {
                        reason: "key is not provided".to_owned(),
                    });
                }
                Op::Put { key, .. } if !put.insert(key) => {
                    return Err(BackendError::Invalid {
                        reason: format!("duplicate key given in transaction: `{key}`"),
                    });
                }
                _ => {}
            }
        }
        for op in ops {
            if let Op::Delete(range) = op
                && let Some(key) = put.iter().find(|key| range.contains(key.as_bytes()))
            {
                return Err(BackendError::Invalid {
                    reason: format!("duplicate key given in transaction: `{key}`"),
                });
            }
        }
        Ok(())
    }

    fn check_leases(&self, ops: &[Op]) -> Result<(), BackendError> {
        for op in ops {
            if let Op::Put { lease, .. } = op
                && *lease != LeaseId::NONE
                && !self.leases.contains_key(lease)
            {
                return Err(BackendError::LeaseNotFound { lease: *lease });
            }
        }
        Ok(())
    }

    fn put(&mut self, key: Key, value: Bytes, lease: LeaseId, revision: Revision) -> KeyValue {
        let history = self
            .keys
            .entry(Bytes::copy_from_slice(key.as_bytes()))
            .or_default();
        let item = match history.newest() {
            Some(present) => KeyValue {
                key: present.key.clone(),
                value,
                create_revision: present.create_revision,
                mod_revision: revision,
                version: present.version + 1,
                lease,
            },
            None => KeyValue {
                key,
                value,
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease,
            },
        };
        let old = history.newest().map_or(LeaseId::NONE, |present| present.lease);
        history.versions.push((revision, Some(item.clone())));
        if old != lease
            && let Some(session) = self.leases.get_mut(&old)
        {
            session.keys.remove(&item.key);
        }
        if let Some(session) = self.leases.get_mut(&lease) {
            session.keys.insert(item.key.clone());
        }
        item
    }

    fn delete(&mut self, range: &KeyRange, revision: Revision) -> Vec<Change> {
        let start = Bound::Included(range.start().clone());
        let mut deleted = Vec::new();
        for (key, history) in self.keys.range_mut::<Bytes, _>((start, Bound::Unbounded)) {
            if !range.contains(key) {
                break;
            }
            let Some(item) = history.newest() else { continue };
            let (key, lease) = (item.key.clone(), item.lease);
            history.versions.push((revision, None));
            if let Some(session) = self.leases.get_mut(&lease) {
                session.keys.remove(&key);
            }
            deleted.push(Change::Delete { key, revision });
        }
        deleted
    }

    fn commit(&mut self, revision: Revision, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        self.header.revision = revision;
        self.log.push_back((revision, changes));
        // Twice as many before half of them go, so that a write costs little.
        if self.kept > 0 && self.log.len() >= self.kept.saturating_mul(2) {
            self.forget_before(Revision(revision.0 - self.kept as i64 + 1));
        }
    }

    pub(super) fn compact(&mut self, revision: Revision) -> Result<(), BackendError> {
        if revision > self.header.revision {
            return Err(BackendError::FutureRevision { requested: revision });
        }
        if revision <= self.compacted {
            return Err(BackendError::Compacted {
                requested: revision,
                oldest: self.compacted,
            });
        }
        self.forget_before(revision);
        Ok(())
    }

    fn forget_before(&mut self, revision: Revision) {
        self.compacted = self.compacted.max(revision);
        self.keys.retain(|_, history| history.compact(revision));
        while self.log.front().is_some_and(|(at, _)| *at < revision) {
            self.log.pop_front();
        }
    }

    /// The changes of a range since `start`, and the newest revision that was looked at.
    pub(super) fn changes(
        &self,
        range: &KeyRange,
        start: Revision,
    ) -> Result<(Vec<Change>, Revision), BackendError> {
        self.check_compacted(start)?;
        let first = self.log.partition_point(|(at, _)| *at < start);
        let events = self
            .log
            .range(first..)
            .flat_map(|(_, changes)| changes)
            .filter(|change| match change {
                Change::Put(item) => range.contains(item.key.as_bytes()),
                Change::Delete { key, .. } => range.contains(key.as_bytes()),
            })
            .cloned()
            .collect();
        Ok((events, self.header.revision))
    }

    pub(super) fn grant_lease(&mut self, ttl: Duration, now: Instant) -> Result<Grant, BackendError> {
        // Whole seconds, as etcd has them.
        let ttl = Duration::from_secs(ttl.as_secs()).max(MIN_TTL);
        let id = loop {
            let id = LeaseId(fastrand::i64(1..));
            if !self.leases.contains_key(&id) {
                break id;
            }
        };
        self.leases.insert(
            id,
            Lease {
                ttl,
                expires: now + ttl,
                keys: BTreeSet::new(),
            },
        );
        Ok(Grant {
            header: self.header,
            id,
            ttl,
        })
    }

    pub(super) fn keep_alive(&mut self, lease: LeaseId, now: Instant) -> Result<Duration, BackendError> {
        let session = self
            .leases
            .get_mut(&lease)
            .ok_or(BackendError::LeaseNotFound { lease })?;
        session.expires = now + session.ttl;
        Ok(session.ttl)
    }

    pub(super) fn revoke_lease(&mut self, lease: LeaseId) -> Result<(), BackendError> {
        let session = self
            .leases
            .remove(&lease)
            .ok_or(BackendError::LeaseNotFound { lease })?;
        let revision = self.header.revision.next();
        let mut changes = Vec::new();
        for key in session.keys {
            changes.extend(self.delete(&KeyRange::key(&key), revision));
        }
        self.commit(revision, changes);
        Ok(())
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.expires).min()
    }

    /// Ends leases whose time is over. Returns whether keys were deleted.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.header.revision;
        let mut ended: Vec<(Instant, LeaseId)> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.expires <= now)
            .map(|(id, lease)| (lease.expires, *id))
            .collect();
        ended.sort_unstable();
        for (_, lease) in ended {
            // It is there: it was listed just now.
            let _ = self.revoke_lease(lease);
        }
        self.header.revision != before
    }
}

/// The first key after this one.
fn after(key: &str) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key.as_bytes());
    next.put_u8(0);
    next.freeze()
}
