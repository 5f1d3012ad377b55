// SPDX-License-Identifier: Apache-2.0

//! Cell: the table `identities`, with the reserved ones. Requires: a database. Provides: [`Writer`],
//! [`LocalIdentities`], the read-only table.

use hive::{Cell, Jobs, SpawnError};
use statedb::{Db, RwTable};

use crate::local::LocalIdentities;
use crate::table::{self, SecurityIdentity};
use crate::writer::Writer;

/// The security identities that the agent knows.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("identity-cache", "Security identities that the agent knows")
        .provide_private(new_table)
        .provide(statedb::read_only::<SecurityIdentity>)
        .provide(Writer::new)
        .provide(LocalIdentities::new)
        .run(release)
        .library() // other cells read the table
}

fn release(local: LocalIdentities, jobs: Jobs) -> Result<(), SpawnError> {
    local.spawn(&jobs)
}

fn new_table(db: Db) -> Result<RwTable<SecurityIdentity>, statedb::Error> {
    table::with_reserved(&db)
}
