// SPDX-License-Identifier: Apache-2.0

//! How a table is defined.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
};

use parking_lot::Mutex;

use super::{RwTable, Table, TableInner};
use crate::{
    Db, Error, Key, Row,
    db::{OPEN, TableMeta, Trackers},
    dynamic::DynTable,
    index::{Index, IndexDef},
    row::RowFns,
    state::TableState,
    watch::Watches,
};

/// Deletions kept for a stuck change iterator before it has to list again, unless set otherwise.
const GRAVEYARD_LIMIT: usize = 1_000_000;

/// Builds a table; made by [`RwTable::builder`].
///
/// ```
/// # use statedb::{Db, Error, Index, RwTable};
/// # fn main() -> Result<(), Error> {
/// struct Route { prefix: ipnet::IpNet, device: String }
/// const BY_PREFIX: Index<Route, ipnet::IpNet> = Index::new("prefix", |route, keys| keys.add(&route.prefix));
/// const BY_DEVICE: Index<Route, str> = Index::new("device", |route, keys| keys.add(&route.device));
///
/// let db = Db::new();
/// let build = || RwTable::builder("routes").primary(BY_PREFIX).index(BY_DEVICE).graveyard_limit(1000).build_plain(&db);
/// let routes = build()?;
/// assert!(matches!(build(), Err(Error::TableExists { .. })));
///
/// let mut txn = db.write(&[&routes]);
/// for prefix in ["10.0.0.0/8", "10.1.0.0/16"] {
///     routes.insert(&mut txn, Route { prefix: prefix.parse().unwrap(), device: "eth0".into() })?;
/// }
/// let snapshot = txn.commit();
/// assert_eq!(routes.list(&snapshot, BY_DEVICE.key("eth0")).count(), 2);
/// # Ok(())
/// # }
/// ```
pub struct TableBuilder<T> {
    name: String,
    primary: Option<IndexDef<T>>,
    secondary: Vec<IndexDef<T>>,
    graveyard_limit: usize,
}

impl<T> fmt::Debug for TableBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A builder that has a primary index.
///
/// See [`TableBuilder`] for an example.
pub struct PrimaryBuilder<T>(TableBuilder<T>);

impl<T> fmt::Debug for PrimaryBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Send + Sync + 'static> TableBuilder<T> {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            primary: None,
            secondary: Vec::new(),
            graveyard_limit: GRAVEYARD_LIMIT,
        }
    }

    /// Sets the index whose key identifies an object and whose order is the order of the table. It returns exactly
    /// one key per object.
    pub fn primary<K: Key + ?Sized + 'static>(mut self, index: Index<T, K>) -> PrimaryBuilder<T> {
        self.primary = Some(index.into_unique().definition());
        PrimaryBuilder(self)
    }
}

impl<T: Send + Sync + 'static> PrimaryBuilder<T> {
    /// Adds a secondary index.
    pub fn index<K: Key + ?Sized + 'static>(mut self, index: Index<T, K>) -> Self {
        self.0.secondary.push(index.definition());
        self
    }

    /// Sets how many deletions are kept for a change iterator that does not advance, before it must list the
    /// table again. Default: one million.
    pub fn graveyard_limit(mut self, objects: usize) -> Self {
        self.0.graveyard_limit = objects;
        self
    }

    /// Creates the table and registers it with the database.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TableName`], [`Error::IndexExists`], [`Error::IndexName`].
    pub fn build(self, db: &Db) -> Result<RwTable<T>, Error>
    where
        T: Row,
    {
        self.build_with(db, RowFns::of_row())
    }

    /// Creates a table whose objects cannot be shown: `db` commands only count them.
    ///
    /// # Errors
    /// As [`PrimaryBuilder::build`].
    pub fn build_plain(self, db: &Db) -> Result<RwTable<T>, Error> {
        self.build_with(db, RowFns::opaque())
    }

    fn build_with(self, db: &Db, row: RowFns<T>) -> Result<RwTable<T>, Error> {
        let TableBuilder {
            name,
            primary,
            secondary,
            graveyard_limit,
        } = self.0;
        if !valid_name(&name) {
            return Err(Error::TableName { table: name });
        }
        let defs: Vec<IndexDef<T>> = primary.into_iter().chain(secondary).collect();
        for (at, def) in defs.iter().enumerate() {
            if def.name.is_empty() || def.name.starts_with("__") {
                return Err(Error::IndexName {
                    table: name,
                    index: def.name,
                });
            }
            if defs[..at].iter().any(|other| other.name == def.name) {
                return Err(Error::IndexExists {
                    table: name,
                    index: def.name,
                });
            }
        }
        let mut made = None;
        db.register(&name, |id, number| {
            let meta = TableMeta {
                id,
                db: number,
                name: name.as_str().into(),
                lock: Arc::new(Mutex::new(())),
                writer: Mutex::default(),
                writer_at: AtomicUsize::new(0),
                opened: AtomicU64::new(0),
                created: db.inner.created,
                held: AtomicU64::new(OPEN),
                watches: Arc::new(Watches::default()),
                trackers: Trackers::default(),
                graveyard_limit,
                registrations: AtomicU64::new(0),
            };
            let nothing = TableState::empty(defs.len() - 1);
            let state = Arc::new(nothing.clone());
            let table = Table(Arc::new(TableInner {
                meta: Arc::new(meta),
                defs,
                row,
                nothing,
                reconcilers: Mutex::default(),
            }));
            made = Some(RwTable(table.clone()));
            (Arc::new(DynTable(table)), state)
        })?;
        Ok(made.expect("register calls the function unless it fails"))
    }
}

fn valid_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && name.len() <= 31
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'))
}
