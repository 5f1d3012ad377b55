// SPDX-License-Identifier: Apache-2.0

//! Cell: policies of the endpoints of this node.
//! Requires: tables `network-policies`, `identities`, `policy-maps`, the ipcache, the name of the cluster.
//! Provides: [`Repository`], `Arc<dyn MapStates>`.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::{AddressFamilies, PacketConfig, cluster::ClusterSettings};
use skep_identity_cache::SecurityIdentity;
use skep_ipcache::Writer as IpcacheWriter;
use skep_policy_maps::{EndpointPolicy, MapStates};
use skep_policy_sources::PolicyRow;
use statedb::{Db, Table};

use crate::{Config, follow::Follow, state::Repository};

/// Policies of the endpoints of this node.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("policy", "Policies of the endpoints of this node")
        .config::<Config>()
        .provide(repository)
        .provide(map_states)
        .run(start)
}

fn repository(
    config: Cfg<Config>,
    cluster: Cfg<ClusterSettings>,
    families: Cfg<AddressFamilies>,
    packets: Cfg<PacketConfig>,
    db: Db,
    identities: Table<SecurityIdentity>,
) -> Repository {
    let dual_stack = families.ipv4 && families.ipv6;
    let settings = config.settings(&cluster.cluster_name, &packets, dual_stack);
    Repository::new(db, identities, settings)
}

fn map_states(repository: Repository) -> Arc<dyn MapStates> {
    Arc::new(repository)
}

#[derive(Params)]
struct StartParams {
    repository: Repository,
    ipcache: IpcacheWriter,
    objects: Table<PolicyRow>,
    endpoints: Table<EndpointPolicy>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        repository,
        ipcache,
        objects,
        endpoints,
        jobs,
    } = params;
    let follow = Arc::new(Follow {
        repository,
        ipcache,
        objects,
        endpoints,
    });
    jobs.keep("follow-tables", follow, Follow::run)
}
