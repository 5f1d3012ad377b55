// SPDX-License-Identifier: Apache-2.0

//! In-memory tables with snapshots, indexes, change streams and a reconciler.
//!
//! Cells of a program share tables instead of calling each other: writers upsert the desired state, readers watch it,
//! reconcilers carry it out.
//!
//! * [`Db`] is the database. [`Db::read`] returns a consistent [`Snapshot`] without a lock, [`Db::write`] a
//!   [`WriteTxn`] over the tables it names.
//! * [`RwTable`] and [`Table`](struct@Table) are the handles of one table; an [`Index`] finds objects by a [`Key`].
//! * Reads return a [`Watch`] that closes when the answer changes; a [`ChangeIterator`] is the stream of a table's
//!   changes, deletions included.
//! * An initialiser ([`RwTable::register_initializer`]) is pending until a source has delivered its first content.
//! * A [`Reconciler`](reconciler::Reconciler) reconciles a target outside with a table.
//! * [`AnyTable`] is access by name and text, for commands. With feature `http` a table can be read from another process.
//!
//! Objects are immutable once inserted. To keep cloning of large objects cheap, use persistent collections or `Arc`
//! inside them.
//!
//! # Features
//!
//! `hive`: `statedb::cell()`, and databases, tables and reconcilers as values of a hive. `script`: the `db/*` commands.
//! `http`: tables for other processes. `testing`: tables, commands and clocks for tests. None is on by default.

#![warn(missing_docs)]

#[cfg(feature = "hive")]
mod cell;
mod changes;
pub mod clock;
#[cfg(feature = "script")]
pub mod command;
mod db;
mod dynamic;
mod error;
#[cfg(feature = "http")]
pub mod http;
mod index;
mod initializer;
mod inserted;
mod key;
mod metrics;
mod object;
pub mod readiness;
pub mod reconciler;
mod revisions;
pub mod row;
mod slots;
mod state;
mod step;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod txn;
mod watch;

#[cfg(feature = "hive")]
pub use cell::{cell, read_only};
pub use changes::{Change, ChangeIterator, Changes};
pub use db::{Db, LastWrite, ReadTxn, Snapshot};
pub use dynamic::{AnyChange, AnyChanges, AnyRow, AnyTable, BoxRow, DynError, Match};
pub use error::Error;
pub use index::{Index, Keys, Query};
pub use initializer::{InitGuard, LATE};
pub use inserted::Inserted;
pub use key::{Key, KeyBuf, KeyWriter, TextKeyError};
pub use metrics::{Metrics, NoMetrics};
pub use object::{Obj, Revision};
pub use row::Row;
pub use table::{PrimaryBuilder, RwTable, Table, TableBuilder};
pub use txn::{Target, WriteTarget, WriteTxn};
pub use watch::{Watch, WatchId, WatchSet};

#[cfg(feature = "hive")]
hive::catalogue!(cell);
