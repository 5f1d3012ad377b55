// SPDX-License-Identifier: Apache-2.0

//! Tables and their commands: `test1` and `test2`.

use std::time::Duration;

use futures::future::BoxFuture;
use hive::Cell;
use hive_script::Retry;
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

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    Assembly::new(|| {
        vec![
            statedb::cell(),
            Cell::module("test-tables", "Tables for tests").run(new_tables),
        ]
    })
    .flags(&setup)
    .build()
}

fn new_tables(db: Db) -> Result<(), statedb::Error> {
    TestTables::new(&db).map(drop)
}
