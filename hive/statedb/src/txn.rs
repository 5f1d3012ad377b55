// SPDX-License-Identifier: Apache-2.0

//! Write transactions: locks of tables, working copies, and the commit that publishes them.

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::{ArcMutexGuard, RawMutex};
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, InitGuard, Snapshot,
    db::{
        DbInner, Root, TableMeta,
        sealed::{At, Found, Read},
    },
    state::{AnyState, Open, Work},
    step::{self, Step},
    watch::Place,
};

thread_local! {
    /// Tables locked by this thread: database and table numbers.
    static HELD: RefCell<Vec<(u64, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Names a table to lock; see [`WriteTarget`].
#[derive(Clone, Copy)]
pub struct Target<'a>(pub(crate) &'a Arc<TableMeta>);

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.0.name).finish()
    }
}

/// A table to lock by [`Db::write`](crate::Db::write): an [`RwTable`](crate::RwTable), or any table
/// accessed by name.
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn main() -> Result<(), statedb::Error> {
/// let db = Db::new();
/// let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let by_name = db.table("pods").unwrap();
/// let txn = db.write(&[&pods, &*by_name]);
/// assert_eq!(txn.tables().count(), 1, "the same table twice");
/// # Ok(())
/// # }
/// ```
pub trait WriteTarget {
    /// Returns the table to lock.
    fn target(&self) -> Target<'_>;
}

struct Locked {
    meta: Arc<TableMeta>,
    guard: ArcMutexGuard<RawMutex, ()>,
}

/// Tables locked by a transaction; unlocked when dropped.
struct Locks {
    tables: SmallVec<[Locked; 3]>,
    opened: Instant,
}

/// Tables locked, in the same order.
type Works = SmallVec<[Open; 3]>;

/// Changes to several tables that become visible together at [`WriteTxn::commit`]. Dropping it undoes them.
///
/// Holds locks: keep it short, never across an `.await` (it is not `Send`).
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
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// assert_eq!((pods.len(&txn), pods.len(&db.read())), (1, 0), "sees its own changes, others do not");
/// txn.abort();
/// assert_eq!((pods.len(&db.read()), pods.revision(&db.read())), (0, 0));
///
/// let mut txn = db.handle("importer").write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// assert_eq!(txn.tables().collect::<Vec<_>>(), ["pods"]);
/// assert_eq!(pods.len(&txn.commit()), 1);
/// # Ok(())
/// # }
/// ```
pub struct WriteTxn {
    db: Arc<DbInner>,
    /// States of all tables when the locks were taken.
    root: Arc<Root>,
    locks: Locks,
    works: Works,
}

impl fmt::Debug for WriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables: Vec<&str> = self.tables().collect();
        f.debug_struct("WriteTxn")
            .field("handle", &self.locks.handle())
            .field("tables", &tables)
            .finish()
    }
}

impl WriteTxn {
    pub(crate) fn open<'a>(
        db: &Arc<DbInner>,
        handle: &Arc<str>,
        tables: impl Iterator<Item = Target<'a>>,
    ) -> Self {
        let mut metas: SmallVec<[&Arc<TableMeta>; 2]> = tables
            .map(|table| table.0)
            .filter(|meta| meta.db == db.number)
            .collect();
        metas.sort_unstable_by_key(|meta| meta.id);
        metas.dedup_by_key(|meta| meta.id);
        check_nesting(db.number, &metas);

        let timed = db.metrics.enabled();
        let mut guards: SmallVec<[_; 2]> = SmallVec::new();
        for meta in &metas {
            let asked = timed.then(Instant::now);
            let guard = meta.lock.lock_arc();
            if let Some(asked) = asked {
                db.metrics.table_contention(handle, &meta.name, asked.elapsed());
            }
            guards.push(guard);
        }
        Self::with_locks(db, handle, &metas, guards)
    }

    /// Opens a transaction over one table if its lock is free.
    pub(crate) fn try_open(db: &Arc<DbInner>, handle: &Arc<str>, meta: &Arc<TableMeta>) -> Option<Self> {
        let guard = meta.lock.try_lock_arc()?;
        Some(Self::with_locks(
            db,
            handle,
            &[meta],
            SmallVec::from_iter([guard]),
        ))
    }

    fn with_locks(
        db: &Arc<DbInner>,
        handle: &Arc<str>,
        metas: &[&Arc<TableMeta>],
        guards: SmallVec<[ArcMutexGuard<RawMutex, ()>; 2]>,
    ) -> Self {
        let opened = Instant::now();
        let root = db.root.load_full();
        let mut locks = Locks {
            tables: SmallVec::new(),
            opened,
        };
        let mut works = Works::new();
        for (&meta, guard) in metas.iter().zip(guards) {
            let Some(base) = root.get(meta.id) else { continue };
            meta.begin_write(handle, opened);
            HELD.with_borrow_mut(|held| held.push((meta.db, meta.id)));
            works.push(Open::new(&**base, meta.watches.wants_keys()));
            locks.tables.push(Locked {
                meta: Arc::clone(meta),
                guard,
            });
        }
        Self {
            db: Arc::clone(db),
            root,
            locks,
            works,
        }
    }

    /// Place of a table among those locked.
    fn place(&self, db: u64, id: usize) -> Option<usize> {
        let mut tables = self.locks.tables.iter();
        tables.position(|table| table.meta.id == id && table.meta.db == db)
    }

    /// Returns a table to be changed.
    #[inline]
    pub(crate) fn work<T: 'static>(&mut self, meta: &TableMeta) -> Result<Work<'_, T>, Error> {
        self.place(meta.db, meta.id)
            .and_then(|at| self.works[at].work())
            .ok_or_else(|| not_locked(meta))
    }

    /// Returns a table to be changed but for its objects.
    pub(crate) fn table(&mut self, meta: &TableMeta) -> Result<&mut Open, Error> {
        match self.place(meta.db, meta.id) {
            Some(at) => Ok(&mut self.works[at]),
            None => Err(not_locked(meta)),
        }
    }

    /// Reports that the initialiser's source has delivered everything, with this transaction: effective at commit.
    /// If the transaction is dropped, the same guard can be reported again. Repeating it is harmless.
    ///
    /// # Errors
    /// [`Error::NotLocked`] if the table is not part of the transaction.
    pub fn initialized(&mut self, guard: &InitGuard) -> Result<(), Error> {
        let number = guard.number;
        let table = self.table(&guard.meta)?;
        let mut pending = table.state.initializers().pending().iter();
        if pending.any(|pending| pending.number == number) {
            table.initializers_mut().remove(number);
        }
        Ok(())
    }

    /// Names of the tables locked.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.locks.tables.iter().map(|table| &*table.meta.name)
    }

    /// Undoes all changes; the same as dropping the transaction.
    pub fn abort(self) {}

    /// Publishes all changes at once and closes the watches that they touch. Returns the state of all tables with
    /// these changes.
    pub fn commit(self) -> Snapshot {
        let Self {
            db,
            mut root,
            mut locks,
            mut works,
        } = self;
        for (table, work) in locks.tables.iter().zip(&mut works) {
            tend_graveyard(&db, &table.meta, work);
        }
        if works.iter().all(|work| !work.changed) {
            return Snapshot { db, root };
        }

        // A watch is registered under this lock after a look at the newest root: with the lock held from before
        // the new root is visible until the watches are taken out, it is either found here or sees the new root.
        step::at(Step::Enter);
        let mut cells: SmallVec<[_; 3]> = SmallVec::new();
        cells.extend(locks.tables.iter().map(|table| table.meta.watches.lock()));
        let mut closed: Vec<CancellationToken> = Vec::new();
        for ((table, work), cells) in locks.tables.iter().zip(&works).zip(&mut cells) {
            if cells.is_empty() || !work.changed {
                continue;
            }
            let Some(base) = root.get(table.meta.id) else {
                continue;
            };
            let state = &*work.state;
            if state.revision() != base.revision() {
                cells.take(&Place::Table, &mut closed);
            }
            if !state.initializers().same(base.initializers()) {
                cells.take(&Place::Initializers, &mut closed);
            }
            if cells.has_keyed() {
                match &work.touched {
                    Some(touched) => {
                        for (index, key) in touched {
                            cells.take_touched(*index, key, &mut closed);
                        }
                    }
                    None => cells.take_if(|place| base.differs(state, place), &mut closed),
                }
            }
            table.meta.watches.publish(cells);
        }
        step::at(Step::Inside);

        let mut states = States::new();
        for (table, work) in locks.tables.iter().zip(works) {
            if work.changed {
                states.push((table.meta.id, work.state));
            }
        }
        // Freeing what no snapshot shows any more takes its time: others need not wait for it.
        let mut replaced: SmallVec<[Arc<dyn AnyState>; 3]> = SmallVec::new();
        // The root of the beginning if other tables have been changed since.
        let outdated;
        {
            let mut spare = db.commit.lock();
            let (new, old) = db.publish(spare.take(), &states);
            // Nothing else of this transaction may hold the old root: it is to become the next spare one.
            let before = std::mem::replace(&mut root, new);
            outdated = (!Arc::ptr_eq(&before, &old)).then_some(before);
            *spare = recycled(old, states, |state| replaced.push(state));
        }
        step::at(Step::Inside);
        drop(cells);
        step::at(Step::Left);
        let opened = locks.opened;
        report(&db, &mut locks, &root);
        for table in locks.tables.drain(..) {
            drop(table.guard);
        }
        for token in closed {
            step::at(Step::Outside);
            token.cancel();
        }
        drop((replaced, outdated));
        db.warn_late(&root, opened);
        Snapshot { db, root }
    }
}

/// New states of tables, by number of the table.
type States = SmallVec<[(usize, Arc<dyn AnyState>); 3]>;

/// Notes the end of a transaction for the tables' overview and metrics; the tables are still locked.
fn report(db: &DbInner, locks: &mut Locks, root: &Root) {
    let held = locks.release();
    if !db.metrics.enabled() {
        return;
    }
    let metas = || locks.tables.iter().map(|table| &*table.meta);
    let names: SmallVec<[&str; 4]> = metas().map(|meta| &*meta.name).collect();
    db.metrics.write_txn_duration(&locks.handle(), &names, held);
    for meta in metas() {
        let Some(state) = root.get(meta.id) else { continue };
        db.metrics.objects(&meta.name, state.objects());
        db.metrics.revision(&meta.name, state.revision());
        db.metrics.delete_trackers(&meta.name, meta.trackers.count());
        db.metrics.graveyard_objects(&meta.name, state.zombies());
    }
}

/// Brings a root up to date that has become old with `states`, unless a snapshot still shows it. What was in it goes to
/// `replaced`.
fn recycled(
    mut old: Arc<Root>,
    states: States,
    mut replaced: impl FnMut(Arc<dyn AnyState>),
) -> Option<Arc<Root>> {
    let root = Arc::get_mut(&mut old)?;
    for (table, state) in states {
        root.set(table, state).map(&mut replaced);
    }
    Some(old)
}

impl Locks {
    /// Name of the handle that made the transaction; empty if no table is locked.
    fn handle(&self) -> Arc<str> {
        let table = self.tables.first();
        table.map_or_else(Arc::default, |table| Arc::clone(&table.meta.writer.lock()))
    }

    /// Marks the tables as not held by this thread any more; returns how long they were.
    fn release(&mut self) -> Duration {
        let held = self.opened.elapsed();
        HELD.with_borrow_mut(|list| {
            for table in &self.tables {
                let meta = &table.meta;
                meta.held.store(held.as_nanos() as u64, Ordering::Relaxed);
                if let Some(at) = list.iter().rposition(|&lock| lock == (meta.db, meta.id)) {
                    list.swap_remove(at);
                }
            }
        });
        held
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        if !self.tables.is_empty() {
            self.release();
        }
    }
}

impl Read for WriteTxn {
    fn state<'a>(&'a self, At(table): At<'_>) -> Option<Found<'a>> {
        if table.db != self.db.number {
            return None;
        }
        match self.place(table.db, table.id) {
            Some(at) => Some(Found(&*self.works[at].state)),
            None => self.root.get(table.id).map(|state| Found(&**state)),
        }
    }
}

fn not_locked(meta: &TableMeta) -> Error {
    Error::NotLocked {
        table: meta.name.to_string(),
    }
}

fn check_nesting(db: u64, metas: &[&Arc<TableMeta>]) {
    HELD.with_borrow(|held| {
        for meta in metas {
            assert!(
                !held.contains(&(db, meta.id)),
                "table `{}` is already locked by a write transaction of this thread",
                meta.name
            );
        }
        debug_assert!(
            metas.is_empty() || !held.iter().any(|&(other, _)| other == db),
            "nested write transaction: table `{}` must not be locked while this thread holds others",
            metas[0].name
        );
    });
}

/// Buries deletions seen by every change iterator; cuts the graveyard if a stuck one lets it grow too large.
fn tend_graveyard(db: &DbInner, meta: &TableMeta, work: &mut Open) {
    if work.state.zombies() == 0 {
        return;
    }
    let started = db.metrics.enabled().then(Instant::now);
    let watermark = meta.trackers.watermark();
    let mut buried = work.bury(watermark);
    if work.state.zombies() > meta.graveyard_limit
        && let Some(revision) = work.state.deletion_before_last(meta.graveyard_limit / 2)
    {
        let readers = meta.trackers.give_up(revision);
        tracing::warn!(table = %meta.name, readers, "Change iterators are too far behind, relisting");
        buried += work.bury(meta.trackers.watermark());
    }
    if let Some(started) = started
        && buried > 0
    {
        db.metrics
            .graveyard_cleaning_duration(&meta.name, started.elapsed());
        db.metrics
            .graveyard_low_watermark(&meta.name, watermark.min(work.state.revision()));
    }
}
