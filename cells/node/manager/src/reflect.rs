// SPDX-License-Identifier: Apache-2.0

//! Table `nodes` → the ipcache.

use std::collections::{BTreeMap, BTreeSet};

use hive::{Cfg, JobCtx, Jobs, SpawnError};
use ipnet::IpNet;
use skep_base_settings::NodeName;
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_ipcache::{Owner, Published, SourceGuard, Writer};
use skep_node_local::LocalNodeStore;
use statedb::{Change, Snapshot};

use crate::claims::{self, NodeLabels, View};
use crate::local::local_key;
use crate::manager::NodeManager;
use crate::node::NodeKey;

pub(crate) struct NodeClaims {
    pub(crate) manager: NodeManager,
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
    pub(crate) local: LocalNodeStore,
    pub(crate) name: NodeName,
    pub(crate) families: Cfg<AddressFamilies>,
    pub(crate) tunnel: Cfg<TunnelConfig>,
    /// Networks whose addresses are not this node's.
    pub(crate) excluded: Vec<IpNet>,
    pub(crate) node_labels: NodeLabels,
}

impl NodeClaims {
    pub(crate) fn spawn(self, jobs: &Jobs) -> Result<(), SpawnError> {
        jobs.keep("claim-nodes", self, Self::run)
    }

    fn forget_earlier_run(&self) -> Result<(), statedb::Error> {
        let is_ours = |owner: &Owner| owner.resource.kind() == claims::KIND;
        let mut txn = self.ipcache.write();
        self.ipcache.delete_owned(&mut txn, is_ours, |_| false)?;
        txn.commit();
        Ok(())
    }

    fn view(&self) -> View {
        View {
            local: local_key(&self.local, &self.name),
            families: self.families.clone(),
            tunnel: self.tunnel.clone(),
            excluded: self.excluded.clone(),
            node_labels: self.node_labels.clone(),
        }
    }

    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let db = self.manager.db();
        let table = self.manager.table();
        let mut changes = self.manager.rw_table().follow(db);
        let mut published: BTreeMap<NodeKey, Published> = BTreeMap::new();
        self.forget_earlier_run()?;
        loop {
            let snapshot = db.read();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let mut due = BTreeSet::new();
            let (round, changed) = changes.next_watch(&snapshot);
            for change in round {
                match change {
                    Change::Relist => due.extend(published.keys().cloned()),
                    Change::Upsert(node) | Change::Delete { object: node, .. } => {
                        due.insert(node.key.clone());
                    }
                }
            }
            self.reflect(&snapshot, due, &mut published, is_complete)?;
            self.manager.metrics().set_nodes(published.len());
            cx.health.ok(format!("{} nodes", published.len()));
            drop(snapshot);
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    fn reflect(
        &self,
        snapshot: &Snapshot,
        due: BTreeSet<NodeKey>,
        published: &mut BTreeMap<NodeKey, Published>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let view = self.view();
        let mut txn = self.ipcache.write();
        for key in due {
            match self.manager.node(snapshot, &key) {
                Some(node) => {
                    let claims = claims::claims_of(&node, &view);
                    published
                        .entry(key)
                        .or_default()
                        .replace(&self.ipcache, &mut txn, claims)?;
                }
                None => {
                    if let Some(mut gone) = published.remove(&key) {
                        gone.replace(&self.ipcache, &mut txn, Vec::new())?;
                    }
                }
            }
        }
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }
}
