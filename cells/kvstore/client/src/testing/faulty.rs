// SPDX-License-Identifier: Apache-2.0

//! A store that fails on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{
    Backend, BackendError, EndpointAnswer, EndpointStatus, Grant, Op, RangeRequest, RangeResponse, Txn,
    TxnResponse, WatchRequest, WatchStream,
};
use crate::types::{LeaseId, Revision};

/// How long a request to a partitioned store hangs.
const HANG: Duration = Duration::from_secs(5);

/// A store in front of another one, whose requests it counts and makes fail.
#[derive(Debug)]
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    faults: Mutex<Faults>,
    requests: AtomicU64,
    /// Grows when watches are to end.
    cuts: watch::Sender<u64>,
    is_partitioned: watch::Sender<bool>,
}

#[derive(Debug)]
struct Faults {
    random: fastrand::Rng,
    /// Part of the requests that fail, 0.0 to 1.0.
    share: f64,
    /// Part of the failing writes that are done nevertheless.
    done: f64,
    /// Whether the store has no space left.
    is_full: bool,
    is_down: bool,
}

impl FaultyBackend {
    /// A store that does not fail until [`fail`](Self::fail) or [`partition`](Self::partition) is called.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::new(Faults {
                random: fastrand::Rng::with_seed(0),
                share: 0.0,
                done: 0.0,
                is_full: false,
                is_down: false,
            }),
            requests: AtomicU64::new(0),
            cuts: watch::Sender::new(0),
            is_partitioned: watch::Sender::new(false),
        })
    }

    /// Makes a part of the requests fail, 0.0 to 1.0, in the order that the seed determines. Half of the writes that fail
    /// are done: their answer is lost.
    pub fn fail(&self, seed: u64, share: f64) {
        let mut faults = self.faults.lock();
        faults.random = fastrand::Rng::with_seed(seed);
        faults.share = share;
        faults.done = 0.5;
    }

    /// Sets whether the store has no space left: puts and new leases fail then, as those of etcd with its alarm.
    pub fn fill(&self, is_full: bool) {
        self.faults.lock().is_full = is_full;
    }

    /// Ends watches and refuses connections, as when the store does not run; or ends that.
    pub fn set_down(&self, is_down: bool) {
        self.faults.lock().is_down = is_down;
        self.cut_watches();
    }

    /// How many requests there were, without those that failed because the store was full.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.faults.lock().is_full
    }

    pub fn cut_watches(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets requests hang and watches stand still; or ends that.
    pub fn partition(&self, is_partitioned: bool) {
        self.is_partitioned.send_replace(is_partitioned);
    }

    async fn pass(&self) -> Result<(), BackendError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.faults.lock().is_down {
            return Err(BackendError::Unavailable {
                endpoints: self.addresses().join(","),
                cause: Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
            });
        }
        let mut partition = self.is_partitioned.subscribe();
        match tokio::time::timeout(HANG, partition.wait_for(|is_partitioned| !is_partitioned)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BackendError::Timeout { after: HANG }),
        }
    }

    /// Whether the next request fails, and whether it is done nevertheless.
    fn roll(&self) -> (bool, bool) {
        let mut faults = self.faults.lock();
        let fails = faults.share > 0.0 && faults.random.f64() < faults.share;
        let done = fails && faults.random.f64() < faults.done;
        (fails, done)
    }

    async fn read<T>(&self, call: impl Future<Output = Result<T, BackendError>>) -> Result<T, BackendError> {
        self.pass().await?;
        match self.roll() {
            (true, _) => Err(failure()),
            (false, _) => call.await,
        }
    }

    async fn write<T>(&self, call: impl Future<Output = Result<T, BackendError>>) -> Result<T, BackendError> {
        self.pass().await?;
        match self.roll() {
            (false, _) => call.await,
            (true, false) => Err(failure()),
            (true, true) => {
                call.await?;
                Err(failure())
            }
        }
    }
}

fn failure() -> BackendError {
    BackendError::Failed {
        code: "Internal".to_owned(),
        reason: "fault of the test".to_owned(),
    }
}

#[async_trait]
impl Backend for FaultyBackend {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        self.read(self.inner.range(request)).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError> {
        let puts = |ops: &[Op]| ops.iter().any(|op| matches!(op, Op::Put { .. }));
        if self.is_full() && (puts(&txn.then) || puts(&txn.otherwise)) {
            return Err(BackendError::NoSpace);
        }
        self.write(self.inner.txn(txn)).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError> {
        let inner = self.read(self.inner.watch(request)).await?;
        let mut cuts = self.cuts.subscribe();
        let partition = self.is_partitioned.subscribe();
        let cut = async move {
            let _ = cuts.changed().await;
        };
        let passing = stream::unfold((inner, partition), |(mut inner, mut partition)| async move {
            let response = inner.next().await?;
            // What has left the store arrives when the partition ends.
            let _ = partition.wait_for(|is_partitioned| !is_partitioned).await;
            Some((response, (inner, partition)))
        });
        Ok(passing.take_until(cut).boxed())
    }

    async fn compact(&self, revision: Revision) -> Result<(), BackendError> {
        self.write(self.inner.compact(revision)).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError> {
        if self.is_full() {
            return Err(BackendError::NoSpace);
        }
        self.write(self.inner.grant_lease(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.write(self.inner.keep_alive(lease)).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        self.write(self.inner.revoke_lease(lease)).await
    }

    async fn endpoints(&self) -> Vec<EndpointStatus> {
        let mut statuses = self.inner.endpoints().await;
        if let Err(error) = self.read(async { Ok(()) }).await {
            for status in &mut statuses {
                status.answer = Err(error.to_string());
            }
        }
        if self.is_full() {
            for answer in statuses.iter_mut().flat_map(|status| &mut status.answer) {
                answer.alarms.push(EndpointAnswer::NO_SPACE.to_owned());
            }
        }
        statuses
    }

    fn addresses(&self) -> Vec<String> {
        self.inner.addresses()
    }
}
