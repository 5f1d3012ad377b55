// SPDX-License-Identifier: Apache-2.0

//! What an exporter follows.

use std::collections::BTreeSet;

use skep_clustermesh_types::ValueError;
use skep_k8s_types::slim::Str;
use statedb::{Change, ChangeIterator, Db, Obj, Snapshot, Table, WatchSet};

/// Tables of which values are made. What is published of a name depends on their rows and on nothing else.
pub(crate) trait Source: Send + 'static {
    /// Adds the names that changes up to the snapshot concern.
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty);

    /// Adds what closes when there are changes after the snapshot, or the tables have become complete.
    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet);

    /// Whether the tables hold all objects of the first lists.
    fn is_complete(&self, snapshot: &Snapshot) -> bool;

    /// All names for which there are objects, also those that are not published.
    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str>;

    /// The value of a name; `None` if it is not published.
    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError>;

    /// Invalid parts of objects, of which other parts are published.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) names: BTreeSet<Str>,
    /// All of them, also those that were published and have no object any more.
    pub(crate) all: bool,
}

/// A table, and how far its changes are handled.
pub(crate) struct Followed<R> {
    pub(crate) table: Table<R>,
    changes: ChangeIterator<R>,
}

impl<R: Send + Sync + 'static> Followed<R> {
    pub(crate) fn new(table: &Table<R>, db: &Db) -> Self {
        Self {
            table: table.clone(),
            changes: table.follow(db),
        }
    }

    /// Calls `each` for the last state of each row that has changed, and whether it is deleted.
    pub(crate) fn changed(
        &mut self,
        snapshot: &Snapshot,
        dirty: &mut Dirty,
        mut each: impl FnMut(&mut Dirty, &Obj<R>, bool),
    ) {
        for change in self.changes.next(snapshot) {
            match change {
                Change::Upsert(row) => each(dirty, &row, false),
                Change::Delete { object, .. } => each(dirty, &object, true),
                Change::Relist => dirty.all = true,
            }
        }
    }

    pub(crate) fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        watches.add(self.table.table_watch(snapshot));
        let (is_initialized, watch) = self.table.initialized_watch(snapshot);
        if !is_initialized {
            watches.add(watch);
        }
    }

    pub(crate) fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.table.is_initialized(snapshot)
    }
}
