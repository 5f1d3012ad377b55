// SPDX-License-Identifier: Apache-2.0

//! Metrics of a database.

use std::time::Duration;

use crate::Revision;

/// Receives the measurements of a database. All methods do nothing by default.
///
/// Called on the path of every commit: implementations must be quick and must not use the database.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
///
/// use statedb::{Db, Index, Metrics, RwTable};
///
/// struct Pod { name: String }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
///
/// #[derive(Default)]
/// struct Pods(AtomicUsize);
/// impl Metrics for Pods {
///     fn objects(&self, table: &str, count: usize) {
///         assert_eq!(table, "pods");
///         self.0.store(count, Ordering::Relaxed);
///     }
/// }
///
/// # fn main() -> Result<(), statedb::Error> {
/// let metrics = Arc::new(Pods::default());
/// let db = Db::with_metrics(Arc::clone(&metrics) as Arc<dyn Metrics>);
/// let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, Pod { name: "web-0".into() })?;
/// txn.commit();
/// assert_eq!(metrics.0.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Metrics: Send + Sync {
    /// Returns whether to measure times; called once per transaction.
    fn enabled(&self) -> bool {
        true
    }
    /// A write transaction of `handle` over `tables` held its locks this long.
    fn write_txn_duration(&self, handle: &str, tables: &[&str], held: Duration) {
        let _ = (handle, tables, held);
    }
    /// `handle` waited this long for the lock of `table`.
    fn table_contention(&self, handle: &str, table: &str, waited: Duration) {
        let _ = (handle, table, waited);
    }
    /// Objects in `table` after a commit.
    fn objects(&self, table: &str, count: usize) {
        let _ = (table, count);
    }
    /// Revision of `table` after a commit.
    fn revision(&self, table: &str, revision: Revision) {
        let _ = (table, revision);
    }
    /// Change iterators open on `table`.
    fn delete_trackers(&self, table: &str, count: usize) {
        let _ = (table, count);
    }
    /// Deleted objects of `table` that some change iterator has not seen yet.
    fn graveyard_objects(&self, table: &str, count: usize) {
        let _ = (table, count);
    }
    /// Revision up to which every change iterator of `table` has seen the deletions.
    fn graveyard_low_watermark(&self, table: &str, revision: Revision) {
        let _ = (table, revision);
    }
    /// Removing seen deletions of `table` took this long.
    fn graveyard_cleaning_duration(&self, table: &str, took: Duration) {
        let _ = (table, took);
    }
}

/// Drops all measurements.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMetrics;

impl Metrics for NoMetrics {
    fn enabled(&self) -> bool {
        false
    }
}
