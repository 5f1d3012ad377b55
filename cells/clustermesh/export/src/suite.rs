// SPDX-License-Identifier: Apache-2.0

//! Script suite `clustermesh-apiserver`: all that is published, in a key-value store in memory.

use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;

hive_script::suite!(
    Suite::new(
        "clustermesh-apiserver",
        "The state of a cluster in the key-value store",
        "testdata",
        assemble
    )
    .retry_interval(Duration::from_millis(20))
);

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive).flags(&setup).ignore_arguments().build()
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(skep_kvstore_client::cell::memory())
        .with(skep_clustermesh_types::command::suite_commands())
        .with(skep_kvstore_client::table::cell("__local__"))
        .with(skep_base_settings::cluster::cell())
        .with(Cell::group([]).config::<skep_k8s_crds::Config>())
        .with(Cell::group([
            crate::tables::cell(),
            crate::cluster_config::cell_with_canaries(),
            crate::services::cell(),
            crate::slices::cell(),
            crate::service_exports::cell(),
            crate::nodes::cell(),
            crate::identities::cell(),
            crate::endpoints::cell(),
        ]))
}
