// SPDX-License-Identifier: Apache-2.0

//! Tables and their commands: `test1` and `test2`; or a reconciler with a mock target.

use std::time::Duration;

use futures::future::BoxFuture;
use hive::Cell;
use hive_script::{Retry, default_conditions, test_conditions};
use statedb::Db;
use statedb::testing::TestTables;

use crate::{Assembly, AssemblyError, Parts, Setup, Suite};

pub(super) const SUITE: Suite = Suite {
    name: "statedb",
    summary: "Commands on tables",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

/// Commands which only the hive of the reconciler has.
const RECONCILER_WORDS: [&str; 5] = [
    "start-reconciler",
    "test-objects",
    "mark-init",
    "expect-ops",
    "expvar",
];

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    let reconciles = RECONCILER_WORDS.iter().any(|word| setup.script.contains(word));
    let starts = ["hive/start", "hive start"]
        .iter()
        .any(|line| setup.script.contains(line));
    Box::pin(async move {
        // Two hives: the tables of the reconciler wait for an initializer, which scripts on tables would wait for, too.
        let assembly = if reconciles {
            Assembly::new(|| vec![statedb::cell(), statedb::testing::cell()])
        } else {
            Assembly::new(|| {
                vec![
                    statedb::cell(),
                    Cell::module("test-tables", "Tables for tests").run(new_tables),
                ]
            })
        };
        let mut conditions = default_conditions();
        conditions.extend(test_conditions(false, setup.verbose));
        let assembly = assembly.conditions(conditions).process_environment();
        let parts = assembly.flags(&setup).build().await?;
        if let Some(hive) = parts.hive.as_ref().filter(|_| reconciles && !starts) {
            hive.controller()
                .start()
                .await
                .map_err(|cause| AssemblyError::Prepare {
                    what: "the hive of the reconciler",
                    cause: Box::new(cause),
                })?;
        }
        Ok(parts)
    })
}

fn new_tables(db: Db) -> Result<(), statedb::Error> {
    TestTables::new(&db).map(drop)
}
