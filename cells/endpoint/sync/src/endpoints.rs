// SPDX-License-Identifier: Apache-2.0

//! A CiliumEndpoint for each pod of this node.
//!
//! The object of an endpoint says what `object.rs` computes from tables `endpoints`, `k8s-pods` and `identities`. It is
//! created with its owner, the pod; changes are JSON patches that test its uid. Objects of former pods are deleted, by their
//! uid, at the start too. That objects still exist is read from the claims that the watch of CiliumEndpoints makes in the
//! ipcache: there is no second watch.
//!
//! Requires: tables `endpoints`, `k8s-pods`, `identities`, `ipcache`, the local node, the watch of CiliumEndpoints, a
//! Kubernetes client.

mod controller;
mod object;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_base_settings::AddressFamilies;
use skep_endpoint::Endpoint;
use skep_endpoint_watcher::Config as WatcherConfig;
use skep_identity_cache::SecurityIdentity;
use skep_ipcache::Writer;
use skep_k8s_client::Client;
use skep_k8s_controller::job;
use skep_k8s_reflectors::tables::LocalPod;
use skep_node_local::LocalNodeStore;
use statedb::{Db, Table};

use controller::{Sources, controller};

/// Which CiliumEndpoints are deleted.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Delete the CiliumEndpoints of this node that have no endpoint when the agent starts.
    #[config(default = true, hidden)]
    pub enable_stale_cilium_endpoint_cleanup: bool,
}

/// CiliumEndpoints of the pods of this node.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("endpoint-sync", "CiliumEndpoints of the pods of this node")
        .config::<Config>()
        .run(start)
}

hive::catalogue!(cell);

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    watcher: Cfg<WatcherConfig>,
    families: Cfg<AddressFamilies>,
    client: Option<Arc<dyn Client>>,
    db: Db,
    endpoints: Table<Endpoint>,
    pods: Table<LocalPod>,
    identities: Table<SecurityIdentity>,
    ipcache: Writer,
    node: LocalNodeStore,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let Some(client) = params.client.filter(|client| client.is_enabled()) else {
        return Ok(());
    };
    if params.watcher.disable_endpoint_crd {
        return Ok(());
    }
    let queue = WorkqueueRecorder::new(params.queues.as_ref(), "cilium-endpoint");
    let sources = Sources {
        db: params.db,
        endpoints: params.endpoints,
        pods: params.pods,
        identities: params.identities,
        ipcache: params.ipcache.table(),
        node: params.node,
        ipv4: params.families.ipv4,
        deletes_stale: params.config.enable_stale_cilium_endpoint_cleanup,
    };
    params.jobs.spawn(job("sync-ciliumendpoints", move || {
        controller(&client, sources.clone(), queue.clone())
    }))
}
