// SPDX-License-Identifier: Apache-2.0

//! Table → map.
//!
//! What an entry of the map must be follows from the two prefixes that may have it, as of the snapshot of the round. A
//! round writes entries first and deletes afterwards, so that a network whose entry is replaced by others is not without
//! one in between.
//!
//! Labels are united over sources: until all have delivered their first list, what labels say may be half of it. Entries of an
//! earlier run stay as they are until then, unless a claim with an identity replaces them.

use std::collections::HashSet;
use std::sync::Arc;

use hive::{Jobs, SpawnError};
use skep_bpf_maps::node::{IpcacheKey, IpcacheValue};
use skep_datapath_maps::transaction::{Deletions, Phase, Stage, Transaction, Updates};
use skep_identity_cache::SecurityIdentity;
use statedb::reconciler::{BatchOps, Config, Delete, Reconciler, Round, Update};
use statedb::row::BoxError;
use statedb::{Db, Obj, ReadTxn, RwTable, Table};

use crate::barrier::{Barrier, IdentityUser};
use crate::claim::{Claim, ClaimedIdentity};
use crate::map::IpcacheMap;
use crate::prefix::Prefix;
use crate::table::IpcacheEntry;

skep_datapath_maps::stages! {
    struct Stages {
        updates: Updates<IpcacheMap>,
        deletions: Deletions<IpcacheMap>,
    }
}

impl Stages {
    fn run(&mut self, map: &IpcacheMap, txn: &mut Transaction) {
        txn.run(&mut self.updates, map);
        txn.enter(Phase::CleanUp);
        txn.run(&mut self.deletions, map);
    }
}

pub(crate) fn start(
    db: Db,
    table: RwTable<IpcacheEntry>,
    map: Arc<IpcacheMap>,
    user: Option<Arc<dyn IdentityUser>>,
    identities: Option<Table<SecurityIdentity>>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let mut ops = MapOps::new(table.reader(), (*map).clone());
    ops.barrier = user
        .zip(identities)
        .map(|(user, identities)| Barrier { user, identities });
    let config = Config {
        blocking: ops.barrier.is_some(),
        ..config()
    };
    Reconciler::new(&db, table, IpcacheEntry::STATUS, ops, config).spawn(&jobs)?;
    Ok(())
}

pub(crate) fn config() -> Config {
    Config {
        // Entries of other clusters change one by one, thousands a second, and are to be in the map at once: a pause between
        // two rounds is a millisecond at least. What comes during a round is the next one.
        rounds_per_second: 5_000,
        // Pruning, once an hour, compares the whole map: what it finds is all that a refresh could repair.
        refresh_interval: None,
        ..Config::default()
    }
}

/// Writes entries of the table to the map.
pub(crate) struct MapOps {
    table: Table<IpcacheEntry>,
    map: IpcacheMap,
    stages: Stages,
    txn: Transaction,
    earlier: Earlier,
    barrier: Option<Barrier>,
}

enum Earlier {
    /// The map was not read yet.
    Unknown,
    /// Those that this run has neither written nor deleted.
    Kept(HashSet<IpcacheKey>),
    /// All sources are initialized: the table says what every entry is.
    Complete,
}

impl MapOps {
    pub(crate) fn new(table: Table<IpcacheEntry>, map: IpcacheMap) -> Self {
        Self {
            table,
            map,
            stages: Stages::default(),
            txn: Transaction::default(),
            earlier: Earlier::Unknown,
            barrier: None,
        }
    }

    /// Reads what an earlier run has left, before the first write, and forgets it when all sources have delivered.
    fn look_for_earlier(&mut self, txn: &impl ReadTxn) {
        if self.table.is_initialized(txn) {
            self.earlier = Earlier::Complete;
        } else if matches!(self.earlier, Earlier::Unknown) {
            // A map that cannot be read cannot be written: the round fails, and is repeated.
            if let Ok(keys) = self.map.keys() {
                self.earlier = Earlier::Kept(keys.into_iter().collect());
            }
        }
    }

    /// What the entry of a prefix must be: that of the address, else that of the network.
    fn desired(&self, txn: &impl ReadTxn, prefix: Prefix) -> Option<IpcacheValue> {
        let mut prefixes = [Some(prefix), prefix.twin()];
        prefixes.sort_by_key(|prefix| prefix.map(|prefix| prefix.kind()));
        prefixes.into_iter().flatten().find_map(|prefix| {
            let row = self.table.get(txn, IpcacheEntry::BY_PREFIX.key(&prefix))?;
            Some(row.resolve()?.map_value())
        })
    }

    fn stage(&mut self, txn: &impl ReadTxn, row: &IpcacheEntry) {
        let (owner, key) = (self.txn.add_owner(), row.prefix.map_key());
        if let Earlier::Kept(keys) = &mut self.earlier {
            let has_labels = |claim: &Claim| matches!(claim.identity, ClaimedIdentity::Labels(_));
            if keys.contains(&key) && row.claims.iter().any(has_labels) {
                return; // The first pruning, when all sources have delivered, writes what differs.
            }
            keys.remove(&key);
        }
        match self.desired(txn, row.prefix) {
            Some(value) => self.stages.updates.push(owner, (key, value)),
            None => self.stages.deletions.push(owner, key),
        }
    }

    /// Carries out what is staged; returns the results in the order of staging.
    fn carry_out(&mut self) -> Vec<Result<(), BoxError>> {
        self.stages.run(&self.map, &mut self.txn);
        self.stages.clear();
        let results = self.txn.finish();
        results
            .map(|error| error.map_or(Ok(()), |error| Err(error.into())))
            .collect()
    }

    /// Entries of the map that are not as they must be: key, and what it must be.
    fn differences(&self, txn: &impl ReadTxn) -> Result<Vec<(IpcacheKey, Option<IpcacheValue>)>, BoxError> {
        let mut found = Vec::new();
        let mut present = HashSet::new();
        self.map.for_each(|key, value| {
            let desired = Prefix::of_map_key(&key).and_then(|prefix| self.desired(txn, prefix));
            if desired.is_some() {
                present.insert(key);
            }
            if desired != Some(value) {
                found.push((key, desired));
            }
        })?;
        for row in self.table.all(txn) {
            let key = row.prefix.map_key();
            if !present.contains(&key)
                && let Some(value) = self.desired(txn, row.prefix)
            {
                present.insert(key);
                found.push((key, Some(value)));
            }
        }
        Ok(found)
    }
}

impl BatchOps<IpcacheEntry> for MapOps {
    fn prune(
        &mut self,
        round: &Round<'_>,
        _: &mut dyn Iterator<Item = &Obj<IpcacheEntry>>,
    ) -> Result<(), BoxError> {
        let differences = self.differences(round.snapshot)?;
        if differences.is_empty() {
            return Ok(());
        }
        let stale = differences
            .iter()
            .filter(|(_, desired)| desired.is_none())
            .count();
        tracing::info!(
            stale,
            repaired = differences.len() - stale,
            "Repaired differences between map and table"
        );
        for (key, desired) in differences {
            let owner = self.txn.add_owner();
            match desired {
                Some(value) => self.stages.updates.push(owner, (key, value)),
                None => self.stages.deletions.push(owner, key),
            }
        }
        self.carry_out().into_iter().collect()
    }

    fn batch(
        &mut self,
        round: &Round<'_>,
        deletes: &mut [Delete<IpcacheEntry>],
        updates: &mut [Update<IpcacheEntry>],
    ) {
        self.look_for_earlier(round.snapshot);
        if let Some(barrier) = self.barrier.as_ref().filter(|_| !updates.is_empty()) {
            barrier.wait(round.snapshot);
        }
        for delete in deletes.iter() {
            self.stage(round.snapshot, &delete.object);
        }
        for update in updates.iter() {
            self.stage(round.snapshot, &update.object);
        }
        let mut results = self.carry_out().into_iter();
        for (delete, result) in deletes.iter_mut().zip(&mut results) {
            delete.result = result;
        }
        for (update, result) in updates.iter_mut().zip(results) {
            update.result = result;
        }
    }
}
