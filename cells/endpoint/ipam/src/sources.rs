// SPDX-License-Identifier: Apache-2.0

//! Cell: networks of the node and pools of pods, from Kubernetes.
//! Requires: a client, the local node, tables of pods and namespaces, [`Ipam`]. Provides: a [`PoolSelector`] in mode
//! `multi-pool`, read-only tables `own-cilium-node` and `podippools`.

mod controller;
pub mod infrastructure;
mod networks;
mod node;
mod pools;
mod selector;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::NodeName;
use skep_k8s_client::Client;
use skep_k8s_reflectors::{
    ReflectError,
    tables::{LocalPod, NamespaceRow},
};
use skep_node_local::LocalNodeStore;
use statedb::{Db, RwTable, Table};

use crate::{Config, Ipam, Mode, PoolSelector};
use networks::{FollowNetworks, Networks};

pub use node::{AllocatedPool, IpamNode, OwnNode, RequestedPool};
pub use pools::{PodIpPool, PoolRow};

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::group([
        Cell::module("ipam-podippool-table", "CiliumPodIPPools as a table")
            .provide_private(pools::new_table)
            .provide(statedb::read_only::<PoolRow>)
            .run(reflect_pools),
        Cell::module("ipam-metadata-manager", "Pools of pods").provide(selector),
        Cell::module("ipam-sources", "Networks of the node")
            .provide_private(node::new_table)
            .provide(statedb::read_only::<OwnNode>)
            .run(start),
    ])
}

/// Why the sources do not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Reflect(#[from] ReflectError),
    #[error(transparent)]
    Job(#[from] SpawnError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

fn reflect_pools(
    db: Db,
    table: RwTable<PoolRow>,
    client: Arc<dyn Client>,
    config: Cfg<Config>,
    jobs: Jobs,
) -> Result<(), ReflectError> {
    match config.mode == Mode::MultiPool && client.is_enabled() {
        true => pools::reflect(&db, &table, client, &jobs),
        false => Ok(()),
    }
}

#[derive(Params)]
struct SelectorParams {
    config: Cfg<Config>,
    db: Db,
    pods: Table<LocalPod>,
    namespaces: Table<NamespaceRow>,
    pools: Table<PoolRow>,
}

fn selector(params: SelectorParams) -> Arc<dyn PoolSelector> {
    let SelectorParams {
        config,
        db,
        pods,
        namespaces,
        pools,
    } = params;
    Arc::new(selector::Pools {
        db,
        pods,
        namespaces,
        pools,
        default_pool: config.ipam_default_ip_pool.clone(),
        only_masquerade_default_pool: config.only_masquerade_default_pool,
    })
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    db: Db,
    table: RwTable<OwnNode>,
    ipam: Ipam,
    name: NodeName,
    client: Arc<dyn Client>,
    local: LocalNodeStore,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        db,
        table,
        ipam,
        name,
        client,
        local,
        jobs,
    } = params;
    if !client.is_enabled() {
        return Ok(());
    }
    node::reflect(&db, &table, client.clone(), &name, &jobs)?;
    if !config.mode.has_node_cidrs() {
        // From the start: those of the Kubernetes Node are others.
        local.update(|node| node.set_ipam_cidrs(Vec::new()))?;
    }
    let networks = match config.mode {
        Mode::Kubernetes => Networks::Node(local.table()),
        Mode::ClusterPool => Networks::CiliumNode(table.reader()),
        Mode::MultiPool | Mode::Crd | Mode::Eni | Mode::Azure | Mode::AlibabaCloud => {
            let rate = config.ipam_cilium_node_update_rate;
            let table = table.reader();
            let job = skep_k8s_controller::job("write-cilium-node", move || {
                controller::controller(&client, &ipam, &db, &table, &name, rate, &local)
            });
            jobs.spawn(job)?;
            return Ok(());
        }
        Mode::DelegatedPlugin => return Ok(()),
    };
    let follow = FollowNetworks {
        db,
        ipam,
        name,
        local,
        networks,
    };
    jobs.keep("follow-networks", follow, FollowNetworks::run)?;
    Ok(())
}
