// SPDX-License-Identifier: Apache-2.0

//! Script suite `devices`: devices, routes and neighbours of a network namespace.

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, AssemblyError, Setup, Suite, ThreadStart};
use skep_base_health::testing::base_cells;

hive_script::suite!(
    Suite::new("devices", "Devices of a network namespace", "testdata", assemble).threads(new_namespace)
);

fn new_namespace() -> Result<ThreadStart, AssemblyError> {
    skep_base_net::testing::thread_start().map_err(|cause| AssemblyError::Prepare {
        what: "a network namespace",
        cause: cause.into(),
    })
}

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(|| Hive::new(base_cells()).with(crate::cells::devices()))
        .flags(&setup)
        .ignore_arguments()
        .variable("PATH", std::env::var("PATH").unwrap_or_default())
        .build()
}
