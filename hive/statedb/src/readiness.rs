// SPDX-License-Identifier: Apache-2.0

//! Waits until tables are initialized.
//!
//! With feature `hive`, `cell` makes the program ready only then.

#[cfg(feature = "hive")]
mod cell;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "hive")]
pub use cell::{Config, cell};
use futures::future::select_all;

use crate::{AnyTable, Db, Snapshot};

#[cfg(feature = "hive")]
hive::catalogue!(cell);

/// A table that is not initialized, with its pending initializers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateTable {
    /// Name of the table.
    pub table: String,
    /// Names of its pending initializers.
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

/// Tables were not initialized in time. Check the health of the sources that are named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no progress for {}s, not initialized: {}", quiet.as_secs(), list(late))]
pub struct LateTables {
    /// The tables.
    pub late: Vec<LateTable>,
    /// Time without a change of any of them.
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

/// Waits until every table is initialized. Fails when none of the pending ones has changed for `quiet`.
///
/// Without `names` it waits for all tables that the database has now.
///
/// # Errors
///
/// [`LateTables`] names the tables and their pending initializers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let db = statedb::Db::new();
/// statedb::readiness::wait_initialized(&db, None, std::time::Duration::from_secs(180)).await.unwrap();
/// # }
/// ```
pub async fn wait_initialized(db: &Db, names: Option<&[&str]>, quiet: Duration) -> Result<(), LateTables> {
    wait_initialized_with(db, names, quiet, |_| {}).await
}

/// As [`wait_initialized`]; `waiting_for` is called with the tables that are not initialized.
async fn wait_initialized_with(
    db: &Db,
    names: Option<&[&str]>,
    quiet: Duration,
    mut waiting_for: impl FnMut(&[LateTable]),
) -> Result<(), LateTables> {
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
        waiting_for(&missing);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestTables;

    const QUIET: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn names_late_tables_and_their_pending_initializers() {
        let db = Db::new();
        let tables = TestTables::new(&db).unwrap();
        let mut txn = db.write(&[&tables.test1]);
        let first = tables.test1.register_initializer(&mut txn, "first").unwrap();
        let second = tables.test1.register_initializer(&mut txn, "second").unwrap();
        txn.commit();

        let error = wait_initialized(&db, None, QUIET).await.unwrap_err();

        assert_eq!(
            error.to_string(),
            "no progress for 10s, not initialized: test1 (waits for first, second)"
        );
        wait_initialized(&db, Some(&["test2"]), QUIET).await.unwrap();
        for initializer in [&first, &second] {
            let mut txn = db.write(&[&tables.test1]);
            txn.initialized(initializer).unwrap();
            txn.commit();
        }
        wait_initialized(&db, None, QUIET).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn waits_longer_while_a_late_table_changes() {
        let db = Db::new();
        let tables = TestTables::new(&db).unwrap();
        let mut txn = db.write(&[&tables.test1]);
        let initializer = tables.test1.register_initializer(&mut txn, "slow").unwrap();
        txn.commit();
        let (writer, table) = (db.clone(), tables.test1.clone());
        let filling = async move {
            for id in 0..5 {
                tokio::time::sleep(QUIET / 2).await;
                let mut txn = writer.write(&[&table]);
                let object = crate::testing::TestObject {
                    id,
                    ..Default::default()
                };
                table.insert(&mut txn, object).unwrap();
                txn.commit();
            }
            let mut txn = writer.write(&[&table]);
            txn.initialized(&initializer).unwrap();
            txn.commit();
        };

        let (waited, ()) = tokio::join!(wait_initialized(&db, None, QUIET), filling);

        waited.unwrap();
    }
}
