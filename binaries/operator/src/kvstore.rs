// SPDX-License-Identifier: Apache-2.0

//! What the operator does where clusters have a key-value store.

use hive::{Cell, Cfg};
use skep_base_settings::identity::IdentityConfig;
use skep_k8s_crds::CrdContext;
use skep_kvstore_etcd::KvstoreConfig;
use skep_operator_ipam::Config as IpamConfig;

/// The client of the store, on all replicas.
pub(crate) fn cells() -> Cell {
    Cell::group([
        skep_base_settings::cluster::cell(),
        skep_base_settings::identity::cell(),
        skep_base_settings::service_ipam_cell(),
        skep_clustermesh_types::command::cell(),
        skep_base_limiter::cell(),
        skep_kvstore_client::cell::metrics(),
        skep_kvstore_client::command::cell(),
        skep_kvstore_etcd::cell(),
        skep_operator_kvstore::health::cell(),
    ])
}

hive::catalogue!(context);

/// What other settings mean for the definitions.
pub(crate) fn context() -> Cell {
    Cell::module("crd-context", "What other settings mean for the definitions").provide(new_surroundings)
}

fn new_surroundings(
    kvstore: Cfg<KvstoreConfig>,
    identities: Cfg<IdentityConfig>,
    ipam: Cfg<IpamConfig>,
) -> CrdContext {
    CrdContext {
        has_kvstore: kvstore.is_enabled(),
        identities_in_crds: identities.identity_allocation_mode.uses_objects(),
        delegates_ipam: ipam.ipam == "delegated-plugin",
        ..CrdContext::default()
    }
}

/// What the leader does in the store.
pub(crate) fn leader_cells() -> Cell {
    Cell::group([
        skep_kvstore_store::metrics(),
        skep_kvstore_client::cell::heartbeat_updater(),
        skep_operator_kvstore::identities::cell(),
        skep_operator_kvstore::double_write::cell(),
        skep_operator_kvstore::locks::cell(),
        skep_operator_kvstore::nodes::cell(),
        skep_clustermesh_export::cluster_config::cell(),
        skep_operator_kvstore::services::cell(),
    ])
    .when(KvstoreConfig::is_enabled)
}
