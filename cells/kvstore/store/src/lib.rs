// SPDX-License-Identifier: Apache-2.0

//! Stores on a key-value store: what programs share through it, with Cilium's keys.
//!
//! - [`WatchStore`] reads a prefix into typed entries, across reconnections; [`WatchStoreManager`] starts the reading of a
//!   cluster's prefixes when they are complete;
//! - [`SyncStore`] writes local objects, and a canary when all of them are written;
//! - [`SharedStore`] does both for a prefix to which many programs contribute.
//!
//! All of them stand on [`skep_kvstore_client::Client`], so they run on etcd and in memory. Feature `hive` adds the cell
//! `metrics`.

mod entry;
mod log;
mod manager;
#[cfg(feature = "hive")]
mod metrics;
pub mod queue;
mod recorder;
mod shared;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watch;

pub use entry::{Decoder, InvalidEntry, Observer, Raw};
pub use manager::WatchStoreManager;
#[cfg(feature = "hive")]
pub use metrics::{StoreMetrics, metrics};
pub use recorder::{Direction, NoStoreRecorder, StoreRecorder};
pub use shared::{SharedStore, SharedStoreOptions};
pub use sync::{SyncStore, SyncStoreOptions};
pub use watch::{WatchStore, WatchStoreOptions, WatchStoreReporter, WatchStoreStatus};
