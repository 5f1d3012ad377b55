// SPDX-License-Identifier: Apache-2.0

//! Requests to a store and their responses.

use bytes::Bytes;

use crate::types::{Header, Key, KeyValue, LeaseId, Revision};

/// Keys from `start` on, before `end`.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRange {
    start: Bytes,
    /// Empty: only `start`. One zero byte: no end.
    end: Bytes,
}

impl KeyRange {
    pub fn key(key: &str) -> Self {
        Self {
            start: Bytes::copy_from_slice(key.as_bytes()),
            end: Bytes::new(),
        }
    }

    /// All keys that begin with `prefix`; all keys if it is empty.
    pub fn prefix(prefix: &str) -> Self {
        if prefix.is_empty() {
            return Self {
                start: Bytes::from_static(&[0]),
                end: Bytes::from_static(&[0]),
            };
        }
        // A text ends in no byte 0xff.
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self {
            start: Bytes::copy_from_slice(prefix.as_bytes()),
            end: end.into(),
        }
    }

    /// The rest of the range, from `start` on.
    #[must_use]
    pub fn starting_at(&self, start: Bytes) -> Self {
        Self {
            start,
            end: self.end.clone(),
        }
    }

    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// Where the range ends, as etcd has it: empty for a single key, one zero byte for no end.
    pub fn end(&self) -> &Bytes {
        &self.end
    }

    /// Whether a key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_ref() {
            [] => key == self.start,
            [0] => key >= self.start.as_ref(),
            end => key >= self.start.as_ref() && key < end,
        }
    }
}

impl std::fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = String::from_utf8_lossy(&self.start);
        match self.end.as_ref() {
            [] => write!(f, "{start:?}"),
            [0] => write!(f, "{start:?}.."),
            end => write!(f, "{start:?}..{:?}", String::from_utf8_lossy(end)),
        }
    }
}

/// In which order keys are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Key,
    /// By the revision at which they were created, oldest first.
    OldestCreated,
    /// By the revision at which they were created, newest first.
    NewestCreated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    pub range: KeyRange,
    /// As of this revision; [`Revision::NONE`] for the newest.
    pub revision: Revision,
    /// At most so many keys; 0 for all.
    pub limit: usize,
    pub order: Order,
    /// Only keys created at this revision or before; [`Revision::NONE`] for all.
    pub max_create_revision: Revision,
    pub keys_only: bool,
}

impl RangeRequest {
    /// All keys of a range as they are now, by key.
    pub fn new(range: KeyRange) -> Self {
        Self {
            range,
            revision: Revision::NONE,
            limit: 0,
            order: Order::Key,
            max_create_revision: Revision::NONE,
            keys_only: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResponse {
    pub header: Header,
    /// The keys. Keys that are no UTF-8 are left out: nothing that uses this crate writes such.
    pub items: Vec<KeyValue>,
    /// Where the next page starts, if there are more keys than the limit. Only for [`Order::Key`].
    pub next: Option<Bytes>,
}

/// What must hold of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It was created at this revision; [`Revision::NONE`]: it does not exist.
    CreateRevision(Revision),
    /// It was last written at this revision.
    ModRevision(Revision),
    Value(Bytes),
    /// It is attached to this lease.
    Lease(LeaseId),
    NoneBelow,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    pub key: Key,
    pub condition: Condition,
}

impl Compare {
    /// Holds if a key does not exist.
    pub fn absent(key: Key) -> Self {
        Self {
            key,
            condition: Condition::CreateRevision(Revision::NONE),
        }
    }

    /// Holds if no key begins with `prefix`.
    pub fn none_below(prefix: impl Into<Key>) -> Self {
        Self {
            key: prefix.into(),
            condition: Condition::NoneBelow,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a key. A lease that it had before is replaced.
    Put {
        key: Key,
        value: Bytes,
        /// The lease to attach it to, or [`LeaseId::NONE`].
        lease: LeaseId,
    },
    /// Deletes the keys of a range.
    Delete(KeyRange),
    Range(RangeRequest),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// What is compared; nothing to compare holds.
    pub compares: Vec<Compare>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

impl Txn {
    /// A transaction that does one thing in any case.
    pub fn one(op: Op) -> Self {
        Self {
            then: vec![op],
            ..Self::default()
        }
    }
}

/// What an operation of a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResponse {
    Put,
    Delete { deleted: u64 },
    Range(RangeResponse),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResponse {
    /// State of the store. The revision is that of the transaction if it has written.
    pub header: Header,
    pub succeeded: bool,
    /// One response an operation that was done.
    pub responses: Vec<OpResponse>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    pub range: KeyRange,
    /// The first revision of which changes are delivered.
    pub start: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_before_the_next_sibling() {
        let range = KeyRange::prefix("a/b/");

        assert!(range.contains(b"a/b/"));
        assert!(range.contains(b"a/b/c"));
        assert!(range.contains("a/b/\u{10ffff}".as_bytes()));
        assert!(!range.contains(b"a/b"));
        assert!(!range.contains(b"a/b0"));
        assert_eq!(range.end().as_ref(), b"a/b0");
    }

    #[test]
    fn an_empty_prefix_is_all_keys() {
        let all = KeyRange::prefix("");

        assert!(all.contains(b"a"));
        assert!(all.contains("\u{10ffff}".as_bytes()));
    }

    #[test]
    fn a_key_is_only_itself() {
        assert!(KeyRange::key("a").contains(b"a"));
        assert!(!KeyRange::key("a").contains(b"ab"));
    }
}
