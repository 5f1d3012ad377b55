// SPDX-License-Identifier: Apache-2.0

//! The local node → table `nodes`.

use hive::{JobCtx, Jobs, SpawnError};
use skep_base_settings::NodeName;
use skep_ipcache::{Source, SourceGuard};
use skep_node_local::{LocalNode, LocalNodeStore};
use statedb::{Db, Obj, Table};

use crate::convert;
use crate::manager::NodeManager;
use crate::node::{Node, NodeKey};

/// Registers the job that follows the local node.
pub(crate) fn spawn(
    db: Db,
    local: Table<LocalNode>,
    manager: NodeManager,
    guard: SourceGuard,
    jobs: &Jobs,
) -> Result<(), SpawnError> {
    jobs.keep("local-node", (db, local, manager, guard), follow)
}

async fn follow(
    (db, local, manager, guard): &(Db, Table<LocalNode>, NodeManager, SourceGuard),
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    loop {
        let snapshot = db.read();
        let (is_complete, completed) = local.initialized_watch(&snapshot);
        let changed = local.table_watch(&snapshot);
        let now = local.all(&snapshot).map(|row| convert::local_node(row)).collect();
        replace(manager, now, is_complete.then_some(guard))?;
        drop(snapshot);
        cx.health.ok("Running");
        tokio::select! {
            () = changed.closed() => {}
            () = completed.closed(), if !is_complete => {}
        }
    }
}

fn replace(manager: &NodeManager, now: Vec<Node>, done: Option<&SourceGuard>) -> Result<(), statedb::Error> {
    let mut txn = manager.write();
    // The node has another key if the cluster has got a name.
    let table = manager.table();
    let is_gone = |row: &&Obj<Node>| now.iter().all(|node| node.key != row.key);
    let local = table.all(&txn).filter(|row| row.source == Source::Local);
    let gone: Vec<NodeKey> = local.filter(is_gone).map(|row| row.key.clone()).collect();
    for key in gone {
        manager.delete(&mut txn, &key, Source::Local)?;
    }
    for node in now {
        manager.upsert(&mut txn, node)?;
    }
    if let Some(guard) = done {
        guard.done(&mut txn)?;
    }
    txn.commit();
    Ok(())
}

/// Cluster and name of this node.
pub(crate) fn local_key(local: &LocalNodeStore, name: &NodeName) -> NodeKey {
    let cluster = local.get().map(|node| node.cluster.clone());
    NodeKey::new(&cluster.unwrap_or_default(), name.as_str())
}
