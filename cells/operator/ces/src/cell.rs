// SPDX-License-Identifier: Apache-2.0

//! Cell: CiliumEndpoints → CiliumEndpointSlices, with `--enable-cilium-endpoint-slice`.
//! Requires: a Kubernetes client, the settings of the definitions. Provides: metrics.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_k8s_client::Client;
use skep_k8s_crds::Config as CrdConfig;

use crate::config::Config;
use crate::controller;
use crate::metrics::SliceMetrics;

/// Gathers CiliumEndpoints in CiliumEndpointSlices. For leaders only.
pub fn cell() -> Cell {
    Cell::module("k8s-ces-controller", "Gathers CiliumEndpoints in slices")
        .config::<Config>()
        .provide_private(skep_metrics::provided::<SliceMetrics>)
        .run(start)
}

#[derive(Params)]
struct ControllerParams {
    config: Cfg<Config>,
    crds: Cfg<CrdConfig>,
    client: Arc<dyn Client>,
    metrics: Arc<SliceMetrics>,
    jobs: Jobs,
}

fn start(params: ControllerParams) -> Result<(), SpawnError> {
    let is_on = params.crds.enable_cilium_endpoint_slice && !params.crds.disable_endpoint_crd;
    if !is_on || !params.client.is_enabled() {
        return Ok(());
    }
    controller::spawn(params.config, params.client, params.metrics, &params.jobs)
}
