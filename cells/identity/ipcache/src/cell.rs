// SPDX-License-Identifier: Apache-2.0

//! Cell: what addresses and networks are, in a table and in the kernel.
//! Requires: the maps. Provides: [`Writer`], read-only table `ipcache`, the map as `Arc<IpcacheMap>`.

use hive::{Cell, Cfg, Jobs, SpawnError};

use crate::config::Config;
use crate::table::IpcacheEntry;
use crate::writer::Writer;
use crate::{map, reconciler, table};

/// What addresses and networks are, in a table and in the kernel.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipcache", "Identities of addresses and networks")
        .config::<Config>()
        .provide_private(table::new)
        .provide(table::read_only)
        .provide(new_writer)
        .run(reconciler::start)
        .run(await_sources)
        .library() // other cells may write and read the table
        .with(
            Cell::module("ipcache-map", "The map of identities")
                .provide(map::owner)
                .provide(map::handle),
        )
}

fn new_writer(db: statedb::Db, table: statedb::RwTable<IpcacheEntry>) -> Writer {
    Writer::new(db, table)
}

fn await_sources(writer: Writer, config: Cfg<Config>, jobs: Jobs) -> Result<(), SpawnError> {
    writer.sources().spawn(config.sync_timeout, &jobs)
}
