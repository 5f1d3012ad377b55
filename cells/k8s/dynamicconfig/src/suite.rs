// SPDX-License-Identifier: Apache-2.0

//! Script suite `dynamicconfig`: configuration of a fake Kubernetes client in a table.

use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;
use skep_base_settings::NodeName;
use statedb::Table;

use crate::row::ConfigEntry;

hive_script::suite!(
    Suite::new(
        "dynamicconfig",
        "Configuration in the cluster, as a table",
        "testdata",
        assemble
    )
    .retry_interval(Duration::from_millis(100))
);

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive).flags(&setup).build()
}

fn hive() -> Hive {
    let node = Cell::module("test-node", "Name of the node").provide(|| NodeName::new("testnode"));
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(node)
        .with(crate::cell())
        .root::<Table<ConfigEntry>>()
}
