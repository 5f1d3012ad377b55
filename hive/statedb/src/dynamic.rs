// SPDX-License-Identifier: Apache-2.0

//! Access to tables by name, without their types: for commands and debugging.

use std::{any::Any, fmt};

use serde_json::Value;

use crate::{
    Db, Obj, Revision, Snapshot, Table, Watch, WriteTxn,
    changes::{Change, ChangeIterator},
    db::LastWrite,
    key::{KeyBytes, TextKeyError},
    row::BoxError,
    state::Work,
    txn::{Target, WriteTarget},
    watch::Place,
};

/// Why a table could not be queried or written by name.
///
/// See [`AnyTable`] for an example.
#[derive(Debug, thiserror::Error)]
pub enum DynError {
    /// The table has no index of that name.
    #[error("invalid index \"{0}\"")]
    NoIndex(String),
    /// The key's text does not parse or the index has no text form.
    #[error(transparent)]
    Key(#[from] TextKeyError),
    /// The object's text does not parse.
    #[error("{0}")]
    Parse(BoxError),
    /// The change is an error of the table.
    #[error(transparent)]
    Table(#[from] crate::Error),
    /// The row belongs to another table.
    #[error("the row is not of table `{0}`")]
    OtherTable(String),
}

/// How a key is compared in [`AnyTable::query`].
///
/// See [`AnyTable`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Keys equal to it.
    Exact,
    /// Keys that start with it.
    Prefix,
    /// Keys at or after it.
    LowerBound,
}

/// One object of a table accessed by name.
///
/// See [`AnyTable`] for an example.
pub trait AnyRow: Send + Sync {
    /// One text per column.
    fn cells(&self) -> Vec<String>;
    /// JSON form.
    ///
    /// # Errors
    /// If the type has none.
    fn json(&self) -> Result<Value, BoxError>;
    /// Appends the text of the JSON form.
    ///
    /// # Errors
    /// If the type has none.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), BoxError>;
    /// YAML form.
    ///
    /// # Errors
    /// If the type has none.
    fn yaml(&self) -> Result<Value, BoxError>;
    /// Returns whether a text of `field` that looks like a time is one in the YAML form.
    fn is_yaml_time(&self, field: &str) -> bool;
    /// Revision of the last change.
    fn revision(&self) -> Revision;
    /// Returns the object itself, an `Obj<T>`.
    fn object(&self) -> &dyn Any;
}

impl fmt::Debug for dyn AnyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.cells()).finish()
    }
}

/// A boxed [`AnyRow`].
pub type BoxRow = Box<dyn AnyRow>;

/// One change of a table accessed by name.
///
/// See [`AnyTable`] for an example.
#[derive(Debug)]
pub enum AnyChange {
    /// Inserted or replaced.
    Upsert(BoxRow),
    /// Deleted; the last state.
    Delete(BoxRow),
    /// The reader must drop all objects; all of them follow.
    Relist,
}

/// Changes of a table accessed by name.
///
/// See [`AnyTable`] for an example.
pub trait AnyChanges: Send {
    /// Everything that changed up to `snapshot`, and a watch for more.
    fn next(&mut self, snapshot: &Snapshot) -> (Vec<AnyChange>, Watch);
}

/// A table accessed by name; from [`Db::table`] and [`Db::tables`]. Usable with [`Db::write`].
///
/// ```
/// use statedb::{Db, Index, Match, Row, RwTable, row};
///
/// struct Port(u16);
/// impl Row for Port {
///     fn header() -> &'static [&'static str] { &["Port"] }
///     fn cells(&self) -> Vec<String> { vec![self.0.to_string()] }
///     fn from_yaml(text: &str) -> Result<Self, row::BoxError> { row::from_yaml(text).map(Self) }
/// }
/// const BY_NUMBER: Index<Port, u16> = Index::new("number", |port, keys| keys.add(&port.0));
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = Db::new();
/// RwTable::builder("ports").primary(BY_NUMBER).build(&db)?;
/// let ports = db.table("ports").unwrap();
/// let mut txn = db.write(&[&*ports]);
/// for port in ["80", "443"] {
///     ports.insert_yaml(&mut txn, port)?;
/// }
/// let snapshot = txn.commit();
///
/// assert_eq!((ports.header(), ports.indexes(), ports.objects(&snapshot)), (&["Port"][..], vec!["number"], 2));
/// assert_eq!(ports.query(&snapshot, Some("number"), "443", Match::Exact)?[0].cells(), ["443"]);
/// assert_eq!(ports.query(&snapshot, None, "81", Match::LowerBound)?.len(), 1);
/// assert!(ports.query(&snapshot, Some("name"), "81", Match::Exact).is_err());
///
/// let (changes, _more) = ports.follow(&db).next(&snapshot);
/// assert_eq!(changes.len(), 2);
/// # Ok(())
/// # }
/// ```
pub trait AnyTable: WriteTarget + Send + Sync {
    /// Name of the table.
    fn name(&self) -> &str;
    /// Type of the objects, as `db` shows it.
    fn type_name(&self) -> &str;
    /// Column names; empty if objects cannot be shown.
    fn header(&self) -> &'static [&'static str];
    /// Index names, the primary one first.
    fn indexes(&self) -> Vec<&'static str>;
    /// Number of objects.
    fn objects(&self, txn: &Snapshot) -> usize;
    /// Deleted objects kept for change iterators.
    fn zombies(&self, txn: &Snapshot) -> usize;
    /// Revision of the last change.
    fn revision(&self, txn: &Snapshot) -> Revision;
    /// Open change iterators.
    fn delete_trackers(&self) -> usize;
    /// Names of initialisers not done yet.
    fn pending_initializers(&self, txn: &Snapshot) -> Vec<String>;
    /// Returns the latest write transaction.
    fn last_write(&self) -> LastWrite;
    /// Returns all objects in primary order.
    fn rows(&self, txn: &Snapshot) -> Vec<BoxRow>;
    /// Objects by the text of a key; `index` `None` is the primary one.
    ///
    /// # Errors
    /// [`DynError::NoIndex`], [`DynError::Key`].
    fn query(
        &self,
        txn: &Snapshot,
        index: Option<&str>,
        key: &str,
        how: Match,
    ) -> Result<Vec<BoxRow>, DynError>;
    /// Parses an object from YAML without inserting it.
    ///
    /// # Errors
    /// [`DynError::Parse`].
    fn parse(&self, yaml: &str) -> Result<BoxRow, DynError>;
    /// Inserts an object made from YAML.
    ///
    /// # Errors
    /// [`DynError::Parse`], [`DynError::Table`].
    fn insert_yaml(&self, txn: &mut WriteTxn, yaml: &str) -> Result<(), DynError>;
    /// Deletes the object with the primary key of the one made from YAML; returns whether there was one.
    ///
    /// # Errors
    /// [`DynError::Parse`], [`DynError::Table`].
    fn delete_yaml(&self, txn: &mut WriteTxn, yaml: &str) -> Result<bool, DynError>;
    /// Deletes the object shown by `row`; returns whether there was one.
    ///
    /// # Errors
    /// [`DynError::OtherTable`], [`DynError::Table`].
    fn delete_row(&self, txn: &mut WriteTxn, row: &dyn AnyRow) -> Result<bool, DynError>;
    /// Returns a watch that closes when anything in the table changes.
    fn watch(&self, txn: &Snapshot) -> Watch;
    /// Returns a watch that closes when the pending initialisers change.
    fn initializers_watch(&self, txn: &Snapshot) -> Watch;
    /// Starts a stream of changes.
    fn follow(&self, db: &Db) -> Box<dyn AnyChanges>;
}

impl dyn AnyTable {
    /// Returns the JSON form of a row of this table; a row that has none is a map of its cells.
    pub fn json_of(&self, row: &dyn AnyRow) -> Value {
        row.json().unwrap_or_else(|_| {
            let names = self.header().iter().map(|&name| name.to_owned());
            names
                .zip(row.cells().into_iter().map(Value::from))
                .collect::<serde_json::Map<_, _>>()
                .into()
        })
    }

    /// Appends the text of `json_of` a row, without a tree of values if the type can do without.
    pub fn write_json_of(&self, row: &dyn AnyRow, out: &mut Vec<u8>) {
        let start = out.len();
        if row.write_json(out).is_err() {
            out.truncate(start);
            out.extend_from_slice(self.json_of(row).to_string().as_bytes());
        }
    }
}

impl fmt::Debug for dyn AnyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyTable").field(&self.name()).finish()
    }
}

/// A typed table behind [`AnyTable`].
pub(crate) struct DynTable<T>(pub(crate) Table<T>);

struct RowOf<T> {
    table: Table<T>,
    object: Obj<T>,
}

impl<T: Send + Sync + 'static> AnyRow for RowOf<T> {
    fn cells(&self) -> Vec<String> {
        (self.table.0.row.cells)(&self.object)
    }
    fn json(&self) -> Result<Value, BoxError> {
        (self.table.0.row.json)(&self.object)
    }
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), BoxError> {
        (self.table.0.row.write_json)(&self.object, out)
    }
    fn yaml(&self) -> Result<Value, BoxError> {
        (self.table.0.row.yaml)(&self.object)
    }
    fn is_yaml_time(&self, field: &str) -> bool {
        (self.table.0.row.is_yaml_time)(field)
    }
    fn revision(&self) -> Revision {
        self.object.revision()
    }
    fn object(&self) -> &dyn Any {
        &self.object
    }
}

impl<T: Send + Sync + 'static> DynTable<T> {
    fn row(&self, object: &Obj<T>) -> BoxRow {
        Box::new(RowOf {
            table: self.0.clone(),
            object: object.clone(),
        })
    }

    /// Returns the position of an index among those of the table.
    fn position(&self, index: Option<&str>) -> Result<usize, DynError> {
        let Some(name) = index else { return Ok(0) };
        let mut names = self.0.0.defs.iter().map(|def| def.name);
        let found = names.position(|found| found == name);
        found.ok_or_else(|| DynError::NoIndex(name.to_owned()))
    }

    fn parsed(&self, yaml: &str) -> Result<T, DynError> {
        (self.0.0.row.from_yaml)(yaml).map_err(DynError::Parse)
    }

    fn delete_object(&self, txn: &mut WriteTxn, object: &T) -> Result<bool, DynError> {
        let inner = &self.0.0;
        let key = self.0.primary_bytes(object)?;
        let tracked = inner.meta.trackers.count() > 0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        Ok(work.delete(&inner.defs, &key, tracked).is_some())
    }
}

impl<T> WriteTarget for DynTable<T> {
    fn target(&self) -> Target<'_> {
        Target(&self.0.0.meta)
    }
}

impl<T: Send + Sync + 'static> AnyTable for DynTable<T> {
    fn name(&self) -> &str {
        &self.0.0.meta.name
    }
    fn type_name(&self) -> &str {
        &self.0.0.row.type_name
    }
    fn header(&self) -> &'static [&'static str] {
        self.0.0.row.header
    }
    fn indexes(&self) -> Vec<&'static str> {
        self.0.0.defs.iter().map(|def| def.name).collect()
    }
    fn objects(&self, txn: &Snapshot) -> usize {
        self.0.len(txn)
    }
    fn zombies(&self, txn: &Snapshot) -> usize {
        self.0.state(txn).dead.len()
    }
    fn revision(&self, txn: &Snapshot) -> Revision {
        self.0.revision(txn)
    }
    fn delete_trackers(&self) -> usize {
        self.0.0.meta.trackers.count()
    }
    fn pending_initializers(&self, txn: &Snapshot) -> Vec<String> {
        self.0.pending_initializers(txn)
    }
    fn last_write(&self) -> LastWrite {
        self.0.0.meta.last_write()
    }
    fn rows(&self, txn: &Snapshot) -> Vec<BoxRow> {
        self.0.all(txn).map(|object| self.row(object)).collect()
    }
    fn query(
        &self,
        txn: &Snapshot,
        index: Option<&str>,
        key: &str,
        how: Match,
    ) -> Result<Vec<BoxRow>, DynError> {
        let position = self.position(index)?;
        let def = &self.0.0.defs[position];
        let state = self.0.state(txn);
        let tree = state.tree(position);
        let key = match how {
            Match::Exact => (def.from_text)(key)?,
            Match::Prefix | Match::LowerBound => (def.prefix_from_text)(key)?,
        };
        let key = KeyBytes::from_slice(key.as_bytes());
        let rows = |entries| state.found(entries).map(|object| self.row(object)).collect();
        Ok(match how {
            Match::Exact if def.unique => {
                let found = state.find(position, &key);
                found.map(|object| self.row(object)).into_iter().collect()
            }
            Match::Exact => rows(tree.starting(def.stored_exact(key))),
            Match::Prefix => rows(tree.starting(def.stored_prefix(key))),
            Match::LowerBound => {
                let from = def.stored_prefix(key);
                rows(tree.at_least(&from))
            }
        })
    }
    fn parse(&self, yaml: &str) -> Result<BoxRow, DynError> {
        Ok(self.row(&Obj::new(self.parsed(yaml)?, 0)))
    }
    fn insert_yaml(&self, txn: &mut WriteTxn, yaml: &str) -> Result<(), DynError> {
        let object = self.parsed(yaml)?;
        let inner = &self.0.0;
        let mut work: Work<'_, T> = txn.work(&inner.meta)?;
        work.insert(
            &inner.meta.name,
            &inner.defs,
            object,
            &crate::state::Condition::Always,
        )?;
        Ok(())
    }
    fn delete_yaml(&self, txn: &mut WriteTxn, yaml: &str) -> Result<bool, DynError> {
        let object = self.parsed(yaml)?;
        self.delete_object(txn, &object)
    }
    fn delete_row(&self, txn: &mut WriteTxn, row: &dyn AnyRow) -> Result<bool, DynError> {
        match row.object().downcast_ref::<Obj<T>>() {
            Some(object) => self.delete_object(txn, object),
            None => Err(DynError::OtherTable(self.name().to_owned())),
        }
    }
    fn watch(&self, txn: &Snapshot) -> Watch {
        self.0.table_watch(txn)
    }
    fn initializers_watch(&self, txn: &Snapshot) -> Watch {
        self.0.watch(txn, Place::Initializers)
    }
    fn follow(&self, db: &Db) -> Box<dyn AnyChanges> {
        Box::new(ChangesOf {
            table: DynTable(self.0.clone()),
            iterator: self.0.follow(db),
        })
    }
}

struct ChangesOf<T> {
    table: DynTable<T>,
    iterator: ChangeIterator<T>,
}

impl<T: Send + Sync + 'static> AnyChanges for ChangesOf<T> {
    fn next(&mut self, snapshot: &Snapshot) -> (Vec<AnyChange>, Watch) {
        let (changes, watch) = self.iterator.next_watch(snapshot);
        let changes = changes.map(|change| match change {
            Change::Upsert(object) => AnyChange::Upsert(self.table.row(&object)),
            Change::Delete { object, .. } => AnyChange::Delete(self.table.row(&object)),
            Change::Relist => AnyChange::Relist,
        });
        (changes.collect(), watch)
    }
}
