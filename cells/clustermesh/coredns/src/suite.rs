// SPDX-License-Identifier: Apache-2.0

//! Script suite `mcsapi-coredns-cfg`: the configuration of CoreDNS in a fake cluster, changed when the hive starts.

use std::time::Duration;

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;

hive_script::suite!(
    Suite::new(
        "mcsapi-coredns-cfg",
        "Configuration of CoreDNS for the multi-cluster services API",
        "testdata",
        assemble
    )
    .retry_interval(Duration::from_millis(20))
);

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive).flags(&setup).build()
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(crate::cell::cell())
}
