// SPDX-License-Identifier: Apache-2.0

//! Cell: policies of the endpoints of this node.
//! Requires: tables `network-policies`, `identities`, `policy-maps`, the ipcache, the name of the cluster.
//! Optionally: tables of services and backends, the local node. Provides: [`Repository`], `Arc<dyn MapStates>`, `Arc<dyn IdentityUser>`.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::{AddressFamilies, PacketConfig, cluster::ClusterSettings};
use skep_identity_cache::SecurityIdentity;
use skep_ipcache::{IdentityUser, Writer as IpcacheWriter};
use skep_loadbalancer_model::types::{Backend, Service};
use skep_node_local::LocalNode;
use skep_policy_maps::{EndpointPolicy, MapStates, PolicyMaps};
use skep_policy_sources::PolicyRow;
use statedb::{Db, RwTable, Table};

use crate::{
    Config,
    barrier::Maps,
    computations::{self, PolicyComputation},
    features::FeatureMetrics,
    follow::{Arrivals, Follow, Measure},
    metrics::PolicyMetrics,
    services::Services,
    state::Repository,
};

/// Policies of the endpoints of this node.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("policy", "Policies of the endpoints of this node")
        .config::<Config>()
        .provide_private(computations::new_table)
        .provide(skep_base_metrics::provided::<PolicyMetrics>)
        .provide(skep_base_metrics::provided::<FeatureMetrics>)
        .provide(repository)
        .provide(map_states)
        .provide(identity_user)
        .run(start)
}

#[derive(Params)]
struct RepositoryParams {
    config: Cfg<Config>,
    cluster: Cfg<ClusterSettings>,
    families: Cfg<AddressFamilies>,
    packets: Cfg<PacketConfig>,
    nodes: Cfg<skep_ipcache::Config>,
    db: Db,
    identities: Table<SecurityIdentity>,
    computations: RwTable<PolicyComputation>,
}

fn repository(params: RepositoryParams) -> Repository {
    let dual_stack = params.families.ipv4 && params.families.ipv6;
    let (cluster, config) = (&params.cluster.cluster_name, &params.config);
    let settings = config.settings(cluster, &params.packets, &params.nodes, dual_stack);
    Repository::new(params.db, params.identities, params.computations, settings)
}

fn map_states(repository: Repository) -> Arc<dyn MapStates> {
    Arc::new(repository)
}

fn identity_user(repository: Repository, maps: PolicyMaps) -> Arc<dyn IdentityUser> {
    Arc::new(Maps::new(repository, maps))
}

#[derive(Params)]
struct StartParams {
    repository: Repository,
    ipcache: IpcacheWriter,
    objects: Table<PolicyRow>,
    endpoints: Table<EndpointPolicy>,
    services: Option<Table<Service>>,
    backends: Option<Table<Backend>>,
    node: Option<Table<LocalNode>>,
    node_labels: Cfg<skep_ipcache::Config>,
    db: Db,
    metrics: Arc<PolicyMetrics>,
    features: Arc<FeatureMetrics>,
    jobs: Jobs,
}

/// Why the cell does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("node-labels")]
    Labels(#[from] skep_identity_labels::PatternError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        repository,
        ipcache,
        objects,
        endpoints,
        services,
        backends,
        node,
        node_labels,
        db,
        metrics,
        features,
        jobs,
    } = params;
    metrics.init();
    features.init();
    let arrivals = Arc::<Arrivals>::default();
    let measure = Arc::new(Measure {
        db,
        endpoints: endpoints.clone(),
        metrics: metrics.clone(),
        arrivals: arrivals.clone(),
    });
    jobs.keep("measure-changes", measure, Measure::run)?;
    let follow = Arc::new(Follow {
        repository,
        ipcache,
        objects,
        endpoints,
        node,
        node_labels: node_labels.host_label_filter()?,
        metrics,
        features,
        arrivals,
        services: services
            .zip(backends)
            .map(|(services, backends)| Services { services, backends }),
    });
    Ok(jobs.keep("follow-tables", follow, Follow::run)?)
}
