// SPDX-License-Identifier: Apache-2.0

//! Addresses of other nodes as forwardable addresses, whose next hops are discovered (`enable-l2-neigh-discovery`).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use hive::{BoxError, Cfg, JobCtx, Jobs, Params};
use skep_datapath_network::{ForwardableIps, NeighborConfig, OwnerKind};
use skep_node_manager::NodeManager;
use statedb::{Db, InitGuard};

use crate::routes::SETTLE;

#[derive(Params)]
pub(crate) struct NeighborParams {
    db: Db,
    config: Cfg<NeighborConfig>,
    nodes: Option<NodeManager>,
    ips: ForwardableIps,
    jobs: Jobs,
}

struct NodeAddresses {
    db: Db,
    nodes: NodeManager,
    ips: ForwardableIps,
    guard: InitGuard,
}

/// Registers the job that keeps the addresses of other nodes forwardable.
pub(crate) fn start(params: NeighborParams) -> Result<(), BoxError> {
    let Some(nodes) = params.nodes.filter(|_| params.config.enable_l2_neigh_discovery) else {
        return Ok(());
    };
    let work = NodeAddresses {
        db: params.db,
        nodes,
        guard: params.ips.register_initializer("nodes")?,
        ips: params.ips,
    };
    Ok(params.jobs.keep("node-neighbors", work, NodeAddresses::run)?)
}

impl NodeAddresses {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        loop {
            let snapshot = self.db.read();
            let (is_complete, complete) = self.nodes.table().initialized_watch(&snapshot);
            let changed = self.nodes.table().table_watch(&snapshot);
            let mut wanted: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
            for node in self.nodes.nodes(&snapshot).iter().filter(|node| !node.is_local()) {
                let addresses = [node.node_ip(true), node.node_ip(false)];
                for address in addresses.into_iter().flatten() {
                    wanted.entry(address).or_default().insert(node.key.to_string());
                }
            }
            drop(snapshot);
            self.ips.replace(OwnerKind::Node, &wanted)?;
            if is_complete {
                self.ips.initialized(&self.guard)?;
            }
            cx.health.ok(format!("{} addresses of other nodes", wanted.len()));
            tokio::select! {
                () = complete.closed(), if !is_complete => {}
                () = changed.closed() => {}
            }
            tokio::time::sleep(SETTLE).await;
        }
    }
}
