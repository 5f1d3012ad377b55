// SPDX-License-Identifier: Apache-2.0

//! Cell: addresses of nodes for Services of type LoadBalancer.
//! Requires: a Kubernetes client, [`ServiceIpamConfig`]. For leaders only: two programs would overwrite each other.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_base_settings::{DefaultIpam, ServiceIpamConfig};
use skep_k8s_client::Client;
use skep_k8s_controller::job;

use crate::controller::controller;

/// Whether Services get addresses of nodes.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Enable node-IPAM: node addresses for Services of type LoadBalancer and class `io.cilium/node`, and for
    /// those without a class if `default-lb-service-ipam` is `nodeipam`.
    pub enable_node_ipam: bool,
}

/// Addresses of nodes for Services.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("nodeipam", "Addresses of nodes for Services")
        .config::<Config>()
        .run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    ipam: Cfg<ServiceIpamConfig>,
    client: Arc<dyn Client>,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        ipam,
        client,
        queues,
        jobs,
    } = params;
    if !config.enable_node_ipam || !client.is_enabled() {
        return Ok(());
    }
    let is_default = ipam.default_lb_service_ipam == DefaultIpam::NodeIpam;
    let queue = WorkqueueRecorder::new(queues.as_ref(), "service-nodeipam");
    jobs.spawn(job("service-nodeipam", move || {
        controller(&client, is_default, queue.clone())
    }))
}
