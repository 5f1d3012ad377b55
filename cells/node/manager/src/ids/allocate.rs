// SPDX-License-Identifier: Apache-2.0

//! Table `nodes` → table `node-ids`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hive::{BoxError, JobCtx, Jobs, Params};
use skep_bpf_maps::node::NODE_IDS;
use skep_datapath_maps::Maps;
use skep_k8s_types::slim::NodeAddressType;
use statedb::reconciler::{Config, Reconciler, Status};
use statedb::{Change, Db, InitGuard, RwTable, Snapshot, WriteTxn};

use super::NodeId;
use super::reconciler::{MapOps, NodeIdMap};
use crate::manager::NodeManager;
use crate::node::{Node, NodeKey};

/// Time between two tries to read the map.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Params)]
pub(crate) struct IdParams {
    db: Db,
    table: RwTable<NodeId>,
    manager: NodeManager,
    maps: Arc<Maps>,
    jobs: Jobs,
}

/// Registers the jobs that allocate ids and write them.
pub(crate) fn start(params: IdParams) -> Result<(), BoxError> {
    let mut txn = params.db.write(&[&params.table]);
    let guard = params.table.register_initializer(&mut txn, "allocate-node-ids")?;
    txn.commit();
    let map: NodeIdMap = params.maps.handle(&NODE_IDS);
    let ops = MapOps(map.clone());
    Reconciler::new(
        &params.db,
        params.table.clone(),
        NodeId::STATUS,
        ops,
        Config::default(),
    )
    .spawn(&params.jobs)?;
    let allocation = Allocation {
        db: params.db,
        table: params.table,
        manager: params.manager,
        map,
        guard,
    };
    let jobs = params.jobs;
    Ok(jobs.keep("allocate-node-ids", allocation, Allocation::run)?)
}

/// Nodes have no id, as all are in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no id is free for node `{node}` and {others} others")]
struct Exhausted {
    node: NodeKey,
    others: usize,
}

pub(crate) struct Allocation {
    pub(crate) db: Db,
    pub(crate) table: RwTable<NodeId>,
    pub(crate) manager: NodeManager,
    pub(crate) map: NodeIdMap,
    pub(crate) guard: InitGuard,
}

/// What is known besides the table.
#[derive(Default)]
struct Ids {
    /// Restored ids whose nodes are not known yet.
    restored: BTreeMap<IpAddr, u16>,
    /// How many addresses, in the table or restored, have an id.
    in_use: BTreeMap<u16, u32>,
    /// All ids up to this one are in use.
    used_up_to: u16,
    /// Nodes without an id, as none was free.
    without: BTreeSet<NodeKey>,
}

impl Ids {
    fn acquire(&mut self, id: u16) {
        *self.in_use.entry(id).or_default() += 1;
    }

    fn release(&mut self, id: u16) {
        if let Some(count) = self.in_use.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.in_use.remove(&id);
                self.used_up_to = self.used_up_to.min(id - 1);
            }
        }
    }

    fn take_restored(&mut self, address: IpAddr) {
        if let Some(id) = self.restored.remove(&address) {
            self.release(id);
        }
    }

    fn free(&mut self) -> Option<u16> {
        while self.used_up_to < u16::MAX && self.in_use.contains_key(&(self.used_up_to + 1)) {
            self.used_up_to += 1;
        }
        self.used_up_to.checked_add(1)
    }
}

impl Allocation {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let mut ids = Ids::default();
        for (address, id) in self.restore(cx).await {
            ids.restored.insert(address, id);
            ids.acquire(id);
        }
        for row in self.table.all(&self.db.read()) {
            ids.acquire(row.id);
            ids.take_restored(row.address);
        }
        let nodes = self.manager.table();
        let mut changes = self.manager.rw_table().follow(&self.db);
        loop {
            let snapshot = self.db.read();
            let (is_complete, completed) = nodes.initialized_watch(&snapshot);
            let (round, changed) = changes.next_watch(&snapshot);
            let mut due = BTreeSet::new();
            for change in round {
                match change {
                    Change::Relist => due.extend(self.table.all(&snapshot).map(|row| row.node.clone())),
                    Change::Upsert(node) | Change::Delete { object: node, .. } => {
                        due.insert(node.key.clone());
                    }
                }
            }
            self.allocate(&snapshot, due, is_complete, &mut ids)?;
            match ids.without.first() {
                None => cx.health.ok(format!("{} ids in use", ids.in_use.len())),
                Some(node) => {
                    let error = Exhausted {
                        node: node.clone(),
                        others: ids.without.len() - 1,
                    };
                    cx.health.degraded("All ids of nodes are in use", &error);
                }
            }
            drop(snapshot);
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    /// Ids in the map; waits until it can be read.
    async fn restore(&self, cx: &JobCtx) -> Vec<(IpAddr, u16)> {
        loop {
            match self.map.entries() {
                Ok(entries) => {
                    let ids = entries.into_iter().filter(|(_, value)| value.id != 0);
                    return ids
                        .filter_map(|(key, value)| Some((key.address()?, value.id)))
                        .collect();
                }
                Err(error) => cx.health.degraded("The map cannot be read", &error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn allocate(
        &self,
        snapshot: &Snapshot,
        due: BTreeSet<NodeKey>,
        is_complete: bool,
        ids: &mut Ids,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        self.update_nodes(snapshot, &mut txn, due, ids)?;
        if is_complete && !self.awaits_addresses(snapshot, &txn, ids) {
            for id in std::mem::take(&mut ids.restored).into_values() {
                ids.release(id);
            }
            let waiting = std::mem::take(&mut ids.without);
            self.update_nodes(snapshot, &mut txn, waiting, ids)?;
            txn.initialized(&self.guard)?;
        }
        txn.commit();
        Ok(())
    }

    /// Restored addresses are of a node whose router has none yet, as this node's at start.
    fn awaits_addresses(&self, snapshot: &Snapshot, txn: &WriteTxn, ids: &Ids) -> bool {
        let restored: BTreeSet<u16> = ids.restored.values().copied().collect();
        let has_router = |key: &NodeKey| {
            let node = self.manager.node(snapshot, key);
            node.is_some_and(|node| {
                let mut kinds = node.reachable().map(|(kind, _)| kind);
                kinds.any(|kind| *kind == NodeAddressType::CiliumInternalIp)
            })
        };
        let mut rows = self.table.all(txn);
        rows.any(|row| restored.contains(&row.id) && !has_router(&row.node))
    }

    fn update_nodes(
        &self,
        snapshot: &Snapshot,
        txn: &mut WriteTxn,
        mut due: BTreeSet<NodeKey>,
        ids: &mut Ids,
    ) -> Result<(), statedb::Error> {
        while let Some(key) = due.pop_first() {
            let released = self.update_node(snapshot, txn, &key, ids)?;
            // Released addresses may be those of another node, and ids those that others wait for.
            for address in &released {
                let others = self.manager.table();
                let others = others.list(snapshot, Node::BY_ADDRESS.key(address));
                due.extend(others.map(|node| node.key.clone()).filter(|other| *other != key));
            }
            if !released.is_empty() {
                due.extend(std::mem::take(&mut ids.without));
            }
        }
        Ok(())
    }

    /// Makes the rows of a node those of its addresses; returns the addresses that it does not have any more.
    fn update_node(
        &self,
        snapshot: &Snapshot,
        txn: &mut WriteTxn,
        key: &NodeKey,
        ids: &mut Ids,
    ) -> Result<Vec<IpAddr>, statedb::Error> {
        let node = self.manager.node(snapshot, key);
        let addresses: BTreeSet<IpAddr> = node
            .iter()
            .flat_map(|node| node.reachable())
            .map(|(_, address)| address)
            .collect();
        let before: Vec<NodeId> = self
            .table
            .list(&*txn, NodeId::BY_NODE.key(key))
            .map(|row| (**row).clone())
            .collect();
        ids.without.remove(key);
        let present = before.first().map(|row| row.id);
        let restored = || {
            addresses
                .iter()
                .find_map(|address| ids.restored.get(address).copied())
        };
        let id = present.or_else(restored).or_else(|| ids.free());
        if let Some(id) = id {
            let spi = node.as_ref().map_or(0, |node| node.encryption_key);
            for address in &addresses {
                self.upsert(txn, ids, *address, id, key, spi)?;
            }
        } else if !addresses.is_empty() {
            ids.without.insert(key.clone());
        }
        let mut released = Vec::new();
        for row in before {
            if !addresses.contains(&row.address) {
                self.table.delete(txn, &row)?;
                ids.release(row.id);
                released.push(row.address);
            }
        }
        Ok(released)
    }

    fn upsert(
        &self,
        txn: &mut WriteTxn,
        ids: &mut Ids,
        address: IpAddr,
        id: u16,
        node: &NodeKey,
        spi: u8,
    ) -> Result<(), statedb::Error> {
        let present = self.table.get(&*txn, NodeId::BY_ADDRESS.key(&address)).cloned();
        if let Some(row) = &present {
            // Of two nodes with an address the first one keeps it.
            let is_taken = row.node != *node;
            if is_taken || (row.id, row.spi) == (id, spi) {
                return Ok(());
            }
            ids.release(row.id);
        }
        ids.acquire(id);
        ids.take_restored(address);
        let row = NodeId {
            address,
            id,
            node: node.clone(),
            spi,
            status: Status::pending(),
        };
        self.table.insert(txn, row).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_free_id_is_next() {
        let mut ids = Ids::default();
        assert_eq!(ids.free(), Some(1));
        for id in [1, 2, 4] {
            ids.acquire(id);
        }
        assert_eq!(ids.free(), Some(3));
        ids.acquire(3);
        ids.acquire(2);
        ids.release(2);
        assert_eq!(ids.free(), Some(5), "2 is still in use");
        ids.release(2);
        assert_eq!(ids.free(), Some(2));
        for id in 1..=u16::MAX {
            ids.acquire(id);
        }
        assert_eq!(ids.free(), None);
    }
}
