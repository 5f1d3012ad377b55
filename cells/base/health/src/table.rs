// SPDX-License-Identifier: Apache-2.0

//! The table `health` and its only writer, which receives all reports of the hive.

use std::sync::Arc;

use hive::{HealthId, HealthReport, HealthSink, Level};
use statedb::clock::{Clock, SystemClock};
use statedb::{Db, Index, RwTable, Table};
use tracing::{error, warn};

use crate::history::History;
use crate::status::{LevelName, Status, StatusId, never};

/// Rows by `module.component`; prefixes find whole modules.
pub const BY_IDENTIFIER: Index<Status, str> = Index::new("identifier", |status, keys| {
    keys.add(status.id.to_string().as_str())
});

/// Rows by the name of their level.
pub const BY_LEVEL: Index<Status, str> = Index::new("level", |status, keys| keys.add(status.level.as_str()));

pub(crate) fn new(db: Db) -> Result<RwTable<Status>, statedb::Error> {
    RwTable::builder("health")
        .primary(BY_IDENTIFIER)
        .index(BY_LEVEL)
        .build(&db)
}

/// Writes reports to the table, and to the history if there is one.
///
/// ```
/// use std::sync::Arc;
/// use hive::{Health, ModulePath};
/// use skep_base_health::{BY_IDENTIFIER, HealthTable, LevelName};
///
/// let db = statedb::Db::new();
/// let health = HealthTable::new(db.clone()).unwrap();
/// let table = health.table();
/// let reporter = Health::new(Arc::new(health), ModulePath::root().child("cache"));
///
/// reporter.scope("refill").ok("Filled");
/// let status = table.get(&db.read(), BY_IDENTIFIER.key("cache.refill")).unwrap().clone();
/// assert_eq!((status.level, status.count), (LevelName::Ok, 1));
/// ```
pub struct HealthTable {
    db: Db,
    table: RwTable<Status>,
    clock: Arc<dyn Clock>,
    history: Option<Arc<History>>,
}

impl std::fmt::Debug for HealthTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HealthTable")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl HealthTable {
    /// A table of its own in `db`, with the system's clock and without history.
    pub fn new(db: Db) -> Result<Self, statedb::Error> {
        let table = new(db.clone())?;
        Ok(Self {
            db,
            table,
            clock: Arc::new(SystemClock),
            history: None,
        })
    }

    pub(crate) fn of(
        db: Db,
        table: RwTable<Status>,
        clock: Option<Arc<dyn Clock>>,
        history: Option<Arc<History>>,
    ) -> Arc<dyn HealthSink> {
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
        Arc::new(Self {
            db,
            table,
            clock,
            history,
        })
    }

    pub fn table(&self) -> Table<Status> {
        self.table.reader()
    }

    fn replace(&self, id: StatusId, report: HealthReport) -> Result<(), statedb::Error> {
        let now = self.clock.now();
        let mut txn = self.db.write(&[&self.table]);
        let identifier = id.to_string();
        let old = self
            .table
            .get(&txn, BY_IDENTIFIER.key(&identifier))
            .map(|old| Status::clone(old));
        let mut status = old.unwrap_or_else(|| Status {
            id,
            ..Status::default()
        });
        let before = (status.level, status.error.clone(), status.message.clone());
        status.level = report.level.into();
        status.error = report.error.unwrap_or_default();
        status.updated = now;
        if report.level == Level::Stopped {
            status.stopped = now;
            status.final_message = report.message;
        } else {
            status.stopped = never();
            status.final_message.clear();
            status.message = report.message;
        }
        if report.level == Level::Ok {
            status.last_ok = now;
        }
        let is_same = before == (status.level, status.error.clone(), status.message.clone());
        status.count = if is_same { status.count + 1 } else { 1 };
        if let Some(history) = &self.history {
            history.reported(now, &status);
        }
        self.table.insert(&mut txn, status)?;
        txn.commit();
        Ok(())
    }

    fn remove(&self, id: &StatusId) -> Result<(), statedb::Error> {
        let now = self.clock.now();
        let mut txn = self.db.write(&[&self.table]);
        let gone: Vec<Status> = self
            .table
            .prefix(&txn, BY_IDENTIFIER.key(&id.to_string()))
            .filter(|status| status.id.is_inside(id))
            .map(|status| Status::clone(status))
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        for status in gone {
            self.table.delete(&mut txn, &status)?;
            if let Some(history) = &self.history {
                history.closed(now, &status);
            }
        }
        txn.commit();
        Ok(())
    }
}

impl HealthSink for HealthTable {
    fn report(&self, id: &HealthId, report: HealthReport) {
        if report.level == Level::Degraded {
            let reason = report.error.as_deref().unwrap_or_default();
            warn!(module = %id, message = report.message, error = reason, "Component is degraded");
        }
        if let Err(error) = self.replace(StatusId::from(id), report) {
            error!(module = %id, error = %error, "Cannot write health");
        }
    }

    fn close(&self, id: &HealthId) {
        if let Err(error) = self.remove(&StatusId::from(id)) {
            error!(module = %id, error = %error, "Cannot remove health");
        }
    }
}

/// Number of rows of a level.
pub(crate) fn count(table: &Table<Status>, db: &Db, level: LevelName) -> usize {
    table.list(&db.read(), BY_LEVEL.key(level.as_str())).count()
}
