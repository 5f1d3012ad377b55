// SPDX-License-Identifier: Apache-2.0

//! Typed tables: the read-only handle and the writable one.

mod builder;

use std::{any::Any, fmt, ops::Deref, sync::Arc};

use parking_lot::Mutex;

pub use builder::{PrimaryBuilder, TableBuilder};

use crate::{
    Db, Error, Obj, ReadTxn, Revision, Snapshot, WriteTxn,
    changes::ChangeIterator,
    db::{
        TableMeta,
        sealed::{At, Found},
    },
    index::{IndexDef, Query},
    key::{KeyBuf, KeyBytes, printable},
    reconciler::ReconcilerProgress,
    row::RowFns,
    slots::Slot,
    state::{Condition, Exchange, TableState, Work},
    step::{self, Step},
    txn::{Target, WriteTarget},
    watch::{Place, Watch},
};

pub(crate) struct TableInner<T> {
    pub(crate) meta: Arc<TableMeta>,
    pub(crate) defs: Vec<IndexDef<T>>,
    pub(crate) row: RowFns<T>,
    /// Content in snapshots that are older than the table.
    nothing: TableState<T>,
    reconcilers: Mutex<Vec<ReconcilerProgress>>,
}

/// Reads one table; cheap to clone. Writers have an [`RwTable`].
///
/// ```
/// # use statedb::{Db, Index, RwTable, Table};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).index(BY_NODE).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// for (name, node) in [("web-0", "a"), ("web-1", "b"), ("db-0", "a")] {
///     pods.insert(&mut txn, pod(name, node))?;
/// }
/// let snapshot = txn.commit();
/// let pods: Table<Pod> = pods.reader();
///
/// assert_eq!(pods.get(&snapshot, BY_NAME.key("web-1")).unwrap().node, "b");
/// let names = |found: Vec<&statedb::Obj<Pod>>| found.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
/// assert_eq!(names(pods.list(&snapshot, BY_NODE.key("a")).collect()), ["db-0", "web-0"]);
/// assert_eq!(names(pods.prefix(&snapshot, BY_NAME.key("web-")).collect()), ["web-0", "web-1"]);
/// assert_eq!(names(pods.lower_bound(&snapshot, BY_NAME.key("web-0")).collect()), ["web-0", "web-1"]);
/// assert_eq!(names(pods.by_revision(&snapshot, 2).collect()), ["web-1", "db-0"]);
/// assert_eq!((pods.all(&snapshot).count(), pods.len(&snapshot), pods.revision(&snapshot)), (3, 3, 3));
/// # Ok(())
/// # }
/// ```
pub struct Table<T>(pub(crate) Arc<TableInner<T>>);

/// Reads and writes one table; cheap to clone. The module that owns the table keeps it and provides
/// [`RwTable::reader`].
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).index(BY_NODE).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// let first = pods.insert_get(&mut txn, pod("web-0", "a"))?;
/// let old = pods.insert(&mut txn, pod("web-0", "b"))?;
/// assert_eq!(old.unwrap().node, "a");
/// assert!(pods.compare_and_swap(&mut txn, first.revision(), pod("web-0", "c")).is_err(), "changed since");
/// pods.modify(&mut txn, pod("web-0", "c"), |old, new| Pod { name: new.name, node: old.node.clone() + &new.node })?;
/// pods.update(&mut txn, BY_NAME.key("web-0"), |old| pod(&old.name, &old.node.to_uppercase()))?;
/// assert_eq!(pods.get(&txn, BY_NAME.key("web-0")).unwrap().node, "BC");
///
/// assert!(pods.delete(&mut txn, &pod("web-1", ""))?.is_none(), "there is none");
/// assert!(pods.delete_by(&mut txn, BY_NODE.key("BC"))?.is_some());
/// assert_eq!(pods.delete_all(&mut txn)?, 0);
/// txn.commit();
/// # Ok(())
/// # }
/// ```
pub struct RwTable<T>(Table<T>);

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Clone for RwTable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.0.meta.name).finish()
    }
}

impl<T> fmt::Debug for RwTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwTable").field(&self.0.0.meta.name).finish()
    }
}

impl<T> Deref for RwTable<T> {
    type Target = Table<T>;

    fn deref(&self) -> &Table<T> {
        &self.0
    }
}

impl<T> WriteTarget for RwTable<T> {
    fn target(&self) -> Target<'_> {
        Target(&self.0.0.meta)
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Name of the table.
    pub fn name(&self) -> &str {
        &self.0.meta.name
    }

    pub(crate) fn add_reconciler(&self, reconciler: ReconcilerProgress) {
        let mut reconcilers = self.0.reconcilers.lock();
        reconcilers.retain(ReconcilerProgress::is_alive);
        reconcilers.push(reconciler);
    }

    /// Waits until the [reconcilers](crate::reconciler) of the table have attempted all changes up to `revision` at least
    /// once. Returns at once if there are none: for those who write to the table and do not know who reconciles it.
    ///
    /// See [`Reconciler`](crate::reconciler::Reconciler) for an example.
    pub async fn wait_until_reconciled(&self, revision: Revision) {
        let reconcilers = self.0.reconcilers.lock().clone();
        for reconciler in reconcilers {
            reconciler.wait(revision).await;
        }
    }

    #[inline]
    pub(crate) fn state<'a>(&'a self, txn: &'a impl ReadTxn) -> &'a TableState<T> {
        txn.state(At(&self.0.meta))
            .and_then(|Found(state)| (state as &dyn Any).downcast_ref())
            .unwrap_or(&self.0.nothing)
    }

    /// Position and definition of an index.
    fn index(&self, name: &'static str) -> Option<usize> {
        let position = self
            .0
            .defs
            .iter()
            .position(|def| std::ptr::eq(def.name, name) || def.name == name);
        debug_assert!(
            position.is_some(),
            "table `{}` has no index `{name}`",
            self.name()
        );
        position
    }

    /// Returns the first object with this key in the query's index.
    #[inline]
    pub fn get<'a>(&'a self, txn: &'a impl ReadTxn, query: Query<T>) -> Option<&'a Obj<T>> {
        let position = self.index(query.index)?;
        let def = &self.0.defs[position];
        let state = self.state(txn);
        if def.unique {
            return state.find(position, &query.key);
        }
        let found = state.tree(position).starting(def.stored_exact(query.key));
        state.found(found).next()
    }

    /// [`Table::get`], and a watch that closes when the answer changes.
    pub fn get_watch<'a>(&'a self, txn: &'a Snapshot, query: Query<T>) -> (Option<&'a Obj<T>>, Watch) {
        let watch = self.watch_exact(txn, &query);
        (self.get(txn, query), watch)
    }

    /// Returns all objects with this key, in order of their primary keys.
    pub fn list<'a>(&'a self, txn: &'a impl ReadTxn, query: Query<T>) -> impl Iterator<Item = &'a Obj<T>> {
        let state = self.state(txn);
        let (one, many) = match self.index(query.index) {
            None => (None, None),
            Some(position) if self.0.defs[position].unique => (state.find(position, &query.key), None),
            Some(position) => {
                let start = self.0.defs[position].stored_exact(query.key);
                (None, Some(state.found(state.tree(position).starting(start))))
            }
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// [`Table::list`], and a watch that closes when the answer changes.
    pub fn list_watch<'a>(
        &'a self,
        txn: &'a Snapshot,
        query: Query<T>,
    ) -> (impl Iterator<Item = &'a Obj<T>>, Watch) {
        let watch = self.watch_exact(txn, &query);
        (self.list(txn, query), watch)
    }

    /// Returns all objects whose key starts with the query's key, in order of the index.
    pub fn prefix<'a>(&'a self, txn: &'a impl ReadTxn, query: Query<T>) -> impl Iterator<Item = &'a Obj<T>> {
        let state = self.state(txn);
        let found = self.index(query.index).map(|position| {
            let start = self.0.defs[position].stored_prefix(query.key);
            state.found(state.tree(position).starting(start))
        });
        found.into_iter().flatten()
    }

    /// [`Table::prefix`], and a watch that closes when the answer changes.
    pub fn prefix_watch<'a>(
        &'a self,
        txn: &'a Snapshot,
        query: Query<T>,
    ) -> (impl Iterator<Item = &'a Obj<T>>, Watch) {
        let watch = match self.index(query.index) {
            Some(at) => self.watch(txn, Place::Prefix(at, self.prefix_place(at, &query))),
            None => Watch::already_closed(),
        };
        (self.prefix(txn, query), watch)
    }

    /// Returns all objects with this key or a later one, in order of the index.
    pub fn lower_bound<'a>(
        &'a self,
        txn: &'a impl ReadTxn,
        query: Query<T>,
    ) -> impl Iterator<Item = &'a Obj<T>> {
        let state = self.state(txn);
        let found = self.index(query.index).map(|position| {
            let from = self.0.defs[position].stored_prefix(query.key);
            state.found(state.tree(position).at_least(&from))
        });
        found.into_iter().flatten()
    }

    /// [`Table::lower_bound`], and a watch that closes when anything in the table changes.
    pub fn lower_bound_watch<'a>(
        &'a self,
        txn: &'a Snapshot,
        query: Query<T>,
    ) -> (impl Iterator<Item = &'a Obj<T>>, Watch) {
        (self.lower_bound(txn, query), self.watch(txn, Place::Table))
    }

    /// Returns all objects in order of their primary keys.
    pub fn all<'a>(&'a self, txn: &'a impl ReadTxn) -> impl Iterator<Item = &'a Obj<T>> {
        let state = self.state(txn);
        state.found(state.primary.iter())
    }

    /// [`Table::all`], and a watch that closes when anything in the table changes.
    pub fn all_watch<'a>(&'a self, txn: &'a Snapshot) -> (impl Iterator<Item = &'a Obj<T>>, Watch) {
        (self.all(txn), self.watch(txn, Place::Table))
    }

    /// Returns a watch that closes when anything in the table changes.
    pub fn table_watch(&self, txn: &Snapshot) -> Watch {
        self.watch(txn, Place::Table)
    }

    /// Returns the objects inserted or changed at `since` or later, in order of their revisions.
    pub fn by_revision<'a>(
        &'a self,
        txn: &'a impl ReadTxn,
        since: Revision,
    ) -> impl Iterator<Item = &'a Obj<T>> {
        self.state(txn).since(since).map(|(_, object)| object)
    }

    /// [`Table::by_revision`], and a watch that closes when anything in the table changes.
    pub fn by_revision_watch<'a>(
        &'a self,
        txn: &'a Snapshot,
        since: Revision,
    ) -> (impl Iterator<Item = &'a Obj<T>>, Watch) {
        (self.by_revision(txn, since), self.watch(txn, Place::Table))
    }

    /// Returns how many objects the table holds.
    pub fn len(&self, txn: &impl ReadTxn) -> usize {
        self.state(txn).primary.len()
    }

    /// Returns whether the table holds no object.
    pub fn is_empty(&self, txn: &impl ReadTxn) -> bool {
        self.len(txn) == 0
    }

    /// Returns the revision of the last change.
    pub fn revision(&self, txn: &impl ReadTxn) -> Revision {
        self.state(txn).revision
    }

    /// Returns the primary key of an object, as bytes.
    ///
    /// # Errors
    /// [`Error::PrimaryKey`] if the index does not return exactly one.
    pub fn primary_key(&self, object: &T) -> Result<KeyBuf, Error> {
        self.primary_bytes(object).map(|key| KeyBuf::new(&key))
    }

    /// [`Table::primary_key`], not to be kept for long.
    #[inline]
    pub(crate) fn primary_bytes(&self, object: &T) -> Result<KeyBytes, Error> {
        Work::primary_key(self.name(), &self.0.defs, object)
    }

    /// Returns the object with this primary key.
    pub fn get_by_primary<'a>(&'a self, txn: &'a impl ReadTxn, key: &KeyBuf) -> Option<&'a Obj<T>> {
        self.get_by_bytes(txn, key.as_bytes())
    }

    pub(crate) fn get_by_bytes<'a>(&'a self, txn: &'a impl ReadTxn, key: &[u8]) -> Option<&'a Obj<T>> {
        self.state(txn).find(0, key)
    }

    /// Returns the object with this primary key, and its number.
    pub(crate) fn numbered<'a>(&'a self, txn: &'a impl ReadTxn, key: &[u8]) -> Option<(Slot, &'a Obj<T>)> {
        let state = self.state(txn);
        let slot = *state.primary.get(key)?;
        Some((slot, state.objects.get(slot)?))
    }

    /// Returns whether every index has the same keys of both objects.
    pub(crate) fn same_keys(&self, a: &T, b: &T) -> bool {
        self.0.defs.iter().all(|def| def.keys(a) == def.keys(b))
    }

    fn prefix_place(&self, index: usize, query: &Query<T>) -> KeyBuf {
        KeyBuf::new(&self.0.defs[index].stored_prefix(query.key.clone()))
    }

    fn watch_exact(&self, txn: &Snapshot, query: &Query<T>) -> Watch {
        let Some(at) = self.index(query.index) else {
            return Watch::already_closed();
        };
        let def = &self.0.defs[at];
        let stored = KeyBuf::new(&def.stored_exact(query.key.clone()));
        let place = if def.unique {
            Place::Exact(at, stored)
        } else {
            Place::Prefix(at, stored)
        };
        self.watch(txn, place)
    }

    /// Registers a watch unless the answer differs already in the newest state.
    pub(crate) fn watch(&self, txn: &Snapshot, place: Place) -> Watch {
        let meta = &self.0.meta;
        step::at(Step::Enter);
        let mut cells = meta.watches.lock();
        let newest = Snapshot {
            db: Arc::clone(&txn.db),
            root: txn.db.root.load_full(),
        };
        step::at(Step::Inside);
        let (read, now) = (self.state(txn), self.state(&newest));
        let stale = !std::ptr::eq(read, now) && read.differs(now, &place);
        let watch = if stale {
            Watch::already_closed()
        } else {
            meta.watches.watch(&mut cells, place)
        };
        drop(cells);
        step::at(Step::Left);
        watch
    }
}

impl<T: Send + Sync + 'static> RwTable<T> {
    /// Starts the definition of a table called `name`, which matches `[a-z][a-z0-9_-]{0,30}`.
    pub fn builder(name: &str) -> TableBuilder<T> {
        TableBuilder::new(name)
    }

    /// Returns a handle that can only read.
    pub fn reader(&self) -> Table<T> {
        self.0.clone()
    }

    /// Inserts an object, or replaces the one with the same primary key, which is returned.
    ///
    /// # Errors
    /// [`Error::NotLocked`], [`Error::Conflict`], [`Error::PrimaryKey`]; the table is unchanged then.
    pub fn insert(&self, txn: &mut WriteTxn, object: T) -> Result<Option<Obj<T>>, Error> {
        self.put(txn, object, &Condition::Always).map(|(_, old)| old)
    }

    /// Like [`RwTable::insert`] but returns the new object as stored.
    ///
    /// # Errors
    /// As [`RwTable::insert`].
    pub fn insert_get(&self, txn: &mut WriteTxn, object: T) -> Result<Obj<T>, Error> {
        let (slot, _) = self.put(txn, object, &Condition::Always)?;
        let work: Work<'_, T> = txn.work(&self.0.0.meta)?;
        let stored = work.state.objects.get(slot);
        Ok(stored.expect("an object is where it was inserted").clone())
    }

    /// Replaces an object that is still at `revision`; returns the replaced one.
    ///
    /// # Errors
    /// [`Error::RevisionMismatch`] if it changed, [`Error::NotFound`] if it is gone; and those of
    /// [`RwTable::insert`].
    pub fn compare_and_swap(
        &self,
        txn: &mut WriteTxn,
        revision: Revision,
        object: T,
    ) -> Result<Option<Obj<T>>, Error> {
        self.put(txn, object, &Condition::Revision(revision))
            .map(|(_, old)| old)
    }

    fn put(
        &self,
        txn: &mut WriteTxn,
        object: T,
        condition: &Condition,
    ) -> Result<(Slot, Option<Obj<T>>), Error> {
        let inner = &self.0.0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        work.insert(&inner.meta.name, &inner.defs, object, condition)
    }

    /// Replaces objects by ones that have the same keys, if they are still at their revisions; takes those written.
    pub(crate) fn exchange_all<W>(
        &self,
        txn: &mut WriteTxn,
        list: &mut [W],
        exchange: impl Fn(&mut W) -> &mut Exchange<T>,
    ) -> Result<(), Error> {
        let inner = &self.0.0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        work.exchange_all(&inner.meta.name, &inner.defs, list, exchange);
        Ok(())
    }

    /// Inserts `object`, or, if one with its primary key exists, `merge(old, object)`. Returns the old object.
    ///
    /// # Errors
    /// As [`RwTable::insert`].
    pub fn modify(
        &self,
        txn: &mut WriteTxn,
        object: T,
        merge: impl FnOnce(&Obj<T>, T) -> T,
    ) -> Result<Option<Obj<T>>, Error> {
        let key = self.primary_bytes(&object)?;
        let merged = match self.get_by_bytes(txn, &key) {
            Some(old) => merge(old, object),
            None => object,
        };
        self.insert(txn, merged)
    }

    /// Replaces the object that `query` finds by `change` of it; returns the old one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none; and those of [`RwTable::insert`].
    pub fn update(
        &self,
        txn: &mut WriteTxn,
        query: Query<T>,
        change: impl FnOnce(&T) -> T,
    ) -> Result<Obj<T>, Error> {
        let missing = Error::NotFound {
            table: self.name().to_owned(),
            key: printable(&query.key),
        };
        let old = self.get(txn, query).cloned().ok_or(missing)?;
        self.insert(txn, change(&old))?;
        Ok(old)
    }

    /// Removes the object with the primary key of `object`; returns it.
    ///
    /// # Errors
    /// [`Error::NotLocked`], [`Error::PrimaryKey`].
    pub fn delete(&self, txn: &mut WriteTxn, object: &T) -> Result<Option<Obj<T>>, Error> {
        let key = self.primary_bytes(object)?;
        self.delete_at(txn, &key)
    }

    /// Removes all objects with this key; returns the last one removed.
    ///
    /// # Errors
    /// [`Error::NotLocked`].
    pub fn delete_by(&self, txn: &mut WriteTxn, query: Query<T>) -> Result<Option<Obj<T>>, Error> {
        let found: Vec<Obj<T>> = self.list(txn, query).cloned().collect();
        let mut last = None;
        for object in &found {
            last = self.delete(txn, object)?;
        }
        if found.is_empty() {
            let _: Work<'_, T> = txn.work(&self.0.0.meta)?;
        }
        Ok(last)
    }

    /// Removes the object with this primary key; returns it.
    ///
    /// # Errors
    /// [`Error::NotLocked`].
    pub fn delete_by_primary(&self, txn: &mut WriteTxn, key: &KeyBuf) -> Result<Option<Obj<T>>, Error> {
        self.delete_at(txn, key.as_bytes())
    }

    fn delete_at(&self, txn: &mut WriteTxn, key: &[u8]) -> Result<Option<Obj<T>>, Error> {
        let inner = &self.0.0;
        let tracked = inner.meta.trackers.count() > 0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        Ok(work.delete(&inner.defs, key, tracked))
    }

    /// Removes the object with the primary key of `object` if it is still at `revision`; returns it.
    ///
    /// # Errors
    /// [`Error::RevisionMismatch`] if it changed, [`Error::NotFound`] if it is gone already.
    pub fn compare_and_delete(
        &self,
        txn: &mut WriteTxn,
        revision: Revision,
        object: &T,
    ) -> Result<Option<Obj<T>>, Error> {
        let inner = &self.0.0;
        let key = self.primary_bytes(object)?;
        let tracked = inner.meta.trackers.count() > 0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        work.delete_if(&inner.meta.name, &inner.defs, &key, revision, tracked)
    }

    /// Removes all objects; returns how many.
    ///
    /// # Errors
    /// [`Error::NotLocked`].
    pub fn delete_all(&self, txn: &mut WriteTxn) -> Result<usize, Error> {
        let inner = &self.0.0;
        let tracked = inner.meta.trackers.count() > 0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        let all = work.state.primary.clone();
        let keys = all.iter().map(|(key, _)| key.owned());
        for key in keys {
            work.delete(&inner.defs, &key, tracked);
        }
        Ok(all.len())
    }

    /// Starts a stream of changes: first all objects, then their changes, deletions included.
    ///
    /// # Errors
    /// [`Error::NotLocked`].
    pub fn changes(&self, txn: &mut WriteTxn) -> Result<ChangeIterator<T>, Error> {
        txn.table(&self.0.0.meta)?;
        Ok(ChangeIterator::new(self.reader()))
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Like [`RwTable::changes`] without a transaction; waits for the lock of the table.
    ///
    /// # Panics
    /// If this thread holds a write transaction over the table.
    pub fn follow(&self, db: &Db) -> ChangeIterator<T> {
        let _txn = WriteTxn::open(
            &db.inner,
            &Arc::from(db.handle_name()),
            std::iter::once(Target(&self.0.meta)),
        );
        ChangeIterator::new(self.clone())
    }
}
