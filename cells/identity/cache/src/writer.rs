// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to `identities`.

use skep_identity::{Labels, NumericIdentity};
use statedb::{Db, InitGuard, RwTable, WriteTxn};

use crate::table::{IdentitySource, SecurityIdentity};

/// Writes identities. A source changes and deletes only its own ones, and never a reserved one.
#[derive(Clone, Debug, hive::Value)]
pub struct Writer {
    db: Db,
    table: RwTable<SecurityIdentity>,
}

impl Writer {
    pub(crate) fn new(db: Db, table: RwTable<SecurityIdentity>) -> Self {
        Self { db, table }
    }

    /// Registers a source: the table is initialized when all sources are [done](Self::done).
    pub fn register_source(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.write();
        let guard = self.table.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    pub(crate) fn table(&self) -> &RwTable<SecurityIdentity> {
        &self.table
    }

    pub(crate) fn has(&self, txn: &WriteTxn, id: NumericIdentity) -> bool {
        self.table
            .get(txn, SecurityIdentity::BY_ID.key(&id.get()))
            .is_some()
    }

    pub fn write(&self) -> WriteTxn {
        self.db.write(&[&self.table])
    }

    /// Inserts or changes an identity. One that another source has, or that is reserved, stays as it is, with a warning in the
    /// log. Returns whether it was written.
    pub fn upsert(&self, txn: &mut WriteTxn, row: SecurityIdentity) -> Result<bool, statedb::Error> {
        let is_free = !row.id.is_reserved() && self.is_own(txn, row.source, row.id).unwrap_or(true);
        if is_free {
            self.table.insert(txn, row)?;
        } else {
            tracing::warn!(
                id = %row.id, source = %row.source, cluster = %row.cluster,
                "Ignoring identity with a reserved id or an id of another source"
            );
        }
        Ok(is_free)
    }

    /// Inserts identities that are the same in every cluster.
    pub fn insert_reserved<'a>(
        &self,
        identities: impl IntoIterator<Item = (NumericIdentity, &'a Labels)>,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.write();
        for (id, labels) in identities {
            let row = SecurityIdentity::reserved(id, labels.clone());
            self.table.insert(&mut txn, row)?;
        }
        txn.commit();
        Ok(())
    }

    /// Deletes an identity of a source.
    pub fn delete(
        &self,
        txn: &mut WriteTxn,
        source: IdentitySource,
        id: NumericIdentity,
    ) -> Result<(), statedb::Error> {
        if self.is_own(txn, source, id) == Some(true) {
            self.table
                .delete_by(txn, SecurityIdentity::BY_ID.key(&id.get()))?;
        }
        Ok(())
    }

    /// A source has written all that exists.
    pub fn done(&self, txn: &mut WriteTxn, source: &InitGuard) -> Result<(), statedb::Error> {
        txn.initialized(source)
    }

    /// Whether an identity is that of a source; `None` if there is no such identity.
    fn is_own(&self, txn: &WriteTxn, source: IdentitySource, id: NumericIdentity) -> Option<bool> {
        let row = self.table.get(txn, SecurityIdentity::BY_ID.key(&id.get()))?;
        Some(row.source == source)
    }
}
