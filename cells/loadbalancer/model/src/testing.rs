// SPDX-License-Identifier: Apache-2.0

//! Helpers for this crate's tests.

use statedb::{Db, Index, RwTable, WriteTarget};

use crate::types::{Backend, BackendRow, Service, ServiceRow};

fn insert<T: Send + Sync + 'static>(object: T) -> statedb::Obj<T> {
    let db = Db::new();
    let table: RwTable<T> = RwTable::builder("rows")
        .primary(Index::<T, str>::new("key", |_, keys| keys.add("row")))
        .build_plain(&db)
        .unwrap();
    let mut txn = db.write(&[&table as &dyn WriteTarget]);
    table.insert_get(&mut txn, object).unwrap()
}

/// A backend as a table would hold it.
pub(crate) fn row(backend: Backend) -> BackendRow {
    insert(backend)
}

/// A service as a table would hold it.
pub(crate) fn service(service: Service) -> ServiceRow {
    insert(service)
}
