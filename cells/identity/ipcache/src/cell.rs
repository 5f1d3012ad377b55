// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps the identities of nodes' addresses in the kernel.
//! Requires: client, node name, table `node-addresses`, the maps. Provides: read-only table `node-identities`.

use hive::Cell;

use crate::{map, reconciler, reflector, table};

/// Keeps the identities of nodes' addresses in the kernel.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipcache", "Identities of node addresses")
        .provide_private(table::new)
        .provide(table::read_only)
        .run(reflector::start)
        .run(reconciler::start)
        .library() // other cells may read the table
        .with(
            Cell::module("ipcache-map", "The map of identities")
                .provide(map::owner)
                .provide(map::handle),
        )
}
