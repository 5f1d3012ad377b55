// SPDX-License-Identifier: Apache-2.0

//! Cell: routes to the pods of other nodes, and neighbours by which nodes are reached.
//! Requires: the settings of the tunnel, devices of this node, `Arc<dyn EndpointHooks>` (the programs are loaded), `ForwardableIps`; takes
//! the nodes if they are there.

use hive::Cell;

use crate::{direct, neighbors, tunnel};

/// Routes networks of other nodes' pods, and removes the routes of nodes that are gone.
pub fn cell() -> Cell {
    Cell::module("node-routes", "Routes to pods of other nodes")
        .run(tunnel::start)
        .run(direct::start)
        .run(neighbors::start)
}
