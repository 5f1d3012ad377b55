// SPDX-License-Identifier: Apache-2.0

//! Unreachable routes to addresses of endpoints that are gone: whoever sends there gets an ICMP error at once.
//!
//! They are added when the row of an endpoint is removed, and removed by the reconciler when another endpoint has the
//! address, or here when the address is not the node's to allocate any more: when it is outside of the pod CIDRs. Without the
//! setting those of an earlier run are removed.

use std::{future, net::IpAddr, sync::Arc};

use hive::JobCtx;
use skep_base_net::NetError;
use skep_node_local::LocalNode;
use statedb::{Db, Obj, ReadTxn, Table};

use crate::{Endpoint, EndpointRoutes};

#[derive(Clone)]
pub(crate) struct UnreachableRoutes {
    pub(crate) is_on: bool,
    pub(crate) routes: Arc<dyn EndpointRoutes>,
    pub(crate) db: Db,
    /// The node, whose pod CIDRs addresses are allocated from.
    pub(crate) node: Option<Table<LocalNode>>,
}

impl UnreachableRoutes {
    /// Whether an address may be allocated again on this node: it is in a pod CIDR, or the node has none of its family.
    fn may_return(&self, txn: &impl ReadTxn, address: IpAddr) -> bool {
        let rows = self.node.iter().flat_map(|node| node.all(txn));
        let mut networks = rows
            .flat_map(|row| &row.pod_cidrs)
            .filter(|network| network.addr().is_ipv4() == address.is_ipv4())
            .peekable();
        networks.peek().is_none() || networks.any(|network| network.contains(&address))
    }

    /// Adds routes to the addresses of endpoints of which nothing else is left, except those that another IPAM allocated.
    pub(crate) fn add(&self, gone: &[Obj<Endpoint>]) -> Result<(), NetError> {
        if !self.is_on {
            return Ok(());
        }
        let snapshot = self.db.read();
        let mut result = Ok(());
        let of_node = gone.iter().filter(|row| !row.spec.datapath.external_ipam);
        for address in of_node.flat_map(|row| row.spec.addresses()) {
            if self.may_return(&snapshot, address) {
                result = result.and(self.routes.add_unreachable(address));
            }
        }
        result
    }

    /// Removes routes to addresses that are not allocated here any more, as the node changes, until cancelled; without the
    /// setting all of them, once.
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), NetError> {
        loop {
            let snapshot = self.db.read();
            let changed = self.node.as_ref().map(|node| node.table_watch(&snapshot));
            let (mut kept, mut removed) = (0, 0);
            for address in self.routes.unreachable()? {
                if self.is_on && self.may_return(&snapshot, address) {
                    kept += 1;
                } else {
                    self.routes.remove_unreachable(address)?;
                    removed += 1;
                }
            }
            drop(snapshot);
            if removed > 0 {
                tracing::info!(removed, "Removed stale unreachable routes");
            }
            cx.health.ok(format!("{kept} unreachable addresses"));
            match changed {
                _ if !self.is_on => return Ok(()),
                Some(changed) => changed.closed().await,
                None => future::pending().await,
            }
        }
    }
}
