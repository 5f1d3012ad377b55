// SPDX-License-Identifier: Apache-2.0

//! Claims that follow from other tables.

use std::collections::{BTreeMap, BTreeSet};

use hive::JobCtx;
use statedb::{Change, Db, Row, Snapshot, Table, WriteTxn};

use crate::{Claim, Owner, Prefix, Source, SourceGuard, Writer};

/// What one publisher has claimed.
#[derive(Debug, Default)]
pub struct Published(BTreeSet<(Prefix, Owner)>);

impl Published {
    /// Makes these the claims of the publisher: upserts them, and deletes its earlier ones that are not among them.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`Writer::write`].
    pub fn replace(
        &mut self,
        writer: &Writer,
        txn: &mut WriteTxn,
        claims: Vec<(Prefix, Claim)>,
    ) -> Result<(), statedb::Error> {
        let now: BTreeSet<(Prefix, Owner)> = claims
            .iter()
            .map(|(prefix, claim)| (*prefix, claim.owner.clone()))
            .collect();
        // New claims first: a prefix whose source changes is never without one.
        for (prefix, claim) in claims {
            writer.upsert(txn, prefix, claim)?;
        }
        for (prefix, owner) in self.0.difference(&now) {
            writer.delete(txn, *prefix, owner)?;
        }
        self.0 = now;
        Ok(())
    }
}

/// Claims of source [`Source::Local`] that follow from one table.
#[derive(Debug)]
pub struct Publisher {
    /// Where it claims.
    pub ipcache: Writer,
    /// Its registration, done once the table is initialized.
    pub guard: SourceGuard,
    /// Kind of the resources that claim. No other publisher has it.
    pub kind: &'static str,
}

impl Publisher {
    /// Deletes the claims of an earlier run of the job, and then keeps the claims equal to `claims` of the table. Does not
    /// return before it fails.
    ///
    /// # Errors
    ///
    /// If a table is of another database.
    pub async fn follow<T: Row>(
        &self,
        db: &Db,
        table: &Table<T>,
        claims: impl Fn(&Snapshot) -> Vec<(Prefix, Claim)>,
        cx: &JobCtx,
    ) -> Result<(), statedb::Error> {
        let mut published = Published::default();
        self.delete_earlier_claims()?;
        loop {
            let snapshot = db.read();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let changed = table.table_watch(&snapshot);
            self.publish(&mut published, claims(&snapshot), is_complete)?;
            drop(snapshot);
            cx.health.ok("Running");
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    /// As [`follow`](Self::follow), where the claims of a row follow from it alone: a change takes as long as its row does,
    /// however many others there are. `key` tells rows apart.
    ///
    /// # Errors
    ///
    /// If a table is of another database.
    pub async fn follow_rows<T: Row, K: Ord + Clone>(
        &self,
        db: &Db,
        table: &Table<T>,
        key: impl Fn(&T) -> K,
        claims: impl Fn(&T) -> Vec<(Prefix, Claim)>,
        cx: &JobCtx,
    ) -> Result<(), statedb::Error> {
        let mut published: BTreeMap<K, Published> = BTreeMap::new();
        let mut changes = table.follow(db);
        self.delete_earlier_claims()?;
        loop {
            let snapshot = db.read();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let mut due: BTreeMap<K, Vec<(Prefix, Claim)>> = BTreeMap::new();
            let (round, changed) = changes.next_watch(&snapshot);
            for change in round {
                match change {
                    Change::Relist => due = published.keys().map(|key| (key.clone(), Vec::new())).collect(),
                    Change::Upsert(row) => {
                        due.insert(key(&row), claims(&row));
                    }
                    Change::Delete { object, .. } => {
                        due.insert(key(&object), Vec::new());
                    }
                }
            }
            self.publish_rows(&mut published, due, is_complete)?;
            drop(snapshot);
            cx.health.ok("Running");
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    fn publish_rows<K: Ord>(
        &self,
        published: &mut BTreeMap<K, Published>,
        due: BTreeMap<K, Vec<(Prefix, Claim)>>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.ipcache.write();
        // Rows that claim something first, see `Published::replace`.
        let (gone, here): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, claims)| claims.is_empty());
        for (key, claims) in here {
            let of_row = published.entry(key).or_default();
            of_row.replace(&self.ipcache, &mut txn, claims)?;
        }
        for (key, claims) in gone {
            if let Some(mut of_row) = published.remove(&key) {
                of_row.replace(&self.ipcache, &mut txn, claims)?;
            }
        }
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }

    fn publish(
        &self,
        published: &mut Published,
        claims: Vec<(Prefix, Claim)>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.ipcache.write();
        published.replace(&self.ipcache, &mut txn, claims)?;
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }

    fn delete_earlier_claims(&self) -> Result<(), statedb::Error> {
        let is_ours = |owner: &Owner| owner.source == Source::Local && owner.resource.kind() == self.kind;
        let mut txn = self.ipcache.write();
        self.ipcache.delete_owned(&mut txn, is_ours, |_| false)?;
        txn.commit();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use skep_identity::Reserved;

    use super::*;
    use crate::ResourceId;

    #[test]
    fn claims_that_are_replaced_are_deleted() {
        let db = Db::new();
        let writer = Writer::with_table(&db).unwrap();
        let mut published = Published::default();
        let mut replace = |names: &[(&str, &str)]| {
            let claims = names.iter().map(|(prefix, owner)| {
                let owner = Owner::new(Source::Local, ResourceId::new("test", "", owner));
                (prefix.parse().unwrap(), Claim::labels(owner, Reserved::Host))
            });
            let mut txn = writer.write();
            published.replace(&writer, &mut txn, claims.collect()).unwrap();
            txn.commit();
            let txn = db.read();
            let rows = writer.table().all(&txn).cloned().collect::<Vec<_>>();
            rows.iter()
                .map(|row| (row.prefix.to_string(), row.claims.iter().count()))
                .collect::<Vec<_>>()
        };

        assert_eq!(
            replace(&[("10.0.1.1", "a"), ("10.0.1.2", "b")]),
            [("10.0.1.1".to_owned(), 1), ("10.0.1.2".to_owned(), 1)]
        );
        assert_eq!(
            replace(&[("10.0.1.2", "c"), ("10.0.1.3", "b")]),
            [("10.0.1.2".to_owned(), 1), ("10.0.1.3".to_owned(), 1)]
        );
        assert_eq!(replace(&[]), []);
    }
}
