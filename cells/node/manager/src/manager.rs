// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to table `nodes`.

use std::sync::Arc;

use skep_ipcache::{Source, SourceGuard, SourceSync};
use statedb::{Db, Obj, ReadTxn, RwTable, Table, WriteTxn};

use crate::metrics::NodeMetrics;
use crate::node::{Node, NodeKey};

/// Writes nodes, and says what they are; cheap to clone.
///
/// ```
/// use skep_ipcache::Source;
/// use skep_node_manager::{Node, NodeKey, NodeManager};
/// use statedb::Db;
///
/// let manager = NodeManager::with_table(&Db::new())?;
/// let key = NodeKey::new("alder", "n1");
///
/// let mut txn = manager.write();
/// manager.upsert(&mut txn, Node::new(key.clone(), Source::ClusterMesh))?;
/// let snapshot = txn.commit();
/// assert_eq!(manager.node(&snapshot, &key).unwrap().source, Source::ClusterMesh);
///
/// let mut txn = manager.write();
/// manager.delete(&mut txn, &key, Source::KvStore)?;
/// assert!(manager.node(&txn.commit(), &key).is_some(), "this source does not have it");
/// # Ok::<(), statedb::Error>(())
/// ```
#[derive(Clone, hive::Value)]
pub struct NodeManager {
    db: Db,
    table: RwTable<Node>,
    sync: SourceSync<Node>,
    metrics: Arc<NodeMetrics>,
}

impl NodeManager {
    /// A manager with a table of its own.
    pub fn with_table(db: &Db) -> Result<Self, statedb::Error> {
        Self::new(db.clone(), Arc::default())
    }

    pub(crate) fn new(db: Db, metrics: Arc<NodeMetrics>) -> Result<Self, statedb::Error> {
        let table = RwTable::builder("nodes")
            .primary(Node::BY_ID)
            .index(Node::BY_NAME)
            .index(Node::BY_ADDRESS)
            .build(&db)?;
        let sync = SourceSync::new(db.clone(), table.clone());
        Ok(Self {
            db,
            table,
            sync,
            metrics,
        })
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The table, to read and watch.
    pub fn table(&self) -> Table<Node> {
        self.table.reader()
    }

    pub(crate) fn rw_table(&self) -> &RwTable<Node> {
        &self.table
    }

    pub(crate) fn metrics(&self) -> &NodeMetrics {
        &self.metrics
    }

    /// Counts nodes that were compared with the datapath without a change.
    pub fn validated(&self, nodes: usize) {
        self.metrics.validated(nodes);
    }

    pub fn write(&self) -> WriteTxn {
        self.db.write(&[&self.table])
    }

    /// Registers a source whose first list is awaited: until the guard is done, ids of nodes and entries of the ipcache from
    /// before a restart stay.
    pub fn register_source(&self, name: &str) -> Result<SourceGuard, statedb::Error> {
        self.sync.register(name)
    }

    pub fn sources(&self) -> &SourceSync<Node> {
        &self.sync
    }

    /// What a node is, by the strongest source that has it.
    pub fn node(&self, txn: &impl ReadTxn, key: &NodeKey) -> Option<Obj<Node>> {
        let rows = self.table.list(txn, Node::BY_NAME.key(key));
        rows.min_by_key(|row| row.source).cloned()
    }

    /// Every node once, by the strongest source that has it, in the order of names.
    pub fn nodes(&self, txn: &impl ReadTxn) -> Vec<Obj<Node>> {
        // The primary index is ordered by node, then by source.
        let mut nodes: Vec<Obj<Node>> = self.table.all(txn).cloned().collect();
        nodes.dedup_by(|later, first| later.key == first.key);
        nodes
    }

    /// Adds a node of a source, or replaces it; false if the source has it as it is.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`NodeManager::write`].
    pub fn upsert(&self, txn: &mut WriteTxn, node: Node) -> Result<bool, statedb::Error> {
        let id = (node.key.clone(), node.source as u8);
        let present = self.table.get(txn, Node::BY_ID.key(&id));
        let event = match present {
            Some(row) if **row == node => return Ok(false),
            Some(_) => "update",
            None => "add",
        };
        self.metrics.event(event, node.source);
        self.table.insert(txn, node)?;
        Ok(true)
    }

    /// Deletes the node of a source; false if that source does not have it.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`NodeManager::write`].
    pub fn delete(&self, txn: &mut WriteTxn, key: &NodeKey, source: Source) -> Result<bool, statedb::Error> {
        let id = (key.clone(), source as u8);
        let gone = self.table.delete_by(txn, Node::BY_ID.key(&id))?;
        if gone.is_some() {
            self.metrics.event("delete", source);
        }
        Ok(gone.is_some())
    }
}

impl std::fmt::Debug for NodeManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeManager").field("table", &self.table).finish()
    }
}
