// SPDX-License-Identifier: Apache-2.0

//! Errors of the client.

use std::time::Duration;

use crate::backend::BackendError;
use crate::operation::Operation;

/// Why an operation on the store failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store did not do it; see the cause.
    #[error("kvstore: cannot {operation} `{key}`")]
    Operation {
        operation: Operation,
        key: String,
        #[source]
        cause: BackendError,
    },

    /// The lock that guards the operation is no longer held: its lease ended, or its key was deleted. Nothing was done;
    /// lock again.
    #[error("kvstore: cannot {operation} `{key}`: lock `{path}` is lost")]
    LockLost {
        operation: Operation,
        key: String,
        path: String,
    },

    /// Another owner did not release the lock in time. Locks of clients that died end with their lease, after 25 s.
    #[error("kvstore: cannot lock `{path}` within {after:?}")]
    LockTimeout { path: String, after: Duration },

    /// A list did not end in time.
    #[error("kvstore: cannot list `{prefix}` within {after:?}")]
    ListTimeout { prefix: String, after: Duration },
}

impl Error {
    /// What the store says; `None` if the error is not the store's.
    pub fn backend(&self) -> Option<&BackendError> {
        match self {
            Self::Operation { cause, .. } => Some(cause),
            Self::LockLost { .. } | Self::LockTimeout { .. } | Self::ListTimeout { .. } => None,
        }
    }

    /// Whether the lock that guards the operation is lost.
    pub fn is_lock_lost(&self) -> bool {
        matches!(self, Self::LockLost { .. })
    }

    /// Whether the same operation may succeed later without any change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Operation { cause, .. } => cause.is_transient(),
            Self::LockTimeout { .. } | Self::ListTimeout { .. } => true,
            Self::LockLost { .. } => false,
        }
    }
}

/// Why a client should be replaced by a new one; see [`Client::failed`](crate::Client::failed).
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The first connection takes too long: check addresses, network and certificates.
    #[error("kvstore `{name}`: not connected within {after:?}")]
    Connect {
        name: String,
        after: Duration,
        /// The last error, if there was one.
        #[source]
        cause: Option<Box<Error>>,
    },

    /// The store makes no progress: it has no quorum, or what writes its heartbeat is down.
    #[error("kvstore `{name}`: quorum check failed {times} times in a row")]
    Quorum {
        name: String,
        times: u32,
        #[source]
        cause: QuorumError,
    },

    #[error("kvstore `{name}`: not able to connect to any {kind} endpoints")]
    NoEndpoint {
        name: String,
        kind: &'static str,
        /// What the endpoints say, one after the other.
        reasons: String,
    },

    #[error("kvstore `{name}`: another store answers")]
    Store {
        name: String,
        #[source]
        cause: BackendError,
    },
}

/// Why the store is supposed to have no quorum.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QuorumError {
    /// A lock could not be taken and released.
    #[error(transparent)]
    Lock(Error),

    /// The heartbeat was not rewritten for too long. Check what writes it: the operator or clustermesh-apiserver.
    #[error("{age:?} since last heartbeat update has been received")]
    Heartbeat { age: Duration },

    /// The store does not let the heartbeat be watched: it cannot be reached, or refuses.
    #[error("cannot watch the heartbeat")]
    Watch(#[source] BackendError),
}
