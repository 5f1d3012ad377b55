// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps the identities of nodes' addresses in the kernel.
//! Needs: client, node name, table `node-addresses`, the pinned maps or an [`Ipcache`] of a test. Gives: read-only
//! table `node-identities`.

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
        .with(Cell::module("ipcache-map", "The pinned map of identities").provide(map::pinned))
}
