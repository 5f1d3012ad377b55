// SPDX-License-Identifier: Apache-2.0

//! Objects → rows of a table.

use std::collections::{HashMap, HashSet};

use hive::{Jobs, SpawnError};
use skep_k8s_types::{ObjectKey, Resource};
use smallvec::SmallVec;
use statedb::{Db, InitGuard, KeyBuf, RwTable, WriteTxn};

use super::config::{Reflector, Transform};
use crate::sink::{Feed, Rejected, Sink, State};

/// Why a reflector cannot be registered: a programming error, unless the hive is stopping.
#[derive(Debug, thiserror::Error)]
pub enum ReflectError {
    /// Its table does not accept the initialiser.
    #[error("table of {job}")]
    Table {
        /// Name of the job.
        job: String,
        /// Cause.
        #[source]
        cause: statedb::Error,
    },
    /// Its job is not accepted.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

impl<T: Resource, R: Send + Sync + 'static> Reflector<T, R> {
    /// Registers the table's initialiser, at once, and a job that does the work.
    ///
    /// # Errors
    ///
    /// [`ReflectError`] if the table has a reflector of that name already, or the hive is stopping.
    pub fn register(self, jobs: &Jobs, db: &Db) -> Result<(), ReflectError> {
        let job = self.job_name();
        let mut txn = db.write(&[&self.table]);
        let registered = self.table.announce_initializer(&mut txn, &self.name);
        let initializer = registered.map_err(|cause| ReflectError::Table {
            job: job.clone(),
            cause,
        })?;
        txn.commit();
        let rows = Rows {
            db: db.clone(),
            table: self.table,
            transform: self.transform,
            merge: self.merge,
            same: self.same,
            owns: self.owns,
            clear_on_stop: self.clear_on_stop,
            initializer,
            objects: HashMap::new(),
            total: 0,
            upserted: 0,
            deleted: 0,
        };
        let mut feed = Feed::new(&job, self.source, rows).backoff(self.backoff);
        if let Some(ready) = self.ready {
            feed = feed.after(move || ready());
        }
        if let Some(observe) = self.observe {
            feed = feed.observe(observe);
        }
        if self.is_optional {
            feed = feed.optional_kind();
        }
        Ok(feed.spawn(jobs)?)
    }
}

/// The rows of a reflector.
struct Rows<T, R> {
    db: Db,
    table: RwTable<R>,
    transform: Box<Transform<T, R>>,
    merge: Option<fn(&R, R) -> R>,
    same: Option<fn(&R, &R) -> bool>,
    /// Selects rows of an earlier run, until the first list.
    owns: Option<fn(&R) -> bool>,
    clear_on_stop: bool,
    initializer: InitGuard,
    /// Rows that each object has in the table.
    objects: HashMap<ObjectKey, SmallVec<[KeyBuf; 1]>>,
    total: usize,
    upserted: usize,
    deleted: usize,
}

impl<T, R: Send + Sync + 'static> Rows<T, R> {
    /// Replaces the rows of one object.
    fn replace(&mut self, txn: &mut WriteTxn, key: &ObjectKey, made: Vec<R>) -> Result<(), statedb::Error> {
        let mut keys: SmallVec<[KeyBuf; 1]> = SmallVec::new();
        let mut failed = None;
        for row in made {
            match self.put(txn, row) {
                Ok(primary) => keys.push(primary),
                Err(error) => failed = Some(error),
            }
        }
        let before = self.objects.remove(key).unwrap_or_default();
        self.total -= before.len();
        for stale in before {
            if keys.contains(&stale) {
                continue;
            }
            if failed.is_some() {
                // The object keeps its last valid rows.
                keys.push(stale);
            } else {
                self.delete(txn, &stale)?;
            }
        }
        if !keys.is_empty() {
            self.total += keys.len();
            self.objects.insert(key.clone(), keys);
        }
        failed.map_or(Ok(()), Err)
    }

    fn put(&mut self, txn: &mut WriteTxn, row: R) -> Result<KeyBuf, statedb::Error> {
        let primary = self.table.primary_key(&row)?;
        // Counted even if the row is the same: health counts events, not changes.
        self.upserted += 1;
        if let (Some(same), Some(present)) = (self.same, self.table.get_by_primary(txn, &primary))
            && same(present, &row)
        {
            return Ok(primary);
        }
        match self.merge {
            Some(merge) => drop(self.table.modify(txn, row, |old, new| merge(old, new))?),
            None => drop(self.table.insert(txn, row)?),
        }
        Ok(primary)
    }

    fn delete(&mut self, txn: &mut WriteTxn, key: &KeyBuf) -> Result<(), statedb::Error> {
        if self.table.delete_by_primary(txn, key)?.is_some() {
            self.deleted += 1;
        }
        Ok(())
    }

    /// Deletes the rows of an earlier run that no object has. Those that were listed again are in the same transaction, so
    /// readers do not see them missing.
    fn delete_earlier(&mut self, txn: &mut WriteTxn, owns: fn(&R) -> bool) -> Result<(), statedb::Error> {
        let kept: HashSet<&KeyBuf> = self.objects.values().flatten().collect();
        let mut stale = Vec::new();
        for row in self.table.all(txn).filter(|row| owns(row)) {
            let key = self.table.primary_key(row)?;
            if !kept.contains(&key) {
                stale.push(key);
            }
        }
        stale.iter().try_for_each(|key| self.delete(txn, key))
    }
}

impl<T: Resource, R: Send + Sync + 'static> Sink<T> for Rows<T, R> {
    fn write(&mut self) -> WriteTxn {
        (self.upserted, self.deleted) = (0, 0);
        self.db.write(&[&self.table])
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, T>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        let mut made = Vec::new();
        let transformed = match state {
            State::Applied(object) => (self.transform)(object, false, &mut made),
            State::Deleted(Some(object)) => (self.transform)(object, true, &mut made),
            State::Deleted(None) => Ok(()),
        };
        let replaced = match transformed {
            Ok(()) => self.replace(txn, key, made).map_err(Into::into),
            Err(error) => Err(error),
        };
        Ok(replaced
            .err()
            .map(|error| Rejected::text(format!("{key}: {error}"))))
    }

    fn objects(&self) -> Vec<ObjectKey> {
        self.objects.keys().cloned().collect()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        if let Some(owns) = self.owns.take() {
            self.delete_earlier(txn, owns)?;
        }
        txn.initialized(&self.initializer)
    }

    fn summary(&self) -> String {
        format!("{} total objects", self.total)
    }

    fn report(&self) -> String {
        format!(
            "{} upserted, {} deleted, {} total objects",
            self.upserted, self.deleted, self.total
        )
    }

    fn begin(&mut self) {
        self.initializer.begin();
    }

    fn end(&mut self) -> Result<(), statedb::Error> {
        if !self.clear_on_stop {
            return Ok(());
        }
        let mut txn = Sink::<T>::write(self);
        for row in std::mem::take(&mut self.objects).into_values().flatten() {
            self.delete(&mut txn, &row)?;
        }
        self.total = 0;
        txn.commit();
        Ok(())
    }
}
