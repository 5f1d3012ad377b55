// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to the tables.
//!
//! Sources open a transaction with [`Writer::write`], call the named operations and commit: what one transaction
//! holds becomes visible, and is reconciled, at once. Every operation keeps the rules between the tables: a frontend
//! belongs to one service, its backends are those of the service that match it, and every change of it makes it
//! pending.

mod backends;
mod expansion;
mod frontends;
mod refresh;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::RwLock;
use skep_base_settings::PortRange;
use statedb::{Db, InitGuard, ReadTxn, Snapshot, Table, Watch, WriteTxn};

use crate::node::{NoAddresses, NodeAddresses, NodeFacts};
use crate::selection::{AllBackends, BackendFilter, Selector};
use crate::table::{NODE_FACTS, THIS_NODE, Tables};
use crate::types::{Backend, Frontend, L3n4Addr, SOURCE_COUNT, Service, ServiceName, Source};
use crate::{BackendKey, SERVICES_BY_NAME};

/// Why an operation was refused. The transaction holds nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    /// The service is not in the table. Add it first.
    #[error("{0}: service not found")]
    ServiceNotFound(ServiceName),
    /// The address belongs to another service. Remove it there first.
    #[error("{address}: frontend already owned by another service ({owner})")]
    Owned {
        /// The address.
        address: L3n4Addr,
        /// Service that has it.
        owner: ServiceName,
    },
    /// The frontend is not in the table.
    #[error("{0}: frontend not found")]
    FrontendNotFound(L3n4Addr),
    /// The service has no such backend.
    #[error("{service}: backend {address} not found")]
    BackendNotFound {
        /// The service.
        service: ServiceName,
        /// The address.
        address: L3n4Addr,
    },
    /// The transaction is not one of [`Writer::write`].
    #[error("cannot write the table")]
    Table(#[from] statedb::Error),
}

/// Settings of the writer.
#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// Whether zones and nodes are preferred as services ask for (`enable-service-topology`).
    pub has_topology: bool,
    /// Whether frontends may have backends of the other address family (`bpf-lb-nat46x64`).
    pub crosses_families: bool,
    /// Ports that node ports are taken from (`node-port-range`).
    pub node_ports: PortRange,
    /// Priority of each source, by its number; the smallest wins.
    pub priorities: [u8; SOURCE_COUNT],
}

impl Default for WriterSettings {
    fn default() -> Self {
        Self {
            has_topology: false,
            crosses_families: false,
            node_ports: PortRange::default(),
            priorities: Source::ALL.map(Source::priority),
        }
    }
}

/// Why a row of `node-facts` can be written.
const LOCKED: &str = "the transaction has the table, which has no index but the primary one";

type IsHealthChecked = Arc<dyn Fn(&Service) -> bool + Send + Sync>;

/// Writes the tables of the load balancer; cheap to clone.
#[derive(Clone, hive::Value)]
pub struct Writer(Arc<Inner>);

struct Inner {
    db: Db,
    tables: Tables,
    settings: WriterSettings,
    addresses: Arc<dyn NodeAddresses>,
    filter: RwLock<Arc<dyn BackendFilter>>,
    is_health_checked: RwLock<Option<IsHealthChecked>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// The writer of these tables.
    pub fn new(db: Db, tables: Tables, settings: WriterSettings) -> Self {
        Self::on_node(db, tables, settings, Arc::new(NoAddresses))
    }

    /// The writer of these tables, on a node with a name and addresses.
    pub fn on_node(
        db: Db,
        tables: Tables,
        settings: WriterSettings,
        addresses: Arc<dyn NodeAddresses>,
    ) -> Self {
        let facts = NodeFacts {
            name: addresses.name(),
            ..NodeFacts::default()
        };
        let mut txn = db.write(&[&tables.node]);
        let inserted = tables.node.insert(&mut txn, facts);
        inserted.expect(LOCKED);
        txn.commit();
        Self(Arc::new(Inner {
            db,
            tables,
            settings,
            addresses,
            filter: RwLock::new(Arc::new(AllBackends)),
            is_health_checked: RwLock::new(None),
        }))
    }

    /// The database of the tables.
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// Table `services`.
    pub fn services(&self) -> Table<Service> {
        self.0.tables.services.reader()
    }

    /// Table `frontends`.
    pub fn frontends(&self) -> Table<Frontend> {
        self.0.tables.frontends.reader()
    }

    /// Table `backends`.
    pub fn backends(&self) -> Table<Backend> {
        self.0.tables.backends.reader()
    }

    /// A transaction over all tables of the load balancer. What is written with it knows the addresses that the node
    /// has now; frontends that are in the tables are [evaluated again](Self::reevaluate_addresses) by whoever watches
    /// the addresses.
    pub fn write(&self) -> WriteTxn {
        let tables = &self.0.tables;
        let mut txn = self.0.db.write(&[
            &tables.services,
            &tables.frontends,
            &tables.backends,
            &tables.node,
        ]);
        if let Some(addresses) = self.0.addresses.addresses(&self.0.db.read()) {
            let facts = self.node(&txn);
            if !Arc::ptr_eq(&facts.addresses, &addresses) {
                let inserted = tables.node.insert(&mut txn, NodeFacts { addresses, ..facts });
                inserted.expect(LOCKED);
            }
        }
        txn
    }

    /// Registers a source: the frontends count as complete, and maps are pruned, only when it reported its guard done
    /// with [`WriteTxn::initialized`].
    ///
    /// # Errors
    /// If a source of this name is registered already.
    pub fn register_initializer(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.write();
        let guard = self.0.tables.frontends.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    /// What is known of this node.
    pub fn node(&self, txn: &impl ReadTxn) -> NodeFacts {
        let row = self.0.tables.node.get(txn, NODE_FACTS.key(THIS_NODE));
        row.map(|row| NodeFacts::clone(row)).unwrap_or_default()
    }

    /// [`Writer::node`], and a watch that closes when it changes.
    pub fn node_watch(&self, snapshot: &Snapshot) -> (NodeFacts, Watch) {
        let (row, watch) = self.0.tables.node.get_watch(snapshot, NODE_FACTS.key(THIS_NODE));
        (row.map(|row| NodeFacts::clone(row)).unwrap_or_default(), watch)
    }

    /// Filters backends after policies and zones did; for clusters of a mesh.
    pub fn set_backend_filter(&self, filter: Arc<dyn BackendFilter>) {
        *self.0.filter.write() = filter;
    }

    /// Says which services have a health checker: their active backends are used only after the first result.
    pub fn set_health_checked(&self, predicate: impl Fn(&Service) -> bool + Send + Sync + 'static) {
        *self.0.is_health_checked.write() = Some(Arc::new(predicate));
    }

    /// Names of services that start with a text, sorted.
    pub fn service_names_with_prefix(&self, txn: &impl ReadTxn, prefix: &str) -> Vec<ServiceName> {
        let query = SERVICES_BY_NAME.bytes(prefix.as_bytes());
        self.0
            .tables
            .services
            .prefix(txn, query)
            .map(|row| row.name.clone())
            .collect()
    }

    /// Rows of a service that count, sorted by address: of several sources of one address, the best one's.
    pub fn preferred_backends(
        &self,
        txn: &impl ReadTxn,
        service: &ServiceName,
    ) -> Vec<crate::types::BackendRow> {
        let query = crate::BACKENDS_BY_KEY.key(&BackendKey::of_service(service));
        let mut rows: Vec<crate::types::BackendRow> = Vec::new();
        for row in self.0.tables.backends.prefix(txn, query) {
            if rows
                .last()
                .is_none_or(|last| last.params.address != row.params.address)
            {
                rows.push(row.clone());
            }
        }
        rows
    }

    fn priority(&self, source: Source) -> u8 {
        self.0.settings.priorities[source as usize]
    }

    /// Table `frontends` for its reconciler, which writes statuses and ids; everyone else writes by the operations.
    pub fn frontends_to_reconcile(&self) -> statedb::RwTable<Frontend> {
        self.0.tables.frontends.clone()
    }

    // Calls `f` with what decides about the backends of a service.
    fn with_selector<R>(
        &self,
        txn: &impl ReadTxn,
        service: &Service,
        f: impl FnOnce(&Selector<'_>) -> R,
    ) -> R {
        let node = self.node(txn);
        let filter = self.0.filter.read().clone();
        let is_health_checked = self
            .0
            .is_health_checked
            .read()
            .as_ref()
            .is_some_and(|checked| checked(service));
        f(&Selector {
            node: &node,
            has_topology: self.0.settings.has_topology,
            crosses_families: self.0.settings.crosses_families,
            is_health_checked,
            filter: &*filter,
        })
    }
}
