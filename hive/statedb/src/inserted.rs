// SPDX-License-Identifier: Apache-2.0

//! Inserting an object with a watch of it.

use std::fmt;

use crate::{Error, Obj, RwTable, Snapshot, Table, Watch, WriteTxn, key::KeyBuf, watch::Place};

/// An object that [`RwTable::insert_watch`] has inserted.
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// let inserted = pods.insert_watch(&mut txn, pod("web-0", "a"))?;
/// let watch = inserted.watch(&txn.commit());
/// assert!(!watch.is_closed());
///
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "b"))?;
/// txn.commit();
/// assert!(watch.is_closed());
/// # Ok(())
/// # }
/// ```
pub struct Inserted<T> {
    /// The object as stored.
    pub object: Obj<T>,
    /// The one that it replaced.
    pub old: Option<Obj<T>>,
    table: Table<T>,
    key: KeyBuf,
}

impl<T: Send + Sync + 'static> fmt::Debug for Inserted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inserted")
            .field("table", &self.table.name())
            .field("replaced", &self.old.is_some())
            .finish()
    }
}

impl<T: Send + Sync + 'static> Inserted<T> {
    /// Returns a watch that closes when the object is replaced or deleted. `txn` is what the commit of the transaction
    /// returned; if the object is not in there, because it was aborted or changed again, the watch is closed already.
    pub fn watch(&self, txn: &Snapshot) -> Watch {
        match self.table.get_by_primary(txn, &self.key) {
            Some(found) if found.same(&self.object) => {
                self.table.watch(txn, Place::Exact(0, self.key.clone()))
            }
            _ => Watch::already_closed(),
        }
    }
}

impl<T: Send + Sync + 'static> RwTable<T> {
    /// Like [`RwTable::insert`], to see when the object changes again: [`Inserted::watch`].
    ///
    /// # Errors
    /// As [`RwTable::insert`].
    pub fn insert_watch(&self, txn: &mut WriteTxn, object: T) -> Result<Inserted<T>, Error> {
        let key = self.primary_key(&object)?;
        let old = self.get_by_primary(txn, &key).cloned();
        let object = self.insert_get(txn, object)?;
        Ok(Inserted {
            object,
            old,
            table: self.reader(),
            key,
        })
    }
}
