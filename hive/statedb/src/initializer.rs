// SPDX-License-Identifier: Apache-2.0

//! Initialisers: sources that must deliver before a table is complete.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    Db, Error, ReadTxn, RwTable, Snapshot, Table, Watch, WriteTxn,
    db::{DbInner, Root, TableMeta},
    state::Initializer,
    watch::Place,
};

/// Time after which pending initialisers are logged with their names, by tasks that wait and by commits.
pub const LATE: Duration = Duration::from_secs(30);

/// A registered source of a table's first content.
///
/// Reported done with [`WriteTxn::initialized`], in the transaction that completes the content. It stays valid if
/// that transaction is dropped.
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// let guard = pods.register_initializer(&mut txn, "kubernetes")?;
/// let snapshot = txn.commit();
/// assert_eq!(pods.pending_initializers(&snapshot), ["kubernetes"]);
///
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// txn.initialized(&guard)?;
/// drop(txn);
/// assert!(!pods.is_initialized(&db.read()), "undone with the transaction");
///
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// txn.initialized(&guard)?;
/// assert!(pods.is_initialized(&txn.commit()));
/// # Ok(())
/// # }
/// ```
pub struct InitGuard {
    pub(crate) meta: Arc<TableMeta>,
    pub(crate) number: u64,
    name: Arc<str>,
    since: Since,
}

/// When a source began to deliver; `None` before.
pub(crate) type Since = Arc<Mutex<Option<Instant>>>;

impl InitGuard {
    /// The source begins to deliver now: from here on it counts whether it is late.
    pub fn begin(&self) {
        *self.since.lock() = Some(Instant::now());
    }

    /// Name from the registration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the table.
    pub fn table(&self) -> &str {
        &self.meta.name
    }
}

impl fmt::Debug for InitGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitGuard")
            .field("table", &self.meta.name)
            .field("name", &self.name)
            .finish()
    }
}

impl<T: Send + Sync + 'static> RwTable<T> {
    /// Registers a source that must deliver before the table is initialised.
    ///
    /// # Errors
    /// [`Error::InitializerExists`] if one of that name is pending, [`Error::NotLocked`].
    pub fn register_initializer(&self, txn: &mut WriteTxn, name: &str) -> Result<InitGuard, Error> {
        let guard = self.announce_initializer(txn, name)?;
        guard.begin();
        Ok(guard)
    }

    /// [`register_initializer`](Self::register_initializer) for a source that may begin much later, such as one that only a
    /// leader runs: it is late by the time from [`InitGuard::begin`] on.
    ///
    /// # Errors
    /// [`Error::InitializerExists`] if one of that name is pending, [`Error::NotLocked`].
    pub fn announce_initializer(&self, txn: &mut WriteTxn, name: &str) -> Result<InitGuard, Error> {
        let meta = &self.0.meta;
        let table = txn.table(meta)?;
        let mut pending = table.state.initializers().pending().iter();
        if pending.any(|pending| *pending.name == *name) {
            return Err(Error::InitializerExists {
                table: meta.name.to_string(),
                name: name.to_owned(),
            });
        }
        let number = meta.registrations.fetch_add(1, Ordering::Relaxed);
        let name: Arc<str> = name.into();
        let since = Since::default();
        table.initializers_mut().add(Initializer {
            number,
            name: Arc::clone(&name),
            since: Arc::clone(&since),
        });
        Ok(InitGuard {
            meta: Arc::clone(meta),
            number,
            name,
            since,
        })
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Returns whether every registered initialiser is done; true if there is none.
    pub fn is_initialized(&self, txn: &impl ReadTxn) -> bool {
        self.state(txn).initializers.pending().is_empty()
    }

    /// [`Table::is_initialized`], and a watch that closes when the set of pending initialisers changes.
    pub fn initialized_watch(&self, txn: &Snapshot) -> (bool, Watch) {
        (self.is_initialized(txn), self.watch(txn, Place::Initializers))
    }

    /// Returns the names of the pending initialisers.
    pub fn pending_initializers(&self, txn: &impl ReadTxn) -> Vec<String> {
        self.state(txn).initializers.names()
    }

    /// Waits until the table is initialised; logs a warning with the pending names every 30 s.
    pub async fn wait_initialized(&self, db: &Db) -> Snapshot {
        loop {
            let snapshot = db.read();
            let (done, watch) = self.initialized_watch(&snapshot);
            if done {
                return snapshot;
            }
            if tokio::time::timeout(LATE, watch.closed()).await.is_err() {
                warn_late(self.name(), &self.pending_initializers(&db.read()));
            }
        }
    }
}

fn warn_late(table: &str, pending: &[String]) {
    if !pending.is_empty() {
        tracing::warn!(table, ?pending, "Table is waiting for initializers");
    }
}

/// Initialisers that should have been done by now. It may be that no task waits for them.
impl DbInner {
    /// Every [`LATE`], with the next commit, logs the tables that wait for longer than that. Returns them with what they
    /// wait for.
    pub(crate) fn warn_late(&self, root: &Root, now: Instant) -> Vec<(String, Vec<String>)> {
        let elapsed = now.saturating_duration_since(self.created).as_secs();
        let last = self.late_check.load(Ordering::Relaxed);
        if elapsed < last + LATE.as_secs()
            || self
                .late_check
                .compare_exchange(last, elapsed, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return Vec::new();
        }
        let mut late = Vec::new();
        for table in self.tables.read().iter() {
            let Some(state) = root.get(table.target().0.id) else {
                continue;
            };
            let pending = state.initializers().pending();
            let is_late = |pending: &&Initializer| {
                let since = *pending.since.lock();
                since.is_some_and(|since| now.saturating_duration_since(since) >= LATE)
            };
            let names: Vec<String> = pending
                .iter()
                .filter(is_late)
                .map(|late| late.name.to_string())
                .collect();
            warn_late(table.name(), &names);
            if !names.is_empty() {
                late.push((table.name().to_owned(), names));
            }
        }
        late
    }
}
