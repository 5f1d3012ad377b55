// SPDX-License-Identifier: Apache-2.0

//! Script suite `operator-watchers`: global services and their endpoint slices into the key-value store.

use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};

hive_script::suite!(
    Suite::new(
        "operator-watchers",
        "Global services in the key-value store",
        "testdata/watchers",
        assemble
    )
    .retry_interval(Duration::from_millis(20))
);

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive).flags(&setup).ignore_arguments().build()
}

fn hive() -> Hive {
    super::hive()
        .with(skep_clustermesh_export::tables::cell())
        .with(skep_clustermesh_export::services::cell())
        .with(skep_clustermesh_export::slices::cell())
        // Whether service exports are published.
        .with(Cell::group([]).config::<skep_k8s_crds::Config>())
}
