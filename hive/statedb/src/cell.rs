// SPDX-License-Identifier: Apache-2.0

//! Cell: the database of a hive (feature `hive`).
//! Gives: [`Db`]. Tables are values of the graph, too: the owner provides a [`Table`] and keeps the [`RwTable`].

use hive::{Cell, Value};

use crate::{Db, RwTable, Table};

impl Value for Db {}
impl<T: Send + Sync + 'static> Value for Table<T> {}
impl<T: Send + Sync + 'static> Value for RwTable<T> {}

/// The database of a hive.
///
/// ```
/// use hive::Cell;
/// use statedb::{Db, Index, RwTable, Table};
///
/// struct Pod { name: String }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
///
/// fn pods(db: Db) -> Result<RwTable<Pod>, statedb::Error> {
///     RwTable::builder("pods").primary(BY_NAME).build_plain(&db)
/// }
/// fn read_only(pods: RwTable<Pod>) -> Table<Pod> { pods.reader() }
///
/// # let _ =
/// Cell::group([
///     statedb::cell(),
///     Cell::module("pods", "Pods").provide_private(pods).provide(read_only),
/// ]);
/// ```
pub fn cell() -> Cell {
    Cell::module("statedb", "In-memory tables").provide(Db::new)
}
