// SPDX-License-Identifier: Apache-2.0

//! Cell: CiliumEndpoints → CiliumEndpointSlices, with `--enable-cilium-endpoint-slice`.
//! Requires: a Kubernetes client, the settings of the definitions, of the cluster and of the labels of identities. Provides:
//! metrics.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_base_settings::cluster::ClusterSettings;
use skep_identity_labels::{FilterError, LabelConfig};
use skep_k8s_client::Client;
use skep_k8s_controller::job;
use skep_k8s_crds::Config as CrdConfig;

use crate::config::{Config, ControllerMode};
use crate::controller::{Source, controller};
use crate::metrics::SliceMetrics;

/// Gathers CiliumEndpoints in CiliumEndpointSlices. For leaders only.
pub fn cell() -> Cell {
    Cell::module("k8s-ces-controller", "Gathers CiliumEndpoints in slices")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<SliceMetrics>)
        .run(start)
}

#[derive(Params)]
struct ControllerParams {
    config: Cfg<Config>,
    crds: Cfg<CrdConfig>,
    cluster: Cfg<ClusterSettings>,
    labels: Cfg<LabelConfig>,
    client: Arc<dyn Client>,
    metrics: Arc<SliceMetrics>,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    /// A setting of labels cannot be used.
    #[error(transparent)]
    Labels(#[from] FilterError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

fn start(params: ControllerParams) -> Result<(), StartError> {
    let is_slim = params.config.ces_controller_mode == ControllerMode::Slim;
    // Without CiliumEndpoints slices can be made of pods.
    let has_endpoints = !params.crds.disable_endpoint_crd || is_slim;
    let is_on = params.crds.enable_cilium_endpoint_slice && has_endpoints;
    if !is_on || !params.client.is_enabled() {
        return Ok(());
    }
    let source = match is_slim {
        true => Source::Pods(params.cluster.info().name.to_string(), params.labels.filter()?),
        false => Source::Endpoints,
    };
    let queue = WorkqueueRecorder::new(params.queues.as_ref(), "ciliumendpointslice");
    let ControllerParams {
        config,
        client,
        metrics,
        jobs,
        ..
    } = params;
    jobs.spawn(job("ces", move || {
        controller(&config, &source, &client, &metrics, queue.clone())
    }))?;
    Ok(())
}
