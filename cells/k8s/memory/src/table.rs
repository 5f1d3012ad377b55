// SPDX-License-Identifier: Apache-2.0

//! The table `k8s-object-tracker`: one row an object, deleted ones included if the tracker keeps them.

use std::sync::Arc;

use compact_str::CompactString;
use serde_json::{Value, json};
use statedb::{Change, ChangeIterator, Db, Index, RwTable, Snapshot, Table, WriteTxn, row};

/// Name of the table.
pub const TABLE: &str = "k8s-object-tracker";

/// Name that transactions of this table carry.
const WRITER: &str = "k8s-fake-client";

/// A row: one object, or what is left of it.
#[derive(Clone, Debug)]
pub struct TrackedObject {
    /// `<domain>;<group>/<version>, Resource=<plural>;<namespace>/<name>`.
    pub id: CompactString,
    /// The object was deleted; the row is for watchers.
    pub deleted: bool,
    /// Go type of the object, such as `*v1.Service`.
    pub type_name: CompactString,
    /// The object, as JSON.
    pub object: Arc<Value>,
}

impl TrackedObject {
    /// Index by id.
    pub const BY_ID: Index<TrackedObject, str> = Index::new("id", |row, keys| keys.add(&row.id));
}

impl statedb::Row for TrackedObject {
    fn header() -> &'static [&'static str] {
        &["ID", "Deleted", "Type"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.deleted.to_string(),
            self.type_name.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, row::BoxError> {
        Ok(json!({
            "ID": self.id.as_str(),
            "Deleted": self.deleted,
            "Type": self.type_name.as_str(),
            "Object": *self.object,
        }))
    }

    fn to_yaml(&self) -> Result<Value, row::BoxError> {
        Ok(json!({
            "id": self.id.as_str(),
            "deleted": self.deleted,
            "type": self.type_name.as_str(),
            "object": *self.object,
        }))
    }
}

/// The rows, and the database they are in. Cheap to clone; clones share.
#[derive(Clone, Debug)]
pub struct Rows {
    db: Db,
    table: RwTable<TrackedObject>,
}

/// The rows at one moment.
pub(crate) struct RowsSnapshot {
    table: RwTable<TrackedObject>,
    snapshot: Snapshot,
}

pub(crate) struct RowsTransaction {
    table: RwTable<TrackedObject>,
    txn: WriteTxn,
}

impl RowsSnapshot {
    pub(crate) fn revision(&self) -> u64 {
        self.table.revision(&self.snapshot)
    }

    /// Live objects whose ids begin with `prefix`, from the id `from` on, with their ids and ordered by them.
    pub(crate) fn objects<'a>(
        &'a self,
        prefix: &'a str,
        from: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Arc<Value>)> + use<'a> {
        let query = TrackedObject::BY_ID.bytes(from.as_bytes());
        self.table
            .lower_bound(&self.snapshot, query)
            .take_while(move |row| row.id.starts_with(prefix))
            .filter(|row| !row.deleted)
            .map(|row| (row.id.as_str(), &row.object))
    }
}

impl Rows {
    /// Makes the table in `db`.
    ///
    /// # Errors
    /// If `db` has it already.
    pub fn new(db: &Db) -> Result<Self, statedb::Error> {
        let table = RwTable::builder(TABLE).primary(TrackedObject::BY_ID).build(db)?;
        Ok(Rows {
            db: db.handle(WRITER),
            table,
        })
    }

    /// A handle for readers of the table.
    pub fn table(&self) -> Table<TrackedObject> {
        self.table.reader()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.table.revision(&self.db.read())
    }

    pub(crate) fn get(&self, id: &str) -> Option<TrackedObject> {
        let snapshot = self.db.read();
        self.table
            .get(&snapshot, TrackedObject::BY_ID.key(id))
            .map(|row| (**row).clone())
    }

    pub(crate) fn snapshot(&self) -> RowsSnapshot {
        RowsSnapshot {
            table: self.table.clone(),
            snapshot: self.db.read(),
        }
    }

    pub(crate) fn follow(&self) -> Following {
        Following {
            changes: self.table.reader().follow(&self.db),
            db: self.db.clone(),
        }
    }

    pub(crate) fn write(&self) -> RowsTransaction {
        RowsTransaction {
            table: self.table.clone(),
            txn: self.db.write(&[&self.table]),
        }
    }
}

/// An object that changed: its last state.
pub struct Changed {
    /// Its last state.
    pub object: Arc<Value>,
    /// It was deleted.
    pub gone: bool,
}

/// A place in the history of the table.
pub struct Following {
    changes: ChangeIterator<TrackedObject>,
    db: Db,
}

impl Following {
    /// Waits for changes; of each object the last one only.
    pub async fn next(&mut self) -> Vec<Changed> {
        let snapshot = self.changes.wait(&self.db).await;
        let changes = self.changes.next(&snapshot).filter_map(|change| match change {
            Change::Upsert(row) => Some(Changed {
                object: row.object.clone(),
                gone: row.deleted,
            }),
            Change::Delete { object, .. } => Some(Changed {
                object: object.object.clone(),
                gone: true,
            }),
            Change::Relist => None,
        });
        changes.collect()
    }
}

impl RowsTransaction {
    pub(crate) fn revision(&self) -> u64 {
        self.table.revision(&self.txn)
    }

    pub(crate) fn get(&self, id: &str) -> Option<TrackedObject> {
        self.table
            .get(&self.txn, TrackedObject::BY_ID.key(id))
            .map(|row| (**row).clone())
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<Arc<Value>> {
        let query = TrackedObject::BY_ID.bytes(prefix.as_bytes());
        self.table
            .prefix(&self.txn, query)
            .filter(|row| !row.deleted)
            .map(|row| row.object.clone())
            .collect()
    }

    pub(crate) fn put(&mut self, row: TrackedObject) {
        self.table
            .insert(&mut self.txn, row)
            .expect("the table is locked and has one index");
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.table
            .delete_by(&mut self.txn, TrackedObject::BY_ID.key(id))
            .expect("the table is locked");
    }

    pub(crate) fn commit(self) -> u64 {
        self.table.revision(&self.txn.commit())
    }
}
