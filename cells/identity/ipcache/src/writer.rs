// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to table `ipcache`.

use statedb::reconciler::Status;
use statedb::{Db, RwTable, Table, WriteTxn};

use crate::claim::{Claim, Claims, Owner};
use crate::local::{LabelIdentities, passed_on};
use crate::prefix::{Prefix, PrefixKind};
use crate::source::Source;
use crate::sync::{SourceGuard, SourceSync};
use crate::table::IpcacheEntry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upserted {
    /// The owner has the same claim already.
    Same,
    /// It decides what the prefix is, or is part of what does.
    Wins,
    /// It is kept until no claim of this source is left.
    LosesTo(Source),
}

/// Writes claims; cheap to clone. What one transaction holds becomes visible, and is reconciled, at once.
///
/// ```
/// use skep_identity::NumericIdentity;
/// use skep_ipcache::{Claim, IpcacheEntry, Owner, ResourceId, Source, Writer};
/// use statedb::Db;
///
/// let writer = Writer::with_table(&Db::new())?;
/// let pod = |source| Owner::new(source, ResourceId::new("cep", "shop", "cart-0"));
/// let prefix = "10.0.2.8".parse()?;
///
/// let mut txn = writer.write();
/// writer.upsert(&mut txn, prefix, Claim::identity(pod(Source::ClusterMesh), NumericIdentity::new(458_752)))?;
/// writer.upsert(&mut txn, prefix, Claim::identity(pod(Source::CustomResource), NumericIdentity::new(52_311)))?;
/// let snapshot = txn.commit();
///
/// let table = writer.table();
/// let row = table.get(&snapshot, IpcacheEntry::BY_PREFIX.key(&prefix)).unwrap();
/// assert_eq!(row.resolve().unwrap().identity.get(), 52_311);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, hive::Value)]
pub struct Writer {
    db: Db,
    table: RwTable<IpcacheEntry>,
    sync: SourceSync<IpcacheEntry>,
    labels: Option<LabelIdentities>,
}

impl Writer {
    /// A writer with a table of its own. Labels have reserved identities only.
    pub fn with_table(db: &Db) -> Result<Self, statedb::Error> {
        Ok(Self::new(db.clone(), crate::table::new(db.clone())?))
    }

    pub(crate) fn new(db: Db, table: RwTable<IpcacheEntry>) -> Self {
        let sync = SourceSync::new(db.clone(), table.clone());
        Self {
            db,
            table,
            sync,
            labels: None,
        }
    }

    /// With identities of this node for labels that have no reserved one.
    pub(crate) fn with_identities(mut self, labels: LabelIdentities) -> Self {
        self.labels = Some(labels);
        self
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The table, to read and watch.
    pub fn table(&self) -> Table<IpcacheEntry> {
        self.table.reader()
    }

    pub fn write(&self) -> WriteTxn {
        match &self.labels {
            Some(labels) => self.db.write(&[&self.table, labels.target()]),
            None => self.db.write(&[&self.table]),
        }
    }

    /// Registers a source whose first list is awaited: until the guard is [done](SourceGuard::done), nothing is deleted from
    /// the map that no claim stands for.
    pub fn register_source(&self, name: &str) -> Result<SourceGuard, statedb::Error> {
        self.sync.register(name)
    }

    pub fn sources(&self) -> &SourceSync<IpcacheEntry> {
        &self.sync
    }

    /// Adds a claim, or replaces the one that its owner has on the prefix.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`Writer::write`].
    pub fn upsert(
        &self,
        txn: &mut WriteTxn,
        prefix: Prefix,
        claim: Claim,
    ) -> Result<Upserted, statedb::Error> {
        let present = self.table.get(txn, IpcacheEntry::BY_PREFIX.key(&prefix)).cloned();
        if let Some(row) = &present
            && row.claims.of(&claim.owner) == Some(&claim)
        {
            return Ok(Upserted::Same);
        }
        let source = claim.owner.source;
        let mut claims = present.as_ref().map(|row| row.claims.clone()).unwrap_or_default();
        claims.upsert(claim);
        let winner = self.replace(txn, prefix, present.as_deref(), claims)?;
        let winner = winner.unwrap_or(source);
        Ok(match winner.is_stronger_than(source) {
            true => Upserted::LosesTo(winner),
            false => Upserted::Wins,
        })
    }

    /// Deletes the claim of an owner on a prefix; false if it has none.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`Writer::write`].
    pub fn delete(&self, txn: &mut WriteTxn, prefix: Prefix, owner: &Owner) -> Result<bool, statedb::Error> {
        let present = self.table.get(txn, IpcacheEntry::BY_PREFIX.key(&prefix)).cloned();
        let Some(row) = present else { return Ok(false) };
        let mut claims = row.claims.clone();
        if !claims.remove(owner) {
            return Ok(false);
        }
        self.replace(txn, prefix, Some(&row), claims)?;
        Ok(true)
    }

    /// Deletes all claims whose owners are selected, except those on prefixes that are kept; returns how many prefixes had
    /// some. For sources that are gone, and for what a list does not have any more. Looks at every row.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`Writer::write`].
    pub fn delete_owned(
        &self,
        txn: &mut WriteTxn,
        is_owner: impl Fn(&Owner) -> bool,
        is_kept: impl Fn(&Prefix) -> bool,
    ) -> Result<usize, statedb::Error> {
        let has_owner =
            |row: &&statedb::Obj<IpcacheEntry>| row.claims.iter().any(|claim| is_owner(&claim.owner));
        let rows: Vec<_> = self
            .table
            .all(txn)
            .filter(|row| !is_kept(&row.prefix))
            .filter(has_owner)
            .cloned()
            .collect();
        for row in &rows {
            let mut claims = row.claims.clone();
            claims.remove_if(&is_owner);
            self.replace(txn, row.prefix, Some(row), claims)?;
        }
        Ok(rows.len())
    }

    /// Replaces the claims on a prefix. Returns the source that says what it is.
    fn replace(
        &self,
        txn: &mut WriteTxn,
        prefix: Prefix,
        before: Option<&IpcacheEntry>,
        claims: Claims,
    ) -> Result<Option<Source>, statedb::Error> {
        let passes_on = |claims: Option<&Claims>| claims.map(passed_on).unwrap_or_default();
        let is_passed_on = self.labels.is_some()
            && prefix.kind() == PrefixKind::Cidr
            && passes_on(before.map(|row| &row.claims)) != passes_on(Some(&claims));
        let source = if claims.is_empty() {
            self.table.delete_by(txn, IpcacheEntry::BY_PREFIX.key(&prefix))?;
            None
        } else {
            self.put(txn, prefix, before, claims)?
        };
        if is_passed_on {
            self.resolve_within(txn, prefix)?;
        }
        Ok(source)
    }

    /// The row becomes pending only if the map needs another entry.
    fn put(
        &self,
        txn: &mut WriteTxn,
        prefix: Prefix,
        before: Option<&IpcacheEntry>,
        claims: Claims,
    ) -> Result<Option<Source>, statedb::Error> {
        let held = before.and_then(|row| row.local.as_ref());
        let labels = self.labels.as_ref();
        let local = labels.and_then(|labels| labels.identity(txn, prefix, &claims, held));
        let mut row = IpcacheEntry {
            prefix,
            claims,
            local,
            status: Status::pending(),
        };
        let value = |row: &IpcacheEntry| row.resolve().map(|resolved| resolved.map_value());
        if let Some(before) = before.filter(|before| value(before) == value(&row)) {
            row.status = before.status.clone();
        }
        let source = row.resolve().map(|resolved| resolved.source);
        self.table.insert(txn, row)?;
        Ok(source)
    }

    /// Resolves prefixes within a network again: what it passes on has changed.
    fn resolve_within(&self, txn: &mut WriteTxn, network: Prefix) -> Result<(), statedb::Error> {
        let first = Prefix::first_within(network.net());
        let within: Vec<_> = self
            .table
            .lower_bound(txn, IpcacheEntry::BY_PREFIX.key(&first))
            .take_while(|row| network.net().contains(&row.prefix.net()))
            .filter(|row| row.prefix != network && row.prefix.cluster_id() == network.cluster_id())
            .filter(|row| row.claims.labels().next().is_some())
            .cloned()
            .collect();
        for row in within {
            self.put(txn, row.prefix, Some(&row), row.claims.clone())?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("table", &self.table).finish()
    }
}
