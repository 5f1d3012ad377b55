// SPDX-License-Identifier: Apache-2.0

//! Script suite `ipam`: addresses of a node in mode `multi-pool`, whose endpoints are of mode `cluster-pool`.

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;
use skep_base_settings::NodeName;

hive_script::suite!(Suite::new(
    "ipam",
    "Addresses of a node, in mode multi-pool",
    "testdata",
    assemble
));

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive)
        .preset("ipam", "multi-pool")
        .preset("ipam-cilium-node-update-rate", "1ns")
        .build()
}

fn hive() -> Hive {
    let name = Cell::module("test-node", "Name of the node for tests").provide(|| NodeName::new("test-node"));
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(skep_base_settings::cell())
        .with(skep_k8s_reflectors::tables::cell())
        .with(skep_node_local::cells::local_node())
        .with(crate::cell())
        .with(crate::sources::cell())
        .with(crate::command::cell())
        .with(name)
}
