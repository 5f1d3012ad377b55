// SPDX-License-Identifier: Apache-2.0

//! What a store has to do: etcd's operations, as few of them as everything else is made of.

mod request;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

pub use request::{
    Compare, Condition, KeyRange, Op, OpResponse, Order, RangeRequest, RangeResponse, Txn, TxnResponse,
    WatchRequest,
};

use crate::types::{Header, Key, KeyValue, LeaseId, Revision};

/// A key-value store with etcd's semantics. [`Client`](crate::Client) stands on it; cells do not call it.
///
/// Every implementation passes the suite in `testing::contract`. All operations may be dropped while they run: a write
/// may have happened then or not. Without an answer in reasonable time they fail
/// with [`BackendError::Timeout`] or [`BackendError::Unavailable`].
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Name of the kind of store, as status texts begin: `etcd`.
    fn kind(&self) -> &'static str;

    /// Reads the keys of a range.
    ///
    /// # Errors
    ///
    /// [`BackendError::Compacted`] if the requested revision is no longer stored.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError>;

    /// Compares, then writes and reads: all of it or nothing, at one revision.
    ///
    /// # Errors
    ///
    /// [`BackendError::LeaseNotFound`] if a key is put with a lease that has ended, [`BackendError::Invalid`] if one key
    /// is put twice.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError>;

    /// Watches a range. The stream yields a response without changes when the watch stands, then what was written since
    /// [`WatchRequest::start`], in order and without gaps, until it yields an error or ends. Changes of one revision are
    /// in one response.
    ///
    /// # Errors
    ///
    /// If the watch cannot be created. A start that is compacted may be the error of this call or of the stream.
    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError>;

    /// Forgets revisions before this one: they cannot be read or watched from any more.
    ///
    /// # Errors
    ///
    /// [`BackendError::Compacted`] if that has been done already.
    async fn compact(&self, revision: Revision) -> Result<(), BackendError>;

    /// Grants a lease. The store may grant a longer time than requested.
    ///
    /// # Errors
    ///
    /// [`BackendError`] of the store.
    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError>;

    /// Renews a lease, and returns for how long.
    ///
    /// # Errors
    ///
    /// [`BackendError::LeaseNotFound`] if it has ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, BackendError>;

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    ///
    /// [`BackendError::LeaseNotFound`] if it has ended.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), BackendError>;

    /// The endpoints and how each of them is. Takes no longer than one status check may take.
    async fn endpoints(&self) -> Vec<EndpointStatus>;

    /// Addresses of the endpoints, without asking them.
    fn addresses(&self) -> Vec<String>;
}

pub type WatchStream = BoxStream<'static, Result<WatchResponse, BackendError>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchResponse {
    /// State of the store. Changes up to its revision may still follow: what was delivered is in the changes.
    pub header: Header,
    pub events: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(KeyValue),
    /// The key was deleted, or its lease ended.
    Delete {
        key: Key,
        /// The revision at which that happened.
        revision: Revision,
    },
}

impl Change {
    /// The revision at which it happened.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(item) => item.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub header: Header,
    pub id: LeaseId,
    /// How long it lives without renewal.
    pub ttl: Duration,
}

/// How one endpoint of a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    pub endpoint: String,
    /// What it answered, or the error as a text.
    pub answer: Result<EndpointAnswer, String>,
}

/// What an endpoint says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointAnswer {
    pub version: String,
    pub is_leader: bool,
    /// State of the store as this endpoint has it.
    pub header: Header,
    /// Alarms of the store that this endpoint reports, such as [`NO_SPACE`](Self::NO_SPACE).
    pub alarms: Vec<String>,
}

impl EndpointAnswer {
    /// The alarm of a store that has no space left: writes are refused until it is disarmed.
    pub const NO_SPACE: &'static str = "NOSPACE";

    /// Whether it reports that the store has no space left.
    pub fn has_no_space(&self) -> bool {
        self.alarms.iter().any(|alarm| alarm == Self::NO_SPACE)
    }
}

/// The cause of an error, shared by all that see it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a store did not do what was requested.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// No store is configured. Check [`Client::is_enabled`](crate::Client::is_enabled) before.
    #[error("no key-value store is configured")]
    Disabled,

    /// No endpoint can be reached. Retried by whoever asked; check addresses, network and certificates.
    #[error("cannot reach {endpoints}")]
    Unavailable {
        endpoints: String,
        #[source]
        cause: Cause,
    },

    /// No answer in time: an endpoint hangs, or the store has no quorum.
    #[error("no answer within {after:?}")]
    Timeout { after: Duration },

    /// The store has no leader at present. Passes by itself when a quorum of its members is up.
    #[error("the store has no leader")]
    NoLeader,

    /// The revision is no longer stored: list again.
    #[error("revision {requested} is compacted")]
    Compacted {
        /// The revision that was asked for.
        requested: Revision,
        /// The oldest revision that is stored; [`Revision::NONE`] if the store does not say.
        oldest: Revision,
    },

    /// The revision is newer than the store: another store answers than the one that it came from.
    #[error("revision {requested} is in the future of the store")]
    FutureRevision {
        /// The revision that was asked for.
        requested: Revision,
    },

    /// The lease has ended: write again with another.
    #[error("lease {lease} has ended")]
    LeaseNotFound { lease: LeaseId },

    /// Another etcd cluster answers. Its revisions are unrelated: list again through a new client.
    #[error("etcd cluster id has changed from {expected:x} to {found:x}")]
    ClusterChanged {
        /// The id of the first answer.
        expected: u64,
        found: u64,
    },

    /// The store has another history than the one that answered before, although the id of the etcd cluster is the same: list
    /// again through a new client.
    #[error("the store was set up anew or restored: {reason}")]
    Replaced { reason: String },

    /// A proxy that removes headers is between client and store. It is not supported: connect to etcd itself.
    #[error("the answer has no header: proxies of etcd are not supported")]
    NoHeader,

    /// The store is out of space: compact and defragment it, or raise its quota.
    #[error("the store has no space left")]
    NoSpace,

    /// User or certificate may not do this: check the permissions of the user in etcd.
    #[error("permission denied: {reason}")]
    Denied { reason: String },

    /// The request makes no sense to the store, such as a value that is too large.
    #[error("invalid request: {reason}")]
    Invalid { reason: String },

    #[error("the store failed with {code}: {reason}")]
    Failed {
        /// The status code of the answer, such as `Internal`.
        code: String,
        reason: String,
    },
}

impl BackendError {
    /// Whether the same request may succeed later, without any change.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::Timeout { .. }
                | Self::NoLeader
                | Self::Failed { .. }
                | Self::NoSpace
        )
    }

    /// The error with its causes, for logs.
    pub(crate) fn chain(&self) -> String {
        let first: &dyn std::error::Error = self;
        let chain = std::iter::successors(Some(first), |error| error.source());
        let texts: Vec<String> = chain.map(ToString::to_string).collect();
        texts.join(": ")
    }

    /// Short name of the kind of error, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::NoLeader => "no-leader",
            Self::Compacted { .. } => "compacted",
            Self::FutureRevision { .. } => "future-revision",
            Self::LeaseNotFound { .. } => "lease-not-found",
            Self::ClusterChanged { .. } => "cluster-changed",
            Self::Replaced { .. } => "replaced",
            Self::NoHeader => "no-header",
            Self::NoSpace => "no-space",
            Self::Denied { .. } => "denied",
            Self::Invalid { .. } => "invalid",
            Self::Failed { .. } => "failed",
        }
    }
}
