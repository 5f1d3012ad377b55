// SPDX-License-Identifier: Apache-2.0

//! Cell: creates the identities of pods.
//! Requires: a Kubernetes client, the settings of the cluster and of identities. For leaders only: two programs would create
//! identities twice.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, OnceJob, Params, SpawnError};
use skep_base_settings::{
    cluster::ClusterSettings,
    identity::{IdentityConfig, ManagementMode},
};
use skep_identity::{IdentityRange, RangeError};
use skep_identity_labels::{FilterError, LabelConfig};
use skep_k8s_client::Client;
use skep_k8s_controller::job;

use crate::controller::controller;
use crate::metrics::IdentityMetrics;
use crate::world::World;

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("identities of the cluster")]
    Range(#[from] RangeError),
    /// A setting of labels cannot be used.
    #[error(transparent)]
    Labels(#[from] FilterError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// Creates the identities of pods.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("k8s-cid-controller", "Creates the identities of pods")
        .config::<LabelConfig>()
        .provide(skep_base_metrics::provided::<IdentityMetrics>)
        .run(start)
}

#[derive(Params)]
struct StartParams {
    labels: Cfg<LabelConfig>,
    identities: Cfg<IdentityConfig>,
    cluster: Cfg<ClusterSettings>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    metrics: Arc<IdentityMetrics>,
}

fn start(params: StartParams) -> Result<(), StartError> {
    if params.identities.identity_management_mode == ManagementMode::Agent
        || !params.identities.identity_allocation_mode.uses_objects()
        || !params.client.is_enabled()
    {
        return Ok(());
    }
    let cluster = params.cluster.info();
    let range = IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters)?;
    let filter = params.labels.filter()?;
    let world = move || World::new(&cluster.name.to_string(), filter.clone(), range);
    params.jobs.spawn(create(params.client, params.metrics, world))?;
    Ok(())
}

pub(crate) fn create(
    client: Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    world: impl Fn() -> World + Send + Sync + 'static,
) -> OnceJob {
    job("create", move || controller(&client, metrics.clone(), world()))
}
