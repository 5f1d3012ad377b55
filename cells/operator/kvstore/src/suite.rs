// SPDX-License-Identifier: Apache-2.0

//! Script suites of the operator's part in the key-value store.

mod nodesgc;
mod watchers;

use hive::Hive;
use skep_base_health::testing::base_cells;

/// Kubernetes and a key-value store, both in memory and filled by scripts.
fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(skep_kvstore_client::cell::memory())
        .with(skep_clustermesh_types::command::suite_commands())
        .with(skep_kvstore_client::table::cell("__local__"))
        .with(skep_base_settings::cluster::cell())
}
