// SPDX-License-Identifier: Apache-2.0

//! The database: one atomic pointer to the states of all tables.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::{
    Error, Revision,
    dynamic::AnyTable,
    metrics::{Metrics, NoMetrics},
    state::AnyState,
    txn::{WriteTarget, WriteTxn},
    watch::Watches,
};

/// Tables share the array of a root in groups of this size, so that a commit copies little.
const GROUP: usize = 8;

/// States of some tables.
type Group = ArrayVec<Arc<dyn AnyState>, GROUP>;

/// States of all tables, by number of the table.
#[derive(Clone, Default)]
pub(crate) struct Root {
    groups: SmallVec<[Arc<Group>; 16]>,
}

impl Root {
    #[inline]
    pub(crate) fn get(&self, table: usize) -> Option<&Arc<dyn AnyState>> {
        self.groups.get(table / GROUP)?.get(table % GROUP)
    }

    /// Returns the state replaced.
    pub(crate) fn set(&mut self, table: usize, state: Arc<dyn AnyState>) -> Option<Arc<dyn AnyState>> {
        let group = Arc::make_mut(self.groups.get_mut(table / GROUP)?);
        let slot = group.get_mut(table % GROUP)?;
        Some(std::mem::replace(slot, state))
    }

    fn push(&mut self, state: Arc<dyn AnyState>) {
        match self.groups.last_mut() {
            Some(group) if !group.is_full() => Arc::make_mut(group).push(state),
            _ => self.groups.push(Arc::new(Group::from_iter([state]))),
        }
    }
}

/// What every table has besides its objects' type.
pub(crate) struct TableMeta {
    pub(crate) id: usize,
    pub(crate) db: u64,
    pub(crate) name: Arc<str>,
    pub(crate) lock: Arc<Mutex<()>>,
    /// Name of the handle that made the latest write transaction.
    pub(crate) writer: Mutex<Arc<str>>,
    /// Address of the text in `writer`, to compare without a lock.
    pub(crate) writer_at: AtomicUsize,
    /// When that transaction took its locks, in nanoseconds after `created`; 0 if there was none.
    pub(crate) opened: AtomicU64,
    /// When the database was made.
    pub(crate) created: Instant,
    /// Nanoseconds for which it held the lock; [`OPEN`] while it does.
    pub(crate) held: AtomicU64,
    pub(crate) watches: Arc<Watches>,
    pub(crate) trackers: Trackers,
    pub(crate) graveyard_limit: usize,
    pub(crate) registrations: AtomicU64,
}

/// See [`TableMeta::held`].
pub(crate) const OPEN: u64 = u64::MAX;

impl TableMeta {
    /// Records the handle that takes the lock; called with it held.
    pub(crate) fn begin_write(&self, handle: &Arc<str>, opened: Instant) {
        self.held.store(OPEN, Ordering::Relaxed);
        let since = opened.saturating_duration_since(self.created).as_nanos() as u64;
        self.opened.store(since.max(1), Ordering::Relaxed);
        let address = handle.as_ptr().addr();
        if self.writer_at.load(Ordering::Relaxed) != address {
            *self.writer.lock() = Arc::clone(handle);
            self.writer_at.store(address, Ordering::Relaxed);
        }
    }

    pub(crate) fn last_write(&self) -> LastWrite {
        let handle = Arc::clone(&self.writer.lock());
        let opened = match self.opened.load(Ordering::Relaxed) {
            0 => None,
            since => Some(self.created + Duration::from_nanos(since)),
        };
        let held = match self.held.load(Ordering::Relaxed) {
            _ if opened.is_none() => None,
            OPEN => None,
            held => Some(Duration::from_nanos(held)),
        };
        LastWrite { handle, opened, held }
    }
}

/// The latest write transaction of a table.
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
/// db.handle("importer").write(&[&pods]).commit();
/// let last = db.table("pods").unwrap().last_write();
/// assert_eq!(&*last.handle, "importer");
/// assert!(last.opened.is_some() && last.held.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct LastWrite {
    /// Handle that made it; empty if there was none.
    pub handle: Arc<str>,
    /// When its locks were taken.
    pub opened: Option<Instant>,
    /// How long it held the locks; `None` while it is open.
    pub held: Option<Duration>,
}

/// Change iterators of one table.
#[derive(Default)]
pub(crate) struct Trackers {
    list: Mutex<Vec<Arc<Tracker>>>,
    count: AtomicUsize,
}

/// Progress of one change iterator.
pub(crate) struct Tracker {
    pub(crate) seen: AtomicU64,
    /// Too far behind: the graveyard does not wait for it any more.
    pub(crate) lagging: AtomicBool,
}

impl Trackers {
    /// Called with the table locked for writing, so that no deletion is missed.
    pub(crate) fn add(&self, seen: Revision) -> Arc<Tracker> {
        let tracker = Arc::new(Tracker {
            seen: AtomicU64::new(seen),
            lagging: AtomicBool::new(false),
        });
        let mut list = self.list.lock();
        list.push(Arc::clone(&tracker));
        self.count.store(list.len(), Ordering::Release);
        tracker
    }

    pub(crate) fn remove(&self, tracker: &Arc<Tracker>) {
        let mut list = self.list.lock();
        list.retain(|other| !Arc::ptr_eq(other, tracker));
        self.count.store(list.len(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Deletions up to here were seen by all iterators that the graveyard waits for.
    pub(crate) fn watermark(&self) -> Revision {
        let list = self.list.lock();
        let waiting = list
            .iter()
            .filter(|tracker| !tracker.lagging.load(Ordering::Acquire));
        waiting
            .map(|tracker| tracker.seen.load(Ordering::Acquire))
            .min()
            .unwrap_or(Revision::MAX)
    }

    /// Stops waiting for iterators that have not seen `revision`; returns how many these are.
    pub(crate) fn give_up(&self, revision: Revision) -> usize {
        let list = self.list.lock();
        let behind = list
            .iter()
            .filter(|tracker| tracker.seen.load(Ordering::Acquire) < revision);
        behind
            .filter(|tracker| !tracker.lagging.swap(true, Ordering::AcqRel))
            .count()
    }
}

pub(crate) struct DbInner {
    pub(crate) number: u64,
    pub(crate) root: ArcSwap<Root>,
    /// Held to replace the root. A root equal to the current one, for the next commit: copying one touches the
    /// reference counts of all groups of tables.
    pub(crate) commit: Mutex<Option<Arc<Root>>>,
    pub(crate) tables: RwLock<Vec<Arc<dyn AnyTable>>>,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) created: Instant,
    /// Seconds after `created` of the last check for late initialisers.
    pub(crate) late_check: AtomicU64,
}

/// A handle of an in-memory database; a clone is a handle of the same one.
///
/// ```
/// use statedb::{Db, Index, RwTable};
///
/// #[derive(Clone)]
/// struct Service { name: String, port: u16 }
/// const BY_NAME: Index<Service, str> = Index::new("name", |service, keys| keys.add(&service.name));
///
/// # fn main() -> Result<(), statedb::Error> {
/// let db = Db::new();
/// let services = RwTable::<Service>::builder("services").primary(BY_NAME).build_plain(&db)?;
///
/// let mut txn = db.write(&[&services]);
/// services.insert(&mut txn, Service { name: "web".into(), port: 80 })?;
/// let snapshot = txn.commit();
///
/// assert_eq!(services.get(&snapshot, BY_NAME.key("web")).unwrap().port, 80);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    pub(crate) inner: Arc<DbInner>,
    handle: Arc<str>,
}

impl Default for Db {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .tables()
            .iter()
            .map(|table| table.name().to_owned())
            .collect();
        f.debug_struct("Db")
            .field("handle", &self.handle)
            .field("tables", &names)
            .finish()
    }
}

impl Db {
    /// Creates a database without tables; its first handle is called `DB`.
    pub fn new() -> Self {
        Self::with_metrics(Arc::new(NoMetrics))
    }

    /// Creates a database that reports to `metrics`.
    pub fn with_metrics(metrics: Arc<dyn Metrics>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let inner = DbInner {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            root: ArcSwap::default(),
            commit: Mutex::new(None),
            tables: RwLock::default(),
            metrics,
            created: Instant::now(),
            late_check: AtomicU64::new(0),
        };
        Self {
            inner: Arc::new(inner),
            handle: "DB".into(),
        }
    }

    /// Returns a handle whose write transactions are attributed to `name`.
    pub fn handle(&self, name: &str) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            handle: name.into(),
        }
    }

    /// Returns the name of this handle.
    pub fn handle_name(&self) -> &str {
        &self.handle
    }

    /// Returns a consistent view of all tables as of now. Takes no lock; keeping it keeps the objects alive.
    #[inline]
    pub fn read(&self) -> Snapshot {
        Snapshot {
            db: Arc::clone(&self.inner),
            root: self.inner.root.load_full(),
        }
    }

    /// Locks `tables` for writing, in an order fixed for the database, waiting for other writers. A table may be
    /// listed twice.
    ///
    /// # Panics
    /// If this thread already holds a write transaction of the database over one of the tables, which would
    /// deadlock; in builds with debug assertions, over any table, since that can deadlock.
    pub fn write(&self, tables: &[&dyn WriteTarget]) -> WriteTxn {
        WriteTxn::open(
            &self.inner,
            &self.handle,
            tables.iter().map(|table| table.target()),
        )
    }

    /// Returns all tables, sorted by name, for access without their types.
    pub fn tables(&self) -> Vec<Arc<dyn AnyTable>> {
        let mut tables = self.inner.tables.read().clone();
        tables.sort_by(|a, b| a.name().cmp(b.name()));
        tables
    }

    /// Returns the table called `name`.
    pub fn table(&self, name: &str) -> Option<Arc<dyn AnyTable>> {
        self.inner
            .tables
            .read()
            .iter()
            .find(|table| table.name() == name)
            .cloned()
    }

    /// Forgets deletions that every change iterator has seen. Commits do this for the tables that they change and
    /// readers when they have caught up, so only tables at rest need a call. Skips tables locked now.
    pub fn collect_garbage(&self) {
        let snapshot = self.read();
        for table in self.tables() {
            let meta = table.target().0;
            if snapshot
                .root
                .get(meta.id)
                .is_some_and(|state| state.zombies() > 0)
            {
                collect(&self.inner, meta);
            }
        }
    }

    /// Returns whether both handles are of one database.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn register(
        &self,
        name: &str,
        make: impl FnOnce(usize, u64) -> (Arc<dyn AnyTable>, Arc<dyn AnyState>),
    ) -> Result<(), Error> {
        let mut tables = self.inner.tables.write();
        if tables.iter().any(|table| table.name() == name) {
            return Err(Error::TableExists {
                table: name.to_owned(),
            });
        }
        let (table, state) = make(tables.len(), self.inner.number);
        let mut spare = self.inner.commit.lock();
        *spare = None;
        let mut root = Root::clone(&self.inner.root.load_full());
        root.push(state);
        self.inner.root.swap(Arc::new(root));
        tables.push(table);
        Ok(())
    }
}

impl DbInner {
    /// Replaces the states of some tables for all readers; called with the lock held that `spare` comes from. Returns the
    /// new and the old root.
    pub(crate) fn publish(
        &self,
        spare: Option<Arc<Root>>,
        states: &[(usize, Arc<dyn AnyState>)],
    ) -> (Arc<Root>, Arc<Root>) {
        let mut next = spare.unwrap_or_else(|| Arc::new(Root::clone(&self.root.load_full())));
        let root = Arc::make_mut(&mut next);
        for (table, state) in states {
            root.set(*table, Arc::clone(state));
        }
        let old = self.root.swap(Arc::clone(&next));
        (next, old)
    }
}

/// Forgets the deletions of one table that all iterators have seen, unless it is locked.
pub(crate) fn collect(db: &Arc<DbInner>, meta: &Arc<TableMeta>) {
    if let Some(txn) = WriteTxn::try_open(db, &Arc::from("graveyard"), meta) {
        txn.commit();
    }
}

/// A consistent, immutable view of all tables.
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
/// let before = db.read();
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// let after = txn.commit();
/// assert_eq!((pods.len(&before), pods.len(&after)), (0, 1), "stays as it was");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) db: Arc<DbInner>,
    pub(crate) root: Arc<Root>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

pub(crate) mod sealed {
    use super::{AnyState, TableMeta};

    /// The table to look up.
    pub struct At<'a>(pub(crate) &'a TableMeta);

    /// The state found.
    pub struct Found<'a>(pub(crate) &'a dyn AnyState);

    pub trait Read {
        fn state<'a>(&'a self, table: At<'_>) -> Option<Found<'a>>;
    }
}

/// A source of reads: a [`Snapshot`], or a [`WriteTxn`], which sees its own changes.
///
/// ```
/// use statedb::{Index, ReadTxn, Table};
///
/// struct Pod { node: String }
/// const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
///
/// /// Works inside a transaction and outside.
/// fn is_idle(pods: &Table<Pod>, txn: &impl ReadTxn, node: &str) -> bool {
///     pods.get(txn, BY_NODE.key(node)).is_none()
/// }
/// ```
pub trait ReadTxn: sealed::Read {}

impl<R: sealed::Read> ReadTxn for R {}

impl sealed::Read for Snapshot {
    #[inline]
    fn state<'a>(&'a self, table: sealed::At<'_>) -> Option<sealed::Found<'a>> {
        if table.0.db != self.db.number {
            return None;
        }
        self.root.get(table.0.id).map(|state| sealed::Found(&**state))
    }
}
