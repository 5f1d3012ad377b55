// SPDX-License-Identifier: Apache-2.0

//! What the agent is made of.

use std::sync::Arc;

use hive::Cell;

use crate::{
    health,
    logging::LogConfig,
    memory, pods,
    status::{self, Configuration},
    unserved,
};

/// All cells of the agent; `configuration` is what its API shows as such.
#[must_use]
pub fn cells(configuration: Arc<Configuration>) -> Vec<Cell> {
    vec![infrastructure(configuration), control_plane(), datapath()]
}

/// What every feature stands on: logs, tables, health, metrics, the shell and the API.
fn infrastructure(configuration: Arc<Configuration>) -> Cell {
    Cell::group([
        Cell::group([]).config::<LogConfig>(),
        statedb::cell(),
        skep_health::cell(),
        skep_health::history_cell(),
        skep_metrics::cell(),
        hive_script::cell::cell(),
        skep_api::cell(),
        Cell::module("agent-status", "Parts of the status")
            .provide(health::modules)
            .provide(status::replacement)
            .provide(status::maps)
            .provide(status::clock)
            .provide(move || configuration.clone())
            .provide(status::configuration)
            .provide(status::node_health),
        memory::cell(),
    ])
}

/// Kubernetes and the node in, services in tables out.
fn control_plane() -> Cell {
    Cell::group([
        skep_k8s::remote::cell(),
        skep_k8s::node_name::cell(),
        skep_k8s::tables::cell(),
        skep_k8s::readiness::cell(),
        skep_node::cell(),
        skep_maglev::cell(),
        skep_loadbalancer::cell(),
        skep_redirectpolicy::cell(),
        skep_healthserver::cell(),
        skep_healthserver::kube_proxy_healthz(),
    ])
}

/// The kernel: pinned maps, socket programs, identities of nodes.
fn datapath() -> Cell {
    Cell::group([
        skep_socketlb::maps_cell(),
        skep_socketlb::loadbalancer_cell(),
        skep_socketlb::cell(),
        skep_ipcache::cell(),
        unserved::cell(),
        Cell::module("pod-networks", "Network namespaces of pods").provide(pods::networks),
    ])
}
