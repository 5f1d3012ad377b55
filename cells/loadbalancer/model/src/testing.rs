// SPDX-License-Identifier: Apache-2.0

//! Rows as tables hold them, for tests.

use statedb::{Db, Index, RwTable, WriteTarget};

use crate::types::{Backend, BackendRow, Service, ServiceRow};

fn insert<T: Send + Sync + 'static>(object: T) -> statedb::Obj<T> {
    let db = Db::new();
    let table: RwTable<T> = RwTable::builder("rows")
        .primary(Index::<T, str>::new("key", |_, keys| keys.add("row")))
        .build_plain(&db)
        .expect("a table of this name in a database of its own");
    let mut txn = db.write(&[&table as &dyn WriteTarget]);
    table
        .insert_get(&mut txn, object)
        .expect("the transaction is of this table")
}

/// A backend as a table would hold it.
pub fn row(backend: Backend) -> BackendRow {
    insert(backend)
}

/// A service as a table would hold it.
pub fn service(service: Service) -> ServiceRow {
    insert(service)
}
