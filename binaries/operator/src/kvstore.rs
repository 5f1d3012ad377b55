// SPDX-License-Identifier: Apache-2.0

//! What the operator does where clusters have a key-value store.

use hive::Cell;
use skep_kvstore_etcd::KvstoreConfig;

/// The client of the store, on all replicas.
pub(crate) fn cells() -> Cell {
    Cell::group([
        skep_clustermesh_types::cell(),
        skep_kvstore::cell::metrics(),
        skep_kvstore_etcd::cell(),
        skep_operator_kvstore::health::cell(),
    ])
}

/// What the leader does in the store.
pub(crate) fn leader_cells() -> Cell {
    Cell::group([
        skep_kvstore_store::metrics(),
        skep_kvstore::cell::heartbeat_updater(),
        skep_operator_kvstore::identities::cell(),
        skep_operator_kvstore::locks::cell(),
        skep_operator_kvstore::nodes::cell(),
    ])
    .when(KvstoreConfig::is_enabled)
}
