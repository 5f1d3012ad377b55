// SPDX-License-Identifier: Apache-2.0

//! The tables and how to find rows in them.
//!
//! Written only by [`Writer`](crate::Writer); others read.

use smallvec::SmallVec;
use statedb::{Db, Index, Key, KeyBuf, KeyWriter, RwTable, Table, TextKeyError};

use crate::node::NodeFacts;
use crate::types::{Backend, Frontend, L3n4Addr, Service, ServiceName};

/// Services by name.
pub const SERVICES_BY_NAME: Index<Service, ServiceName> = Index::new("name", |row, keys| keys.add(&row.name));

/// Frontends by address.
pub const FRONTENDS_BY_ADDRESS: Index<Frontend, L3n4Addr> =
    Index::new("address", |row, keys| keys.add(&row.params.address));

/// Frontends by the service they belong to, and by the one they are redirected to.
pub const FRONTENDS_BY_SERVICE: Index<Frontend, ServiceName> = Index::new("service", |row, keys| {
    keys.add(&row.service.name);
    row.redirect_to.iter().for_each(|name| keys.add(name));
});

/// Backends by service, address and priority of the source.
pub const BACKENDS_BY_KEY: Index<Backend, BackendKey> = Index::new("key", |row, keys| {
    keys.add(&BackendKey::new(
        &row.service,
        &row.params.address,
        row.source_priority,
    ));
});

/// Backends by address.
pub const BACKENDS_BY_ADDRESS: Index<Backend, L3n4Addr> =
    Index::new("address", |row, keys| keys.add(&row.params.address));

/// Initializer of table `frontends` that is done when the services of Kubernetes were listed.
pub const KUBERNETES_SERVICES: &str = "k8s-services";

/// The one row of table `node-facts`.
pub const NODE_FACTS: Index<NodeFacts, str> = Index::new("node", |_, keys| keys.add(THIS_NODE));

/// Key of the one row of table `node-facts`.
pub(crate) const THIS_NODE: &str = "local";

impl Key for ServiceName {
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(self.as_str().as_bytes());
    }

    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        Ok(KeyBuf::new(text.as_bytes()))
    }
}

impl Key for L3n4Addr {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&self.key());
    }

    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let key = Self::partial_key(text).map_err(|error| TextKeyError::Invalid(error.to_string()))?;
        Ok(KeyBuf::new(&key))
    }
}

/// Key of a backend row: service name, zero byte, address, zero byte, priority.
#[derive(Clone, Debug)]
pub struct BackendKey(SmallVec<[u8; 96]>);

impl BackendKey {
    /// The key of one row.
    pub fn new(service: &ServiceName, address: &L3n4Addr, priority: u8) -> Self {
        let mut key = Self::of_address(service, address);
        key.0.push(priority);
        key
    }

    /// What the keys of all backends of a service start with.
    pub fn of_service(service: &ServiceName) -> Self {
        let mut key = SmallVec::from_slice(service.as_str().as_bytes());
        key.push(0);
        Self(key)
    }

    /// What the keys of one address of a service start with: best source first.
    pub fn of_address(service: &ServiceName, address: &L3n4Addr) -> Self {
        let mut key = Self::of_service(service);
        key.0.extend_from_slice(&address.key());
        key.0.push(0);
        key
    }
}

impl Key for BackendKey {
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&self.0);
    }

    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        Ok(KeyBuf::new(text.as_bytes()))
    }
}

/// The tables, writable.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Table `services`.
    pub services: RwTable<Service>,
    /// Table `frontends`.
    pub frontends: RwTable<Frontend>,
    /// Table `backends`.
    pub backends: RwTable<Backend>,
    /// Table `node-facts`: what the writer must know of this node.
    pub node: RwTable<NodeFacts>,
}

impl Tables {
    /// Makes the tables in a database.
    ///
    /// # Errors
    /// If the database has tables of these names.
    pub fn new(db: &Db) -> Result<Self, statedb::Error> {
        let services = RwTable::builder("services").primary(SERVICES_BY_NAME).build(db)?;
        let frontends = RwTable::builder("frontends")
            .primary(FRONTENDS_BY_ADDRESS)
            .index(FRONTENDS_BY_SERVICE)
            .build(db)?;
        let backends = RwTable::builder("backends")
            .primary(BACKENDS_BY_KEY)
            .index(BACKENDS_BY_ADDRESS)
            .build(db)?;
        let node = RwTable::builder("node-facts").primary(NODE_FACTS).build(db)?;
        Ok(Self {
            services,
            frontends,
            backends,
            node,
        })
    }

    /// Handles that can only read.
    pub fn readers(&self) -> (Table<Service>, Table<Frontend>, Table<Backend>) {
        (
            self.services.reader(),
            self.frontends.reader(),
            self.backends.reader(),
        )
    }
}
