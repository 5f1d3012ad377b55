// SPDX-License-Identifier: Apache-2.0

//! Key-value store: client, backend trait, a store in memory.
//!
//! [`Backend`] is what a store has to do, with etcd's semantics.

mod backend;
mod error;
pub mod keys;
mod operation;
mod options;
mod types;

pub use backend::{
    Backend, BackendError, Cause, Change, Compare, Condition, EndpointAnswer, EndpointStatus, Grant, KeyRange, Op,
    OpResponse, Order, RangeRequest, RangeResponse, Txn, TxnResponse, WatchRequest, WatchResponse, WatchStream,
};
pub use error::{ConnectionError, Error, QuorumError};
pub use operation::{NoRecorder, Operation, OperationRecord, Recorder};
pub use options::{ClientKind, ClientOptions, LEASE_TTL, LOCK_TTL, PAGE, QPS, RateLimit};
pub use types::{Header, Key, KeyValue, LeaseId, Lifetime, Revision};
