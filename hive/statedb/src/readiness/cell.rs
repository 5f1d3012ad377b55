// SPDX-License-Identifier: Apache-2.0

//! Cell: the program is ready when all tables are initialized.
//! Requires: `Db`. Provides: nothing.

use std::{sync::Arc, time::Duration};

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Readiness, ReadyGuard, Shutdown, SpawnError};
use parking_lot::Mutex;

use super::{LateTable, list, wait_initialized_with};
use crate::Db;

/// How long to wait for tables.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Time without progress after which the program stops waiting for the first content of its tables, and fails.
    /// 0 waits without a limit.
    #[config(default = "3m", hidden)]
    pub k8s_sync_timeout: Duration,
}

/// The program is ready when all tables are initialized, and fails if they are not in time.
pub fn cell() -> Cell {
    Cell::module("tables-initialized", "Waits for the first content of tables")
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
        let readiness = readiness.clone();
        async move {
            // The status of the program says what it waits for.
            let mut last = Vec::new();
            let waiting = |late: &[LateTable]| {
                if late != last.as_slice() {
                    *guard.lock() = Some(readiness.guard(&list(late)));
                    cx.health.starting(format!("Waiting for {}", list(late)));
                    last = late.to_vec();
                }
            };
            let quiet = Some(config.k8s_sync_timeout)
                .filter(|quiet| !quiet.is_zero())
                .unwrap_or(Duration::MAX);
            let waited = tokio::select! {
                () = cx.token.cancelled() => return,
                waited = wait_initialized_with(&db, None, quiet, waiting) => waited,
            };
            match waited {
                Ok(()) => {
                    cx.health.ok("All tables are initialized");
                    drop(guard.lock().take());
                }
                Err(late) => {
                    cx.health.degraded("Timed out waiting for tables", &late);
                    shutdown.fail("tables are not initialized in time", late);
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;
    use crate::{InitGuard, testing::TestTables};

    /// Table `test1` with an initialiser that is never done.
    fn never_initialized(db: Db, held: Arc<Mutex<Option<InitGuard>>>) -> Result<(), crate::Error> {
        let tables = TestTables::new(&db)?;
        let mut txn = db.write(&[&tables.test1]);
        *held.lock() = Some(tables.test1.register_initializer(&mut txn, "source")?);
        txn.commit();
        Ok(())
    }

    #[tokio::test]
    async fn the_program_says_which_tables_it_waits_for() {
        let late = Cell::module("late", "Is never initialized")
            .provide(Db::new)
            .provide(Arc::<Mutex<Option<InitGuard>>>::default)
            .provide(Arc::<Readiness>::new)
            .run(never_initialized);
        let hive = Hive::new([late, cell()]).root::<Arc<Readiness>>();
        let running = hive::testing::start_with(hive, Settings::new()).await;
        let readiness: Arc<Readiness> = running.get().unwrap();

        while readiness.pending() != ["tables-initialized: test1 (waits for source)"] {
            tokio::task::yield_now().await;
        }

        let entry = running.health().get("tables-initialized.job-wait").unwrap();
        assert_eq!(entry.message, "Waiting for test1 (waits for source)");
        hive::testing::stop(running).await;
    }

    #[tokio::test]
    async fn program_ends_with_the_names_of_tables_that_are_late() {
        let late = Cell::module("late", "Is never initialized")
            .provide(Db::new)
            .provide(Arc::<Mutex<Option<InitGuard>>>::default)
            .run(never_initialized);
        let running = hive::testing::start_with(
            Hive::new([late, cell()]),
            Settings::new().flag("k8s-sync-timeout", "20ms"),
        )
        .await;
        hive::testing::expect_failure(&running, "tables are not initialized in time");

        let cause = tokio::time::timeout(Duration::from_secs(30), running.wait())
            .await
            .unwrap();

        assert!(cause.is_failure());
        let text = format!("{cause} {cause:?}");
        assert!(text.contains("test1 (waits for source)"), "{text}");
    }
}
