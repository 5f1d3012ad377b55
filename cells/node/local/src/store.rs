// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to `local-node`.

use skep_k8s_types::slim::Str;
use statedb::{Db, InitGuard, Obj, RwTable, Table};

use crate::local::LocalNode;
use skep_base_settings::NodeName;

/// Reads and updates the local node. Cheap to clone.
#[derive(Clone, hive::Value)]
pub struct LocalNodeStore {
    db: Db,
    table: RwTable<LocalNode>,
    name: Str,
}

impl LocalNodeStore {
    /// A store whose node has only name, boot id and network namespace.
    ///
    /// # Errors
    ///
    /// If the database has a table `local-node` already.
    pub fn new(db: &Db, name: &NodeName) -> Result<Self, statedb::Error> {
        let table = RwTable::builder("local-node")
            .primary(LocalNode::BY_NAME)
            .build(db)?;
        let store = Self {
            db: db.clone(),
            table,
            name: Str::new(name.as_str()),
        };
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let cookie = skep_base_net::netns::cookie();
        if let Err(error) = &cookie {
            tracing::info!(%error, "Kernel does not support network namespace cookies");
        }
        let node = LocalNode {
            name: store.name.clone(),
            boot_id: Str::new(boot_id.trim()),
            netns_cookie: cookie.ok(),
            ..LocalNode::default()
        };
        let mut txn = db.write(&[&store.table]);
        store.table.insert(&mut txn, node)?;
        txn.commit();
        Ok(store)
    }

    /// The node as of now.
    pub fn get(&self) -> Option<Obj<LocalNode>> {
        self.table
            .get(&self.db.read(), LocalNode::BY_NAME.key(&self.name))
            .cloned()
    }

    /// Updates the node. Readers are not woken if nothing changes.
    ///
    /// # Errors
    ///
    /// Those of the table. A change of the name is ignored.
    pub fn update(&self, change: impl FnOnce(&mut LocalNode)) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let present = self.table.get(&txn, LocalNode::BY_NAME.key(&self.name)).cloned();
        let mut node = present.as_deref().cloned().unwrap_or_default();
        change(&mut node);
        node.name = self.name.clone();
        if present.as_deref() != Some(&node) {
            self.table.insert(&mut txn, node)?;
            txn.commit();
        }
        Ok(())
    }

    /// The table, to read and watch.
    pub fn table(&self) -> Table<LocalNode> {
        self.table.reader()
    }

    /// Makes the table wait for a source.
    ///
    /// # Errors
    ///
    /// If a source of that name is registered.
    pub fn register_initializer(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let guard = self.table.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    /// Marks the initializer of a source as done.
    ///
    /// # Errors
    ///
    /// Those of the table.
    pub fn initialized(&self, guard: &InitGuard) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(guard)?;
        txn.commit();
        Ok(())
    }
}

impl std::fmt::Debug for LocalNodeStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("LocalNodeStore").field(&self.name).finish()
    }
}
