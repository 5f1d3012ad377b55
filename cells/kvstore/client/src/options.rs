// SPDX-License-Identifier: Apache-2.0

//! How a client behaves.

use std::sync::Arc;
use std::time::Duration;

use crate::operation::{NoRecorder, Recorder};

pub const LOCK_TTL: Duration = Duration::from_secs(25);
/// Default time to live of leased keys.
pub const LEASE_TTL: Duration = Duration::from_secs(15 * 60);
/// Default number of operations a second.
pub const QPS: u32 = 20;
/// Keys of the first page of a list whose pages are measured in bytes.
pub const FIRST_PAGE: usize = 256;
/// Default size of the pages of lists, in bytes.
pub const PAGE_BYTES: usize = 2 << 20;

/// How large the pages of lists are. etcd looks at the index of the whole range for each page: few large pages are read
/// several times as fast as many small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// So many keys; 0 for all in one page.
    Keys(usize),
    /// About so many bytes of keys and values: [`FIRST_PAGE`] keys, then as many as fit by the mean of the page before.
    Bytes(usize),
}

impl Default for PageSize {
    fn default() -> Self {
        Self::Bytes(PAGE_BYTES)
    }
}

impl PageSize {
    /// Keys of the first page; 0 for all.
    pub(crate) fn first(self) -> usize {
        match self {
            Self::Keys(keys) => keys,
            Self::Bytes(_) => FIRST_PAGE,
        }
    }

    /// Keys of the page after one with so many keys, of so many bytes together.
    pub(crate) fn after(self, keys: usize, bytes: usize) -> usize {
        match self {
            Self::Keys(keys) => keys,
            Self::Bytes(target) => (target * keys / bytes.max(1)).max(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of the own store: has leases, takes locks, checks quorum by taking a lock and asks every endpoint for its
    /// status.
    Full,
    /// A reader of a remote cluster: holds no lease, takes no locks, concludes from the heartbeat whether the store makes
    /// progress, and fails when another etcd cluster answers.
    Mesh,
}

/// How many operations a client does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Operations a second, and how many may go at once after a pause; 0 for no limit.
    pub qps: u32,
    /// Operations a second until [`Client::bootstrapped`](crate::Client::bootstrapped) is called; `None` for `qps`.
    pub bootstrap_qps: Option<u32>,
    /// Operations under way at once; 0 for as many as `qps`.
    pub max_inflight: u32,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            qps: QPS,
            bootstrap_qps: None,
            max_inflight: 0,
        }
    }
}

/// How a [`Client`](crate::Client) behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name of the client in logs, metrics and errors: `etcd`, or `etcd-<cluster>` for a remote cluster.
    pub name: String,
    pub kind: ClientKind,
    /// Time to live of leased keys after the client is gone.
    pub lease_ttl: Duration,
    /// Time to live of locks after the client is gone.
    pub lock_ttl: Duration,
    /// Keys a lease. Etcd is slow to end leases with many keys.
    pub keys_per_lease: usize,
    pub rate: RateLimit,
    /// How large the pages of lists are.
    pub page: PageSize,
    /// How many quorum checks may fail in a row.
    pub max_quorum_errors: u32,
    /// How long the first connection may take.
    pub connect_timeout: Duration,
    /// How long one attempt to take a lock may take.
    pub lock_timeout: Duration,
    /// Time between two checks of a healthy store. It grows with the size of the cluster, see
    /// [`Client::set_node_count`](crate::Client::set_node_count).
    pub check_interval: Duration,
    /// Time between two checks of a store with a failing endpoint.
    pub check_interval_failing: Duration,
    /// How often the heartbeat is written. It counts as lost after twice this time.
    pub heartbeat_interval: Duration,
    pub recorder: Arc<dyn Recorder>,
}

impl ClientOptions {
    pub fn new(name: impl Into<String>, kind: ClientKind) -> Self {
        Self {
            name: name.into(),
            kind,
            lease_ttl: LEASE_TTL,
            lock_ttl: LOCK_TTL,
            keys_per_lease: 1000,
            rate: RateLimit::default(),
            page: PageSize::default(),
            max_quorum_errors: 2,
            connect_timeout: Duration::from_secs(15 * 60),
            lock_timeout: Duration::from_secs(60),
            check_interval: Duration::from_secs(30),
            check_interval_failing: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(60),
            recorder: Arc::new(NoRecorder),
        }
    }

    /// Options of the client of a remote cluster: as this one, which is the client of the own store, but never with a rate
    /// of its own for the bootstrap.
    #[must_use]
    pub fn for_remote_cluster(&self, cluster: &str) -> Self {
        Self {
            name: format!("etcd-{cluster}"),
            kind: ClientKind::Mesh,
            rate: RateLimit {
                bootstrap_qps: None,
                ..self.rate
            },
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_to_the_bytes_that_they_should_have() {
        let size = PageSize::Bytes(1000);

        assert_eq!(size.first(), FIRST_PAGE);
        assert_eq!(size.after(256, 2560), 100);
        assert_eq!(size.after(100, 500), 200);
        assert_eq!(size.after(1, 5000), 1, "a page has a key at least");
        assert_eq!(PageSize::Keys(7).after(7, 10), 7);
    }
}
