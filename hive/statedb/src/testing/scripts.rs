// SPDX-License-Identifier: Apache-2.0

//! Suite `statedb`: tables `test1` and `test2` and their commands; or a reconciler with a mock target, for scripts that
//! call its commands.

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, AssemblyError, Setup, Suite};
use hive_script::{default_conditions, test_conditions};

use super::{TestTables, suite};
use crate::{Db, Error};

hive_script::suite!(
    Suite::new("statedb", "Commands on tables", "testdata", assemble)
        // The second starts its hive, so that no reconciler runs.
        .samples(&["", "hive/start\nstart-reconciler\n"])
);

/// Commands which only the hive of the reconciler has.
const RECONCILER_WORDS: [&str; 5] = [
    "start-reconciler",
    "test-objects",
    "mark-init",
    "expect-ops",
    "expvar",
];

fn assemble(setup: Setup) -> Assembling {
    let reconciles = RECONCILER_WORDS.iter().any(|word| setup.script.contains(word));
    let starts = ["hive/start", "hive start"]
        .iter()
        .any(|line| setup.script.contains(line));
    Box::pin(async move {
        // Two hives: the tables of the reconciler wait for an initializer, which scripts on tables would wait for, too.
        let assembly = if reconciles {
            Assembly::new(|| Hive::new([crate::cell(), suite::cell()]))
        } else {
            Assembly::new(|| Hive::new([crate::cell(), tables()]))
        };
        let mut conditions = default_conditions();
        conditions.extend(test_conditions(false, setup.verbose));
        let parts = assembly
            .conditions(conditions)
            .process_environment()
            .flags(&setup)
            .ignore_arguments()
            .build()
            .await?;
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

fn tables() -> Cell {
    Cell::module("test-tables", "Tables for tests").run(new_tables)
}

fn new_tables(db: Db) -> Result<(), Error> {
    TestTables::new(&db).map(drop)
}
