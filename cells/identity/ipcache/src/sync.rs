// SPDX-License-Identifier: Apache-2.0

//! First lists of sources, and how long they are awaited.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hive::{JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use statedb::{Db, InitGuard, RwTable, WriteTxn};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The sources of a table: registered ones are awaited, for a time. Cheap to clone.
pub struct SourceSync<T> {
    db: Db,
    table: RwTable<T>,
    sources: Arc<Sources>,
}

#[derive(Default)]
struct Sources {
    awaited: Mutex<Vec<(Instant, Arc<InitGuard>)>>,
    /// Given up, and still without a first list.
    late: Mutex<Vec<Arc<InitGuard>>>,
    delivered: Notify,
}

/// A source that has not delivered its first list.
pub struct SourceGuard {
    guard: Arc<InitGuard>,
    sources: Arc<Sources>,
}

impl SourceGuard {
    /// The source has delivered all it has, with this transaction. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// If the transaction is not on the table of the source.
    pub fn done(&self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        txn.initialized(&self.guard)?;
        let mut late = self.sources.late.lock();
        let were_late = late.len();
        late.retain(|guard| !Arc::ptr_eq(guard, &self.guard));
        if late.len() < were_late {
            self.sources.delivered.notify_one();
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        self.guard.name()
    }
}

impl fmt::Debug for SourceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceGuard").field(&self.name()).finish()
    }
}

/// Sources did not deliver in time. Check their health: what they claimed before a restart is deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no first list of {} for table {table}", sources.join(", "))]
pub struct LateSources {
    pub table: String,
    pub sources: Vec<String>,
}

impl<T: Send + Sync + 'static> SourceSync<T> {
    pub fn new(db: Db, table: RwTable<T>) -> Self {
        Self {
            db,
            table,
            sources: Arc::default(),
        }
    }

    pub fn register(&self, name: &str) -> Result<SourceGuard, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let guard = Arc::new(self.table.register_initializer(&mut txn, name)?);
        self.sources.awaited.lock().push((Instant::now(), guard.clone()));
        txn.commit();
        Ok(SourceGuard {
            guard,
            sources: self.sources.clone(),
        })
    }

    /// Registers the job that stops waiting for sources after the timeout.
    pub fn spawn(&self, timeout: Duration, jobs: &Jobs) -> Result<(), SpawnError> {
        jobs.keep("await-sources", (self.clone(), timeout), Self::give_up)
    }

    async fn give_up((sync, timeout): &(Self, Duration), cx: &JobCtx) -> Result<(), statedb::Error> {
        let table = sync.table.reader();
        // The time that the program itself needs before sources can work is not theirs.
        let started = Instant::now();
        let due = |since: Instant| since.max(started) + *timeout;
        loop {
            let snapshot = sync.db.read();
            let (_, changed) = table.initialized_watch(&snapshot);
            let pending = table.pending_initializers(&snapshot);
            drop(snapshot);
            let next = {
                let mut awaited = sync.sources.awaited.lock();
                awaited.retain(|(_, guard)| pending.iter().any(|name| name == guard.name()));
                awaited.iter().map(|(since, _)| due(*since)).min()
            };
            sync.report(&pending, cx);
            tokio::select! {
                () = changed.closed() => {}
                () = sync.sources.delivered.notified() => {}
                () = tokio::time::sleep_until(next.unwrap_or(started)), if next.is_some() => {
                    let now = Instant::now();
                    let mut awaited = sync.sources.awaited.lock();
                    let (late, rest) = awaited.drain(..).partition(|(since, _)| due(*since) <= now);
                    *awaited = rest;
                    drop(awaited);
                    sync.give_up_late(late)?;
                }
            }
        }
    }

    fn report(&self, pending: &[String], cx: &JobCtx) {
        let late = self.sources.late.lock();
        if !late.is_empty() {
            let error = self.late_sources(late.iter().map(|guard| guard.name()));
            drop(late);
            cx.health.degraded("Timed out waiting for sources", &error);
        } else if pending.is_empty() {
            cx.health.ok("All sources are initialized");
        } else {
            cx.health.ok(format!("Waiting for {}", pending.join(", ")));
        }
    }

    fn late_sources<'a>(&self, names: impl Iterator<Item = &'a str>) -> LateSources {
        LateSources {
            table: self.table.name().to_owned(),
            sources: names.map(str::to_owned).collect(),
        }
    }

    fn give_up_late(&self, late: Vec<(Instant, Arc<InitGuard>)>) -> Result<(), statedb::Error> {
        let error = self.late_sources(late.iter().map(|(_, guard)| guard.name()));
        tracing::warn!(%error, "Timed out waiting for sources");
        let mut txn = self.db.write(&[&self.table]);
        for (_, guard) in late {
            txn.initialized(&guard)?;
            self.sources.late.lock().push(guard);
        }
        txn.commit();
        Ok(())
    }
}

impl<T> Clone for SourceSync<T> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            table: self.table.clone(),
            sources: self.sources.clone(),
        }
    }
}

impl<T> fmt::Debug for SourceSync<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awaited = self.sources.awaited.lock();
        let names = awaited.iter().map(|(_, guard)| guard.name());
        f.debug_list().entries(names).finish()
    }
}
