// SPDX-License-Identifier: Apache-2.0

//! Change streams of tables, deletions included.

use std::{
    fmt,
    iter::Peekable,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::Stream;

use crate::{
    Db, Obj, Revision, Snapshot, Table,
    db::{Tracker, collect},
    slots::Slot,
    watch::Watch,
};

/// One change of a table.
///
/// See [`ChangeIterator`] for an example.
#[derive(Clone)]
pub enum Change<T> {
    /// The object was inserted or replaced; this is its last state.
    Upsert(Obj<T>),
    /// The object was deleted at `revision`; `object` is its last state before.
    Delete {
        /// Last state of the object.
        object: Obj<T>,
        /// Table revision of the deletion.
        revision: Revision,
    },
    /// The reader was so slow that deletions were forgotten: it must drop what it holds. All objects follow.
    Relist,
}

impl<T> Change<T> {
    /// Returns the object concerned, if any.
    pub fn object(&self) -> Option<&Obj<T>> {
        match self {
            Self::Upsert(object) | Self::Delete { object, .. } => Some(object),
            Self::Relist => None,
        }
    }

    /// Table revision of the change; 0 for [`Change::Relist`].
    pub fn revision(&self) -> Revision {
        match self {
            Self::Upsert(object) => object.revision(),
            Self::Delete { revision, .. } => *revision,
            Self::Relist => 0,
        }
    }

    /// Returns whether this is a deletion.
    pub fn is_delete(&self) -> bool {
        matches!(self, Self::Delete { .. })
    }
}

impl<T: fmt::Debug> fmt::Debug for Change<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upsert(object) => write!(f, "upsert {object:?}"),
            Self::Delete { object, revision } => write!(f, "delete {object:?} at {revision}"),
            Self::Relist => f.write_str("relist"),
        }
    }
}

/// A place in the history of a table; made by [`RwTable::changes`](crate::RwTable::changes).
///
/// The first round returns all objects. As long as the iterator lives the table remembers deletions for it, up to
/// the table's graveyard limit.
///
/// ```
/// use statedb::Change;
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let mut changes = pods.follow(&db);
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// pods.insert(&mut txn, pod("web-1", "a"))?;
/// let snapshot = txn.commit();
/// let seen: Vec<String> = changes.next(&snapshot).map(|change| change.object().unwrap().name.clone()).collect();
/// assert_eq!(seen, ["web-0", "web-1"]);
///
/// let mut txn = db.write(&[&pods]);
/// pods.delete(&mut txn, &pod("web-0", "a"))?;
/// pods.insert(&mut txn, pod("web-1", "b"))?;
/// let snapshot = txn.commit();
/// assert!(changes.pending(&snapshot));
/// for change in changes.next(&snapshot) {
///     match change {
///         Change::Upsert(pod) => assert_eq!((pod.name.as_str(), pod.node.as_str()), ("web-1", "b")),
///         Change::Delete { object, revision } => assert_eq!((object.name.as_str(), revision), ("web-0", 3)),
///         Change::Relist => unreachable!("this reader is not slow"),
///     }
/// }
/// assert_eq!(changes.seen(), pods.revision(&snapshot));
/// # Ok(())
/// # }
/// ```
pub struct ChangeIterator<T> {
    table: Table<T>,
    tracker: Arc<Tracker>,
    seen: Revision,
    started: bool,
}

impl<T> fmt::Debug for ChangeIterator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeIterator")
            .field("table", &self.table)
            .field("seen", &self.seen)
            .finish()
    }
}

impl<T: Send + Sync + 'static> ChangeIterator<T> {
    /// Called with the table locked for writing.
    pub(crate) fn new(table: Table<T>) -> Self {
        let tracker = table.0.meta.trackers.add(0);
        Self {
            table,
            tracker,
            seen: 0,
            started: false,
        }
    }

    /// Returns the changes between the previous call and `snapshot`, in order of revision: of each object its last
    /// state only. What is not taken from the iterator comes again with the next call.
    pub fn next<'a>(&'a mut self, snapshot: &'a Snapshot) -> Changes<'a, T> {
        let table = &self.table;
        let state = table.state(snapshot);
        let relist = self.started && state.buried > self.seen && state.revision > self.seen;
        if relist {
            self.seen = 0;
        }
        // Whoever looked at an empty table is to hear of what came and went since, as with any other table.
        let first = !std::mem::replace(&mut self.started, true);
        let from = self.seen + 1;
        let upserts: Upserts<'a, T> = Box::new(state.since(from));
        let deletes: Deletes<'a, T> = if relist || first {
            Box::new(std::iter::empty())
        } else {
            Box::new(
                state
                    .dead
                    .at_least(&from)
                    .map(|(revision, (_, object))| (revision.number(), object)),
            )
        };
        Changes {
            relist,
            until: state.revision.max(self.seen),
            zombies: !state.dead.is_empty(),
            snapshot,
            upserts: upserts.peekable(),
            deletes: deletes.peekable(),
            seen: &mut self.seen,
            tracker: &self.tracker,
            table,
        }
    }

    /// [`ChangeIterator::next`], and a watch that closes when there are more changes.
    pub fn next_watch<'a>(&'a mut self, snapshot: &'a Snapshot) -> (Changes<'a, T>, Watch) {
        let watch = self.table.table_watch(snapshot);
        (self.next(snapshot), watch)
    }

    /// Waits until there are changes not returned yet; returns a snapshot that has them.
    pub async fn wait(&self, db: &Db) -> Snapshot {
        loop {
            let snapshot = db.read();
            if self.pending(&snapshot) {
                return snapshot;
            }
            self.table.table_watch(&snapshot).closed().await;
        }
    }

    /// Returns whether `snapshot` has changes not returned yet.
    pub fn pending(&self, snapshot: &Snapshot) -> bool {
        self.table.state(snapshot).revision > self.seen
    }

    /// Skips the changes up to `snapshot`.
    pub(crate) fn skip_to(&mut self, snapshot: &Snapshot) {
        self.seen = self.table.revision(snapshot);
        self.tracker.seen.store(self.seen, Ordering::Release);
    }

    /// Returns the revision up to which changes were returned.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Returns the changes as a stream: waits for the next one. Batches: at most `batch` changes at a time, and at
    /// least `pause` between two looks at the table.
    pub fn stream(self, db: Db, batch: usize, pause: Duration) -> impl Stream<Item = Vec<Change<T>>> + Send {
        futures::stream::unfold((self, db, true), move |(mut iterator, db, first)| async move {
            if !first && !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            loop {
                let snapshot = iterator.wait(&db).await;
                let changes: Vec<Change<T>> = iterator.next(&snapshot).take(batch.max(1)).collect();
                if !changes.is_empty() {
                    return Some((changes, (iterator, db, false)));
                }
            }
        })
    }
}

impl<T> Drop for ChangeIterator<T> {
    fn drop(&mut self) {
        self.table.0.meta.trackers.remove(&self.tracker);
    }
}

type Upserts<'a, T> = Box<dyn Iterator<Item = (Slot, &'a Obj<T>)> + 'a>;
type Deletes<'a, T> = Box<dyn Iterator<Item = (Revision, &'a Obj<T>)> + 'a>;

/// The changes up to one snapshot; made by [`ChangeIterator::next`].
///
/// See [`ChangeIterator`] for an example.
pub struct Changes<'a, T> {
    relist: bool,
    until: Revision,
    zombies: bool,
    snapshot: &'a Snapshot,
    upserts: Peekable<Upserts<'a, T>>,
    deletes: Peekable<Deletes<'a, T>>,
    seen: &'a mut Revision,
    tracker: &'a Arc<Tracker>,
    table: &'a Table<T>,
}

impl<T> fmt::Debug for Changes<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("seen", &self.seen)
            .field("until", &self.until)
            .finish()
    }
}

impl<T> Changes<'_, T> {
    fn advance(&mut self, revision: Revision) {
        *self.seen = revision;
    }

    /// Returns the next change, with the number of the object unless it is gone.
    pub(crate) fn next_numbered(&mut self) -> Option<(Change<T>, Option<Slot>)> {
        if std::mem::take(&mut self.relist) {
            return Some((Change::Relist, None));
        }
        let upsert = self.upserts.peek().map(|(_, object)| object.revision());
        let delete = self.deletes.peek().map(|(revision, _)| *revision);
        let change = match (upsert, delete) {
            (Some(upsert), Some(delete)) if delete < upsert => None,
            (Some(_), _) => {
                let next = self.upserts.next();
                next.map(|(slot, object)| (Change::Upsert(object.clone()), Some(slot)))
            }
            (None, _) => None,
        };
        let change = change.or_else(|| {
            let (revision, object) = self.deletes.next()?;
            let object = object.clone();
            Some((Change::Delete { object, revision }, None))
        });
        match &change {
            Some((change, _)) => self.advance(change.revision()),
            None => self.advance(self.until),
        }
        change
    }
}

impl<T> Iterator for Changes<'_, T> {
    type Item = Change<T>;

    fn next(&mut self) -> Option<Change<T>> {
        self.next_numbered().map(|(change, _)| change)
    }
}

impl<T> Drop for Changes<'_, T> {
    fn drop(&mut self) {
        let caught_up = *self.seen == self.until;
        self.tracker.seen.store(*self.seen, Ordering::Release);
        self.tracker.lagging.store(false, Ordering::Release);
        if caught_up && self.zombies {
            collect(&self.snapshot.db, &self.table.0.meta);
        }
    }
}
