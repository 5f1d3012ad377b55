// SPDX-License-Identifier: Apache-2.0

//! Waits until tables have their first content.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Readiness, ReadyGuard, Shutdown, SpawnError};
use parking_lot::Mutex;
use statedb::{AnyTable, Db, Snapshot};

/// A table that is not filled, and who has not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateTable {
    /// The table.
    pub table: String,
    /// Its initialisers that are not done.
    pub waits_for: Vec<String>,
}

impl fmt::Display for LateTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} (waits for {})",
            self.table,
            self.waits_for.join(", ")
        )
    }
}

/// Tables were not filled in time. Look at the health of the named reflectors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no progress for {}s, not filled: {}", quiet.as_secs(), list(late))]
pub struct LateTables {
    /// The tables.
    pub late: Vec<LateTable>,
    /// For how long nothing has moved.
    pub quiet: Duration,
}

fn list(late: &[LateTable]) -> String {
    late.iter()
        .map(LateTable::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn late(tables: &[Arc<dyn AnyTable>], snapshot: &Snapshot) -> Vec<LateTable> {
    tables
        .iter()
        .map(|table| LateTable {
            table: table.name().to_owned(),
            waits_for: table.pending_initializers(snapshot),
        })
        .filter(|late| !late.waits_for.is_empty())
        .collect()
}

/// Waits until every table is initialised; gives up when none of the missing ones has moved for `quiet`.
///
/// Without `names` all tables of the database are waited for, as they are now.
///
/// # Errors
///
/// [`LateTables`] names the tables and who has not delivered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let db = statedb::Db::new();
/// skep_k8s::readiness::wait_initialized(&db, None, std::time::Duration::from_secs(180)).await.unwrap();
/// # }
/// ```
pub async fn wait_initialized(db: &Db, names: Option<&[&str]>, quiet: Duration) -> Result<(), LateTables> {
    let tables: Vec<Arc<dyn AnyTable>> = db
        .tables()
        .into_iter()
        .filter(|table| names.is_none_or(|names| names.contains(&table.name())))
        .collect();
    loop {
        let snapshot = db.read();
        let missing = late(&tables, &snapshot);
        if missing.is_empty() {
            return Ok(());
        }
        let waiting = tables
            .iter()
            .filter(|table| missing.iter().any(|late| late.table == table.name()));
        let watches = waiting.flat_map(|table| [table.watch(&snapshot), table.initializers_watch(&snapshot)]);
        let progress = select_all(watches.map(|watch| Box::pin(async move { watch.closed().await })));
        if tokio::time::timeout(quiet, progress).await.is_err() {
            return Err(LateTables {
                late: late(&tables, &db.read()),
                quiet,
            });
        }
    }
}

/// How long to wait for tables.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Time without any progress after which waiting for the first content of the tables is given up. 0 waits for ever.
    #[config(default = "3m", hidden)]
    pub k8s_sync_timeout: Duration,
}

hive::catalogue!(cell);

/// Cell: the program is ready when all tables are filled, and ends if they are not in time.
pub fn cell() -> Cell {
    Cell::module("k8s-synced", "Waits for the first content of tables")
        .config::<Config>()
        .run(wait_in_background)
}

fn wait_in_background(
    config: Cfg<Config>,
    db: Db,
    jobs: Jobs,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), SpawnError> {
    let guard: Arc<Mutex<Option<ReadyGuard>>> = Arc::new(Mutex::new(Some(readiness.guard("tables"))));
    jobs.spawn(Job::once("wait", move |cx: JobCtx| {
        let (config, db, shutdown, guard) = (config.clone(), db.clone(), shutdown.clone(), guard.clone());
        async move {
            let quiet = Some(config.k8s_sync_timeout)
                .filter(|quiet| !quiet.is_zero())
                .unwrap_or(Duration::MAX);
            let waited = tokio::select! {
                () = cx.token.cancelled() => return,
                waited = wait_initialized(&db, None, quiet) => waited,
            };
            match waited {
                Ok(()) => {
                    cx.health.ok("All tables are filled");
                    drop(guard.lock().take());
                }
                Err(late) => {
                    cx.health.degraded("Tables are not filled in time", &late);
                    shutdown.fail("tables are not filled in time", late);
                }
            }
        }
    }))
}
