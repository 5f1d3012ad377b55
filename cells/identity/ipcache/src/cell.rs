// SPDX-License-Identifier: Apache-2.0

//! Cell: what addresses and networks are, in a table and in the kernel.
//! Requires: the maps, optionally identities of this node. Provides: [`Writer`], read-only table `ipcache`, the map as `Arc<IpcacheMap>`.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::AddressFamilies;
use skep_identity_cache::LocalIdentities;
use statedb::{Db, RwTable};

use crate::config::Config;
use crate::local::LabelIdentities;
use crate::map::IpcacheMap;
use crate::table::IpcacheEntry;
use crate::writer::Writer;
use crate::{map, reconciler, table};

/// What addresses and networks are, in a table and in the kernel.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipcache", "Identities of addresses and networks")
        .config::<Config>()
        .provide_private(table::new)
        .provide(statedb::read_only::<IpcacheEntry>)
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

#[derive(Params)]
struct WriterParams {
    db: Db,
    table: RwTable<IpcacheEntry>,
    map: Arc<IpcacheMap>,
    identities: Option<LocalIdentities>,
    families: Option<Cfg<AddressFamilies>>,
    config: Cfg<Config>,
}

fn new_writer(params: WriterParams) -> Writer {
    let WriterParams {
        db,
        table,
        map,
        identities,
        families,
        config,
    } = params;
    let is_dual_stack = families.is_some_and(|families| families.ipv4 && families.ipv6);
    let labels = identities.map(|identities| {
        LabelIdentities::new(table.reader(), identities, Some(map), is_dual_stack)
            .with_networks_of_nodes(config.networks_match_nodes())
    });
    let writer = Writer::new(db, table);
    match labels {
        Some(labels) => writer.with_identities(labels),
        None => writer,
    }
}

fn await_sources(writer: Writer, config: Cfg<Config>, jobs: Jobs) -> Result<(), SpawnError> {
    writer.sources().spawn(config.sync_timeout, &jobs)
}
