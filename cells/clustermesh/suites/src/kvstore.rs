// SPDX-License-Identifier: Apache-2.0

//! Suite `kvstore`: commands on a store in memory.

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;

hive_script::suite!(Suite::new(
    "kvstore",
    "Commands on a key-value store in memory",
    "testdata/kvstore",
    assemble
));

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive).build()
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_kvstore_client::cell::memory())
        .with(skep_clustermesh_types::command::suite_commands())
        .with(skep_kvstore_client::table::cell("__local__"))
}
