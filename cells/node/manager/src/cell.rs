// SPDX-License-Identifier: Apache-2.0

//! Cell: nodes of all clusters, in tables, in the ipcache and in the map of node ids.
//! Requires: the ipcache, the local node, its addresses, the maps, optionally a Kubernetes client.
//! Provides: [`NodeManager`], read-only tables `nodes` and `node-ids`.

use std::sync::Arc;

use hive::{BoxError, Cell, Cfg, Jobs, Params};
use skep_base_settings::NodeName;
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_ipcache::{Config, Source, Writer};
use skep_k8s_client::Client;
use skep_node_local::{AddressConfig, LocalNode, LocalNodeStore};
use statedb::{Db, Table};

use crate::apiserver::ApiServers;
use crate::claims::NodeLabels;
use crate::ids::{self, NodeId};
use crate::k8s::NodeObjects;
use crate::manager::NodeManager;
use crate::metrics::NodeMetrics;
use crate::node::Node;
use crate::reflect::NodeClaims;
use crate::{convert, host, local};

#[must_use]
pub fn cell() -> Cell {
    Cell::group([
        Cell::module("node-manager", "Nodes of all clusters")
            .provide(skep_base_metrics::provided::<NodeMetrics>)
            .provide(NodeManager::new)
            .provide(read_only)
            .run(start)
            .library(), // other cells add nodes and read the table
        Cell::module("node-ids", "Ids of nodes")
            .provide_private(ids::new_table)
            .provide(statedb::read_only::<NodeId>)
            .provide(ids::owner)
            .run(ids::start)
            .library(),
        Cell::module("host-addresses", "Addresses of this node in the ipcache").run(host::start),
    ])
}

fn read_only(manager: NodeManager) -> Table<Node> {
    manager.table()
}

#[derive(Params)]
pub(crate) struct StartParams {
    db: Db,
    manager: NodeManager,
    ipcache: Writer,
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    tunnel: Cfg<TunnelConfig>,
    addresses: Option<Cfg<AddressConfig>>,
    local: LocalNodeStore,
    local_table: Table<LocalNode>,
    name: NodeName,
    client: Option<Arc<dyn Client>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), BoxError> {
    let StartParams {
        db,
        manager,
        ipcache,
        config,
        families,
        tunnel,
        addresses,
        local,
        local_table,
        name,
        client,
        jobs,
    } = params;
    let guard = manager.register_source("local-node")?;
    local::spawn(db, local_table, manager.clone(), guard, &jobs)?;
    if let Some(client) = client.filter(|client| client.is_enabled()) {
        let guard = ipcache.register_source("kube-apiserver")?;
        ApiServers::new(ipcache.clone(), guard)?.spawn(client.clone(), &jobs)?;
        NodeObjects {
            manager: manager.clone(),
            local: local.clone(),
            guard: manager.register_source("nodes")?,
            source: Source::Kubernetes,
            convert: convert::kubernetes_node,
        }
        .spawn(client.clone(), &jobs)?;
        NodeObjects {
            manager: manager.clone(),
            local: local.clone(),
            guard: manager.register_source("ciliumnodes")?,
            source: Source::CustomResource,
            convert: convert::cilium_node,
        }
        .spawn(client, &jobs)?;
    }
    manager.sources().spawn(config.sync_timeout, &jobs)?;
    NodeClaims {
        guard: ipcache.register_source("nodes")?,
        manager,
        ipcache,
        local,
        name,
        families,
        tunnel,
        excluded: addresses.map_or_else(Vec::new, |config| config.excluded_networks()),
        node_labels: NodeLabels::new(&config)?,
    }
    .spawn(&jobs)?;
    Ok(())
}
