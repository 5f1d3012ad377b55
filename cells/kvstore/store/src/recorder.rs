// SPDX-License-Identifier: Apache-2.0

//! Who measures stores.

use std::fmt;
use std::time::Duration;

/// Whether a store reads keys or writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    /// Value of the label `action` of metrics.
    pub fn action(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Measures what stores do. All methods return at once. `prefix` ends in `/`; `cluster` is the name of the cluster whose
/// keys they are.
pub trait StoreRecorder: fmt::Debug + Send + Sync {
    /// A store has become complete, or is no longer.
    fn initial_sync(&self, prefix: &str, cluster: &str, direction: Direction, is_completed: bool) {
        let _ = (prefix, cluster, direction, is_completed);
    }

    /// So many keys wait to be written or deleted.
    fn queue(&self, prefix: &str, cluster: &str, size: usize) {
        let _ = (prefix, cluster, size);
    }

    /// A key was written or deleted so long after its object had changed.
    fn written(&self, prefix: &str, cluster: &str, lag: Duration) {
        let _ = (prefix, cluster, lag);
    }

    /// A key could not be written or deleted. It is retried.
    fn sync_error(&self, prefix: &str, cluster: &str) {
        let _ = (prefix, cluster);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoStoreRecorder;

impl StoreRecorder for NoStoreRecorder {}
