// SPDX-License-Identifier: Apache-2.0

//! Cells: global services, their endpoint slices and service exports in the key-value store, for other clusters.
//! Requires: clients of Kubernetes and of the store, settings of the cluster and of the definitions.

use hive::Cell;
use skep_clustermesh_export::{service_exports, services, slices, tables};

/// Whether services are published.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Publish global services in the key-value store.
    #[config(default = true)]
    pub synchronize_k8s_services: bool,
}

/// Publishes services, endpoint slices and service exports.
pub fn cell() -> Cell {
    let exports = Cell::group([services::cell(), slices::cell(), service_exports::cell()])
        .when(|config: &Config| config.synchronize_k8s_services);
    Cell::group([tables::cell(), exports]).config::<Config>()
}
