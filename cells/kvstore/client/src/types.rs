// SPDX-License-Identifier: Apache-2.0

//! What a key-value store holds: keys with values, revisions and leases.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A key. Cheap to clone: watchers and stores share it.
pub type Key = Arc<str>;

/// A point in the history of a store. Every transaction that writes has one of its own, larger than those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

impl Revision {
    /// In a request: the newest revision. As the revision of a key: the key does not exist.
    pub const NONE: Self = Self(0);

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease: keys attached to it are deleted when it is not kept alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// No lease: the key stays until it is deleted.
    pub const NONE: Self = Self(0);
}

/// Lower-case hexadecimal without padding, as in the keys of locks.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The state of the store when it replied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Id of the etcd cluster. Revisions of clusters with different ids are unrelated.
    pub cluster_id: u64,
    pub revision: Revision,
}

/// A key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Key,
    pub value: Bytes,
    /// The revision at which it was created. A key that was deleted and written again has a new one.
    pub create_revision: Revision,
    /// The revision at which it was last written.
    pub mod_revision: Revision,
    /// How often it was written since it was created; 1 for a new key.
    pub version: i64,
    /// The lease that it is attached to, or [`LeaseId::NONE`].
    pub lease: LeaseId,
}

/// How long a written key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Permanent,
    /// Until it is deleted, or the client has been gone for the time of its lease.
    Leased,
}
