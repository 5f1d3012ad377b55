// SPDX-License-Identifier: Apache-2.0

//! Changes that wait to be written to tables: the last one of each key, in the order in which keys changed first.
//!
//! How long a change takes is measured from when it was observed to when the reconcilers of the table that it was written to
//! have handled it: then it is in the maps, unless they are full.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{BoxError, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_clustermesh_types::Kind;
use statedb::{Snapshot, Table};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::ClusterMeshMetrics;

/// Gathers changes while a transaction is written, so that the first list of a large cluster is a few transactions.
pub(crate) struct Batches<K, D> {
    kind: Kind,
    /// Keys a transaction: others that write the same tables wait no longer than for these.
    size: usize,
    metrics: Arc<ClusterMeshMetrics>,
    pending: Mutex<Pending<K, D>>,
    progress: watch::Sender<Progress>,
}

struct Pending<K, D> {
    /// What is desired of a key, and since when that waits.
    changes: HashMap<K, (D, Instant)>,
    /// The keys, the one that waits longest first.
    order: VecDeque<K>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    observed: u64,
    /// Those of them that are in the tables.
    written: u64,
}

/// Returns when what was written to tables has taken effect.
pub(crate) type Realized = BoxFuture<'static, ()>;

/// Returns when the reconcilers of a table have handled what was written to it up to a snapshot.
#[cfg_attr(
    not(any(feature = "ipcache", feature = "services")),
    expect(dead_code, reason = "others have no reconciler")
)]
pub(crate) fn reconciled<T: Send + Sync + 'static>(table: Table<T>, snapshot: &Snapshot) -> Realized {
    let revision = table.revision(snapshot);
    async move { table.wait_until_reconciled(revision).await }.boxed()
}

/// Returns at once: the table is all there is.
#[cfg_attr(
    not(any(test, feature = "identities", feature = "nodes")),
    expect(dead_code, reason = "others have a reconciler")
)]
pub(crate) fn in_table() -> Realized {
    std::future::ready(()).boxed()
}

/// Batches that wait for a reconciler at most; later ones are not measured.
const MOST_WRITTEN: usize = 1024;

/// Batches that were written, the oldest first, and since when their changes have waited.
#[derive(Default)]
struct Written(VecDeque<(Realized, Vec<Instant>)>);

impl Written {
    fn push(&mut self, realized: Realized, since: Vec<Instant>) {
        if self.0.len() < MOST_WRITTEN {
            self.0.push_back((realized, since));
        }
    }

    /// Waits until the oldest one has taken effect, and returns since when its changes have waited.
    async fn next(&mut self) -> Vec<Instant> {
        match self.0.front_mut() {
            Some((realized, _)) => realized.await,
            None => std::future::pending().await,
        }
        self.0.pop_front().map(|(_, since)| since).unwrap_or_default()
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, D: Send + 'static> Batches<K, D> {
    pub(crate) fn new(kind: Kind, size: usize, metrics: Arc<ClusterMeshMetrics>) -> Self {
        Self {
            kind,
            size,
            metrics,
            pending: Mutex::new(Pending {
                changes: HashMap::new(),
                order: VecDeque::new(),
            }),
            progress: watch::Sender::default(),
        }
    }

    pub(crate) fn note(&self, key: K, desired: D) {
        let mut pending = self.pending.lock();
        let Pending { changes, order } = &mut *pending;
        match changes.entry(key) {
            Entry::Occupied(mut entry) => entry.get_mut().0 = desired,
            Entry::Vacant(entry) => {
                order.push_back(entry.key().clone());
                entry.insert((desired, Instant::now()));
            }
        }
        self.progress.send_modify(|progress| progress.observed += 1);
    }

    /// Registers the job that writes batches.
    pub(crate) fn spawn(
        self: Arc<Self>,
        jobs: &Jobs,
        name: &'static str,
        write: impl Fn(Vec<(K, D)>) -> Result<Realized, BoxError> + Send + Sync + 'static,
    ) -> Result<(), SpawnError> {
        let write = Arc::new(write);
        jobs.spawn(Job::once(name, move |cx: JobCtx| {
            let (batches, write) = (self.clone(), write.clone());
            async move {
                let written = cx.until_cancelled(batches.write(&*write)).await;
                written.unwrap_or(Ok(()))
            }
        }))
    }

    async fn write(
        &self,
        write: &(impl Fn(Vec<(K, D)>) -> Result<Realized, BoxError> + Sync),
    ) -> Result<(), BoxError> {
        let mut progress = self.progress.subscribe();
        let mut pending = Written::default();
        loop {
            tokio::select! {
                // The sender lives as long as this.
                _ = progress.wait_for(|progress| progress.written < progress.observed) => {}
                since = pending.next() => {
                    self.measure(&since);
                    continue;
                }
            }
            let (batch, written) = self.take();
            let (changes, since): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|(key, (desired, since))| ((key, desired), since))
                .unzip();
            pending.push(write(changes)?, since);
            if let Some(written) = written {
                self.progress.send_modify(|progress| progress.written = written);
            }
            tokio::task::yield_now().await;
        }
    }

    fn measure(&self, since: &[Instant]) {
        let duration = self.metrics.agent.change_duration.with([self.kind.as_str()]);
        for since in since {
            duration.observe_duration(since.elapsed());
        }
    }

    /// Takes up to a batch; with it, if nothing is left, how many changes were observed.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn take(&self) -> (Vec<(K, (D, Instant))>, Option<u64>) {
        let mut pending = self.pending.lock();
        let Pending { changes, order } = &mut *pending;
        let count = order.len().min(self.size);
        let batch = order
            .drain(..count)
            .filter_map(|key| changes.remove_entry(&key))
            .collect();
        if !order.is_empty() {
            return (batch, None);
        }
        // The first list of a cluster is much longer than what comes later.
        changes.shrink_to(self.size);
        order.shrink_to(self.size);
        (batch, Some(self.progress.borrow().observed))
    }

    /// Waits until everything that was observed up to now is in the tables.
    pub(crate) async fn flushed(&self) {
        let observed = self.progress.borrow().observed;
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|progress| progress.written >= observed).await;
    }
}

impl<K, D> fmt::Debug for Batches<K, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("kind", &self.kind)
            .field("pending", &self.pending.lock().order.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skep_base_metrics::{MetricSet, Registry, exposition};

    use super::*;

    fn batches() -> Batches<u32, &'static str> {
        Batches::new(Kind::Nodes, 2, Arc::default())
    }

    fn taken(batches: &Batches<u32, &'static str>) -> Vec<(u32, &'static str)> {
        let (batch, _) = batches.take();
        batch
            .into_iter()
            .map(|(key, (desired, _))| (key, desired))
            .collect()
    }

    #[test]
    fn the_last_change_of_a_key_counts_and_the_first_key_goes_first() {
        let batches = batches();
        for (key, desired) in [(7, "a"), (3, "b"), (7, "c"), (5, "d")] {
            batches.note(key, desired);
        }

        assert_eq!(taken(&batches), [(7, "c"), (3, "b")]);
        batches.note(3, "e");
        assert_eq!(taken(&batches), [(5, "d"), (3, "e")]);
        assert_eq!(taken(&batches), []);
    }

    #[tokio::test]
    async fn all_is_flushed_only_when_nothing_is_left() {
        let batches = Arc::new(batches());
        for key in 0..5 {
            batches.note(key, "a");
        }
        let written = Mutex::new(Vec::new());
        let write = |batch: Vec<(u32, &'static str)>| {
            written.lock().push(batch.len());
            Ok(in_table())
        };

        tokio::select! {
            result = batches.write(&write) => panic!("it never returns: {result:?}"),
            () = batches.flushed() => {}
        }

        assert_eq!(*written.lock(), [2, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_measured_until_its_reconciler_has_handled_it() {
        let metrics = Arc::new(ClusterMeshMetrics::default());
        let batches = Arc::new(Batches::new(Kind::Nodes, 2, metrics.clone()));
        for key in 0..3 {
            batches.note(key, "a");
        }
        let handled = Arc::new(tokio::sync::Notify::new());
        let write = |_: Vec<(u32, &'static str)>| {
            let handled = handled.clone();
            Ok(async move { handled.notified().await }.boxed())
        };
        let measured = |what: &str| {
            let registry = Registry::new(metrics.metrics(), &[]).expect("the names differ");
            let text = exposition(&registry);
            let name = format!("cilium_clustermesh_remote_change_duration_seconds_{what}{{kind=\"nodes\"}} ");
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(&name)?.parse().ok());
            value.unwrap_or(0.0)
        };

        let steps = async {
            batches.flushed().await;
            let mut found = Vec::new();
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                found.push((measured("count"), measured("sum")));
                handled.notify_one();
            }
            found
        };
        let found = tokio::select! {
            result = batches.write(&write) => panic!("it never returns: {result:?}"),
            found = steps => found,
        };

        assert_eq!(found, [(0.0, 0.0), (2.0, 8.0), (3.0, 16.0)]);
    }
}
