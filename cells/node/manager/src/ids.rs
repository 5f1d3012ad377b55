// SPDX-License-Identifier: Apache-2.0

//! Ids of nodes: table `node-ids`, allocation, and map `cilium_node_map_v2`.
//!
//! An id stays with the addresses of its node, also over a restart: ids in the map are taken before any other. A node whose
//! addresses have several ids gets the first of them for all.

mod allocate;
mod reconciler;

use std::net::IpAddr;

use serde_json::{Value, json};
use statedb::reconciler::{Status, StatusField};
use statedb::row::BoxError;
use statedb::{Db, Index, Row, RwTable};

use crate::node::NodeKey;

pub(crate) use allocate::start;
pub(crate) use reconciler::owner;

/// The id of a node, at one of its addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeId {
    pub address: IpAddr,
    /// The id, from 1 on.
    pub id: u16,
    pub node: NodeKey,
    /// Index of the node's IPsec key, 0 for none.
    pub spi: u8,
    pub status: Status,
}

impl NodeId {
    pub const BY_ADDRESS: Index<Self, IpAddr> = Index::new("address", |row, keys| keys.add(&row.address));
    pub const BY_ID: Index<Self, u16> = Index::new("id", |row, keys| keys.add(&row.id));
    pub const BY_NODE: Index<Self, NodeKey> = Index::new("node", |row, keys| keys.add(&row.node));
    const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };
}

impl Row for NodeId {
    fn header() -> &'static [&'static str] {
        &["Address", "ID", "Node", "SPI", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.address.to_string(),
            self.id.to_string(),
            self.node.to_string(),
            self.spi.to_string(),
            self.status.kind.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Address": self.address,
            "ID": self.id,
            "Node": self.node.to_string(),
            "SPI": self.spi,
            "Status": serde_json::to_value(&self.status)?,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<NodeId>, statedb::Error> {
    RwTable::builder("node-ids")
        .primary(NodeId::BY_ADDRESS)
        .index(NodeId::BY_ID)
        .index(NodeId::BY_NODE)
        .build(&db)
}
