// SPDX-License-Identifier: Apache-2.0

//! Cell: endpoints of all nodes as claims in the ipcache.
//! Requires: the ipcache, the local node, the address families, optionally a Kubernetes client.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Members, Params, SpawnError};
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use skep_ipcache::Writer;
use skep_k8s_client::{Client, WatchedKind};
use skep_k8s_types::slim::{CiliumEndpoint, CiliumEndpointSlice};
use skep_node_local::LocalNodeStore;

use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::watch::Watch;

/// Endpoints of all nodes as claims in the ipcache.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("endpoint-watcher", "Endpoints of all nodes in the ipcache")
        .config::<Config>()
        .provide(watched)
        .run(start)
}

/// What the status of the agent names.
fn watched(config: Cfg<Config>) -> Members<WatchedKind> {
    let kind = match (config.disable_endpoint_crd, config.enable_cilium_endpoint_slice) {
        (true, _) => None,
        (false, true) => Some("cilium/v2alpha1::CiliumEndpointSlice"),
        (false, false) => Some("cilium/v2::CiliumEndpoint"),
    };
    Members(kind.map(WatchedKind).into_iter().collect())
}

/// Why endpoints cannot be watched.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The source is registered twice.
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The module has stopped.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    ipcache: Writer,
    local: LocalNodeStore,
    client: Option<Arc<dyn Client>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let Some(client) = params.client.filter(|client| client.is_enabled()) else {
        return Ok(());
    };
    if params.config.disable_endpoint_crd {
        return Ok(());
    }
    let watch = Watch {
        guard: params.ipcache.register_source("endpoints")?,
        local: params.local,
        families: params.families,
        endpoints: Mutex::new(Endpoints::new(params.ipcache.clone())),
        ipcache: params.ipcache,
    };
    match params.config.enable_cilium_endpoint_slice {
        true => watch.spawn::<CiliumEndpointSlice>(client, &params.jobs)?,
        false => watch.spawn::<CiliumEndpoint>(client, &params.jobs)?,
    }
    Ok(())
}
