// SPDX-License-Identifier: Apache-2.0

//! Script suite `operator-ipam`: networks of CiliumPodIPPools for CiliumNodes of a fake Kubernetes client.

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;

hive_script::suite!(Suite::new(
    "operator-ipam",
    "Networks of pools for nodes, in mode multi-pool",
    "testdata",
    assemble
));

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive)
        .preset("ipam", "multi-pool")
        .flags(&setup)
        .build()
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(crate::cell())
        .with(crate::multipool::command::cell())
}
