// SPDX-License-Identifier: Apache-2.0

//! Cell: creates the identities of pods.
//! Requires: a Kubernetes client, the settings of the cluster and of identities. For leaders only: two programs would create
//! identities twice.

use std::str::FromStr;
use std::sync::Arc;

use hive::config::Faults;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, OnceJob, Params, SpawnError};
use skep_base_settings::{cluster::ClusterSettings, identity::IdentityConfig};
use skep_identity::{IdentityRange, RangeError};
use skep_identity_labels::{FilterError, LabelConfig};
use skep_k8s_client::Client;

use crate::controller::Controller;
use crate::metrics::IdentityMetrics;
use crate::world::World;

/// Who creates the identities of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagementMode {
    Agent,
    Operator,
    /// Both, on the way from one to the other.
    Both,
}

/// The mode is none of these.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is none of agent, operator, both")]
pub struct UnknownMode(String);

impl FromStr for ManagementMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "agent" => Ok(Self::Agent),
            "operator" => Ok(Self::Operator),
            "both" => Ok(Self::Both),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

/// Whether the operator creates identities.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Who creates the identities of pods: `agent`, `operator` or `both`.
    #[config(default = "agent")]
    pub identity_management_mode: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.identity_management_mode.parse::<ManagementMode>() {
            faults.add("identity-management-mode", error.to_string());
        }
    }

    fn is_enabled(&self) -> bool {
        let mode = self.identity_management_mode.parse();
        !matches!(mode, Ok(ManagementMode::Agent))
    }
}

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
        .config::<Config>()
        .config::<LabelConfig>()
        .provide(skep_base_metrics::provided::<IdentityMetrics>)
        .run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    labels: Cfg<LabelConfig>,
    identities: Cfg<IdentityConfig>,
    cluster: Cfg<ClusterSettings>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    metrics: Arc<IdentityMetrics>,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let config = &params.config;
    if !config.is_enabled()
        || !params.identities.identity_allocation_mode.uses_objects()
        || !params.client.is_enabled()
    {
        return Ok(());
    }
    let cluster = params.cluster.info();
    let range = IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters)?;
    let filter = params.labels.filter()?;
    let world = move || World::new(&cluster.name.to_string(), filter.clone(), range);
    params.jobs.spawn(job(params.client, params.metrics, world))?;
    Ok(())
}

pub(crate) fn job(
    client: Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    world: impl Fn() -> World + Send + Sync + 'static,
) -> OnceJob {
    Job::once("create", move |cx: JobCtx| {
        let mut controller = Controller::new(client.clone(), world(), metrics.clone(), cx.health.clone());
        async move {
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run()).await;
        }
    })
}
