// SPDX-License-Identifier: Apache-2.0

//! Table `node-identities`: desired content of the map.

use std::net::IpAddr;

use compact_str::CompactString;
use serde_json::{Value, json};
use statedb::{
    Db, Index, Row, RwTable, Table,
    reconciler::{Status, StatusField},
    row::BoxError,
};

/// An address of a node, as one source tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeIdentity {
    /// The address.
    pub address: IpAddr,
    /// Who says so: `node/<name>` or `device/<name>`. An address can have several sources.
    pub source: CompactString,
    /// Security identity: 1 for this node, 6 for another.
    pub identity: u32,
    /// Whether the map has it.
    pub status: Status,
}

impl NodeIdentity {
    /// Primary index: by address and source.
    pub const BY_ID: Index<Self, (IpAddr, String)> =
        Index::new("id", |row, keys| keys.add(&(row.address, row.source.to_string())));
    /// By address alone.
    pub const BY_ADDRESS: Index<Self, IpAddr> = Index::new("address", |row, keys| keys.add(&row.address));
    /// Where its status is.
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    /// A row that the map does not have yet.
    pub(crate) fn pending(address: IpAddr, source: CompactString, identity: u32) -> Self {
        Self {
            address,
            source,
            identity,
            status: Status::pending(),
        }
    }
}

impl Row for NodeIdentity {
    fn header() -> &'static [&'static str] {
        &["Address", "Identity", "Source", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.address.to_string(),
            self.identity.to_string(),
            self.source.to_string(),
            self.status.kind.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Address": self.address.to_string(),
            "Identity": self.identity,
            "Source": self.source.as_str(),
            "Status": serde_json::to_value(&self.status)?,
        }))
    }
}

pub(crate) fn new(db: Db) -> Result<RwTable<NodeIdentity>, statedb::Error> {
    RwTable::builder("node-identities")
        .primary(NodeIdentity::BY_ID)
        .index(NodeIdentity::BY_ADDRESS)
        .build(&db)
}

pub(crate) fn read_only(table: RwTable<NodeIdentity>) -> Table<NodeIdentity> {
    table.reader()
}
