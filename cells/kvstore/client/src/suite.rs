// SPDX-License-Identifier: Apache-2.0

//! Script suite `kvstore`: commands on a store in memory.

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_health::testing::base_cells;

hive_script::suite!(Suite::new(
    "kvstore",
    "Commands on a key-value store in memory",
    "testdata",
    assemble
));

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive).build()
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(crate::cell::memory())
        .with(crate::command::cell())
        .with(crate::command::write_commands())
        .with(crate::table::cell("__local__"))
}
