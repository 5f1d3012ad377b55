// SPDX-License-Identifier: Apache-2.0

//! Key-value store: client, backend trait, a store in memory.
//!
//! - [`Client`]: operations on keys with rate limit, leases and locks, [watchers](Watcher), [status](Status);
//! - [`Backend`]: what a store has to do, with etcd's semantics. `skep-kvstore-etcd` has the one for etcd;
//! - [`memory::Memory`]: a store in memory, as fake and for the lab;
//! - [`keys`]: the layout of the key space that is shared with Cilium.
//!
//! Feature `hive` adds `cell` (cells around a client), the writer of the heartbeat and metrics; feature `api` adds `probe`,
//! the part of the agent's status; feature `script` adds `command`, commands of scripts and of the shell, and `table`, the
//! keys of a store as a table. Feature `testing` adds `testing`: the suite that every store passes, and a store that fails on purpose.

mod backend;
mod backoff;
#[cfg(feature = "hive")]
pub mod cell;
mod client;
#[cfg(feature = "script")]
pub mod command;
mod disabled;
mod error;
#[cfg(feature = "hive")]
pub mod heartbeat;
pub mod keys;
pub mod memory;
#[cfg(feature = "hive")]
mod metrics;
mod operation;
mod options;
#[cfg(feature = "api")]
pub mod probe;
#[cfg(feature = "script")]
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;

pub use backend::{
    Backend, BackendError, Cause, Change, Compare, Condition, EndpointAnswer, EndpointStatus, Grant,
    KeyRange, Op, OpResponse, Order, RangeRequest, RangeResponse, Txn, TxnResponse, WatchRequest,
    WatchResponse, WatchStream,
};
pub use backoff::backoff;
pub use client::{
    Adopted, Client, Connection, Driver, Event, KeyChange, Listing, Lock, Locked, LostKeys, MAX_BATCH,
    RawEvent, RawWatcher, Status, Unused, Watcher,
};
pub use error::{ConnectionError, Error, QuorumError};
#[cfg(feature = "hive")]
pub use metrics::KvstoreMetrics;
pub use operation::{NoRecorder, Operation, OperationRecord, Recorder};
pub use options::{
    ClientKind, ClientOptions, FIRST_PAGE, LEASE_TTL, LOCK_TTL, PAGE_BYTES, PageSize, QPS, RateLimit,
};
pub use types::{Header, Key, KeyValue, LeaseId, Lifetime, Revision};
