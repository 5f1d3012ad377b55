// SPDX-License-Identifier: Apache-2.0

//! Events → a transaction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use skep_k8s_client::{ObjectEvent, WatcherEvent};
use skep_k8s_types::{DecodeError, ObjectKey, Resource};
use smallvec::SmallVec;
use statedb::{Db, InitGuard, KeyBuf, WriteTxn};

use super::config::Reflector;

/// What a transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) upserted: usize,
    pub(super) deleted: usize,
}

/// One object's events in a batch: the last valid state, and the error of an invalid one after it.
struct Pending<T> {
    last: Option<Known<T>>,
    invalid: Option<DecodeError>,
}

enum Known<T> {
    Upserted(Arc<T>),
    /// The last state, if it was valid.
    Deleted(Option<Arc<T>>),
}

/// Events of a batch, in the order in which their objects first came, one for each object.
pub(super) struct Batch<T> {
    /// A complete state that comes before all events.
    replaced: bool,
    order: Vec<(ObjectKey, Pending<T>)>,
    position: HashMap<ObjectKey, usize>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            replaced: false,
            order: Vec::new(),
            position: HashMap::new(),
        }
    }
}

impl<T: Resource> Batch<T> {
    pub(super) fn is_empty(&self) -> bool {
        !self.replaced && self.order.is_empty()
    }

    fn slot(&mut self, key: ObjectKey) -> &mut Pending<T> {
        let index = *self.position.entry(key).or_insert_with_key(|key| {
            self.order.push((
                key.clone(),
                Pending {
                    last: None,
                    invalid: None,
                },
            ));
            self.order.len() - 1
        });
        &mut self.order[index].1
    }

    fn put(&mut self, key: ObjectKey, known: Known<T>) {
        *self.slot(key) = Pending {
            last: Some(known),
            invalid: None,
        };
    }

    fn put_invalid(&mut self, error: DecodeError) {
        let slot = self.slot((*error.object).clone());
        slot.invalid = Some(error);
    }

    /// Adds an event; those that are about the connection are returned.
    pub(super) fn add(&mut self, event: WatcherEvent<T>) -> Option<WatcherEvent<T>> {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                *self = Self {
                    replaced: true,
                    ..Self::default()
                };
                for object in items {
                    self.put(ObjectKey::of(&*object), Known::Upserted(object));
                }
                invalid.into_iter().for_each(|error| self.put_invalid(error));
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => {
                self.put(ObjectKey::of(&*object), Known::Upserted(object));
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, last)) => self.put(key, Known::Deleted(last)),
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => self.put_invalid(error),
            other => return Some(other),
        }
        None
    }
}

/// State of a reflector between transactions.
pub(super) struct Mirror {
    /// Rows that each object has in the table.
    rows: HashMap<ObjectKey, SmallVec<[KeyBuf; 1]>>,
    /// Objects that have no valid rows, and why.
    pub(super) rejected: BTreeMap<ObjectKey, String>,
    total: usize,
    first_list: bool,
}

impl Default for Mirror {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            rejected: BTreeMap::new(),
            total: 0,
            first_list: true,
        }
    }
}

impl Mirror {
    /// Number of rows.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Makes the changes of a batch visible, all at once.
    pub(super) fn commit<T: Resource, R: Send + Sync + 'static>(
        &mut self,
        reflector: &Reflector<T, R>,
        db: &Db,
        batch: Batch<T>,
        initializer: &InitGuard,
    ) -> Result<Counts, statedb::Error> {
        let mut txn = db.write(&[&reflector.table]);
        let mut counts = Counts::default();
        if batch.replaced {
            self.forget_missing(reflector, &mut txn, &batch, &mut counts)?;
        }
        let mut made = Vec::new();
        for (key, pending) in batch.order {
            let transformed = match &pending.last {
                Some(Known::Upserted(object)) => {
                    (reflector.transform)(object, false, &mut made).map(|()| true)
                }
                Some(Known::Deleted(Some(object))) => {
                    (reflector.transform)(object, true, &mut made).map(|()| true)
                }
                Some(Known::Deleted(None)) => Ok(true),
                None => Ok(false),
            };
            let rows = std::mem::take(&mut made);
            let put = match transformed {
                Ok(true) => self
                    .put_rows(reflector, &mut txn, &key, rows, &mut counts)
                    .map_err(Into::into),
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            // Decoding errors name the object themselves.
            let rejected = put.err().map(|error| format!("{key}: {error}"));
            match rejected.or_else(|| pending.invalid.map(|error| error.to_string())) {
                None => self.rejected.remove(&key),
                Some(reason) => self.rejected.insert(key, reason),
            };
        }
        if batch.replaced {
            txn.initialized(initializer)?;
            self.first_list = false;
        }
        txn.commit();
        Ok(counts)
    }

    /// Replaces the rows of one object.
    fn put_rows<T, R: Send + Sync + 'static>(
        &mut self,
        reflector: &Reflector<T, R>,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        made: Vec<R>,
        counts: &mut Counts,
    ) -> Result<(), statedb::Error> {
        let mut keys: SmallVec<[KeyBuf; 1]> = SmallVec::new();
        let mut failed = None;
        for row in made {
            match put_row(reflector, txn, row, counts) {
                Ok(primary) => keys.push(primary),
                Err(error) => failed = Some(error),
            }
        }
        let before = self.rows.remove(key).unwrap_or_default();
        self.total -= before.len();
        for stale in before {
            if keys.contains(&stale) {
                continue;
            }
            if failed.is_some() {
                // The object keeps its last valid rows.
                keys.push(stale);
            } else {
                delete_row(reflector, txn, &stale, counts)?;
            }
        }
        if !keys.is_empty() {
            self.total += keys.len();
            self.rows.insert(key.clone(), keys);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Deletes the rows of objects that are missing in a list.
    fn forget_missing<T: Resource, R: Send + Sync + 'static>(
        &mut self,
        reflector: &Reflector<T, R>,
        txn: &mut WriteTxn,
        batch: &Batch<T>,
        counts: &mut Counts,
    ) -> Result<(), statedb::Error> {
        let gone: Vec<ObjectKey> = self
            .rows
            .keys()
            .filter(|key| !batch.position.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            for row in self.rows.remove(&key).unwrap_or_default() {
                self.total -= 1;
                delete_row(reflector, txn, &row, counts)?;
            }
        }
        self.rejected.retain(|key, _| batch.position.contains_key(key));
        if self.first_list
            && let Some(owns) = reflector.owns
        {
            // Rows of an earlier run. Those that are listed again are inserted in the same transaction, so
            // readers do not see them missing.
            let mut made = Vec::new();
            for (_, pending) in &batch.order {
                if let Some(Known::Upserted(object)) = &pending.last {
                    // The error is reported when the object is written.
                    let _ = (reflector.transform)(object, false, &mut made);
                }
            }
            let kept: HashSet<KeyBuf> = made
                .iter()
                .filter_map(|row| reflector.table.primary_key(row).ok())
                .collect();
            let mut stale = Vec::new();
            for row in reflector.table.all(txn).filter(|row| owns(row)) {
                let key = reflector.table.primary_key(row)?;
                if !kept.contains(&key) {
                    stale.push(key);
                }
            }
            for key in stale {
                delete_row(reflector, txn, &key, counts)?;
            }
        }
        Ok(())
    }

    /// Deletes all rows of the reflector.
    pub(super) fn clear<T, R: Send + Sync + 'static>(
        &mut self,
        reflector: &Reflector<T, R>,
        db: &Db,
    ) -> Result<(), statedb::Error> {
        let mut txn = db.write(&[&reflector.table]);
        let mut counts = Counts::default();
        let after = Self {
            first_list: self.first_list,
            ..Self::default()
        };
        for row in std::mem::replace(self, after).rows.into_values().flatten() {
            delete_row(reflector, &mut txn, &row, &mut counts)?;
        }
        txn.commit();
        Ok(())
    }
}

fn put_row<T, R: Send + Sync + 'static>(
    reflector: &Reflector<T, R>,
    txn: &mut WriteTxn,
    row: R,
    counts: &mut Counts,
) -> Result<KeyBuf, statedb::Error> {
    let table = &reflector.table;
    let primary = table.primary_key(&row)?;
    // Counted even if the row is the same: health counts events, not changes.
    counts.upserted += 1;
    if let (Some(same), Some(present)) = (reflector.same, table.get_by_primary(txn, &primary))
        && same(present, &row)
    {
        return Ok(primary);
    }
    match reflector.merge {
        Some(merge) => drop(table.modify(txn, row, |old, new| merge(old, new))?),
        None => drop(table.insert(txn, row)?),
    }
    Ok(primary)
}

fn delete_row<T, R: Send + Sync + 'static>(
    reflector: &Reflector<T, R>,
    txn: &mut WriteTxn,
    key: &KeyBuf,
    counts: &mut Counts,
) -> Result<(), statedb::Error> {
    if reflector.table.delete_by_primary(txn, key)?.is_some() {
        counts.deleted += 1;
    }
    Ok(())
}
